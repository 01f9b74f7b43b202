"""Leading eigenvectors of a symmetric matrix, or leading directions of rows, without the rest of them."""

import torch
from jaxtyping import Float
from torch import Tensor

# Columns beyond those wanted, or beside a start; steps before giving up, and the residual that counts as none.
_SPARE, _BESIDE_START, _STEPS, _TOLERANCE = 16, 4, 30, 1e-8
# Leading eigenvectors of a whole matrix from which those of nearly equal ones are searched.
NEAR = 8
# Times that a block is multiplied by the rows and their transpose where nearly leading is enough.
_PASSES = 2


def leading_vectors(
    matrix: Float[Tensor, "d d"], count: int, start: Float[Tensor, "d c"] | None = None
) -> Float[Tensor, "d count"]:
    """The eigenvectors of the `count` largest eigenvalues of a positive semi-definite matrix, the largest first.

    A block of vectors is multiplied and orthonormalised until those wanted stand still, which takes a few products
    where the spectrum falls, or where `start` is nearly right. What stands still is an eigenvector, but not surely a
    leading one: that no larger eigenvalue is left is then certified by a Cholesky factorisation. Where either fails,
    all eigenvectors are computed.

    >>> leading_vectors(torch.diag(torch.tensor([1.0, 9.0, 4.0])), count=1).abs().T.tolist()
    [[0.0, 1.0, 0.0]]
    """
    d = len(matrix)
    make = torch.Generator().manual_seed(0)
    spare = count + _SPARE if start is None else _BESIDE_START
    block = torch.randn(d, spare, generator=make, dtype=torch.float64).to(matrix)
    if start is not None:
        # The random columns find what a start that lies elsewhere would never see.
        block = torch.cat([start, block], dim=1)
    # Of a small matrix, all eigenvectors are found sooner.
    if 20 * block.shape[1] < d:
        for _ in range(_STEPS):
            block = torch.linalg.qr(matrix @ block).Q
            image = matrix @ block
            values, turn = torch.linalg.eigh(block.T @ image)
            block, image = block @ turn.flip(1), image @ turn.flip(1)
            rest = image[:, :count] - block[:, :count] * values.flip(0)[:count]
            if float(rest.norm()) <= _TOLERANCE * float(values[-1]):
                if _are_leading(matrix, block[:, :count], values.flip(0)[:count]):
                    return block[:, :count]
                break
    return torch.linalg.eigh(matrix).eigenvectors[:, -count:].flip(1)


def _are_leading(matrix: Float[Tensor, "d d"], vectors: Float[Tensor, "d c"], values: Float[Tensor, "c"]) -> bool:
    """Whether what is left of the matrix without these has no eigenvalue above the least of theirs."""
    left = (vectors * values) @ vectors.T - matrix
    left.diagonal().add_(values[-1] + 10 * _TOLERANCE * values[0])
    return int(torch.linalg.cholesky_ex(left).info) == 0


def leading_directions(
    rows: Float[Tensor, "n d"], count: int
) -> tuple[Float[Tensor, "d count"], Float[Tensor, "n count"]]:
    """Orthonormal directions that hold nearly all that `count` can hold of the rows, and the rows along them.

    Around 0, the direction that holds most first; along them the rows are uncorrelated.

    A random block, multiplied twice by X^T X without forming it, spans the leading directions well where the spectrum
    falls, and where it does not any directions hold about as much. This takes less time than the product X^T X alone.

    >>> directions, along = leading_directions(torch.tensor([[1.0, 0.0, 0.0], [0.0, 9.0, 0.0]]), count=1)
    >>> directions.abs().T.tolist(), along.abs().T.tolist()
    ([[0.0, 1.0, 0.0]], [[0.0, 9.0]])
    """
    d = rows.shape[1]
    make = torch.Generator().manual_seed(0)
    block = torch.eye(d, dtype=rows.dtype, device=rows.device)
    # Of few features, all eigenvectors are found sooner.
    if 4 * (count + _SPARE) < d:
        block = torch.randn(d, count + _SPARE, generator=make, dtype=torch.float64).to(rows)
        for _ in range(_PASSES):
            block = torch.linalg.qr(rows.T @ (rows @ block)).Q
    inside = rows @ block
    turn = torch.linalg.eigh((inside.T @ inside).double()).eigenvectors.flip(1)[:, :count].to(rows)
    return block @ turn, inside @ turn
