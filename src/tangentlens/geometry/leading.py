"""Leading eigenvectors of a matrix and leading directions of rows, without computing all the others."""

import torch
from jaxtyping import Float
from torch import Tensor

# Random columns of a block beyond those wanted, and beside a given start; the largest number of steps; the relative
# residual at which the iteration has converged.
_SPARE, _BESIDE_START, _STEPS, _TOLERANCE = 16, 4, 30, 1e-8
# How many leading eigenvectors of a matrix to use as a start for matrices that are nearly equal to it.
NEAR = 8
# The number of powers of the matrix, the first being 0, in `krylov_basis`; a length that counts as nothing.
_POWERS, _TINY = 40, 1e-30
# How often `leading_directions` multiplies its block by X^T X.
_PASSES = 2


def leading_vectors(
    matrix: Float[Tensor, "d d"], count: int, start: Float[Tensor, "d c"] | None = None
) -> Float[Tensor, "d count"]:
    """Return the eigenvectors of the `count` largest eigenvalues, the largest first.

    The method is block subspace iteration, which takes few products where the spectrum falls fast or where `start` is
    nearly right. A converged vector is an eigenvector, but not necessarily a leading one. So a Cholesky factorisation
    then certifies that no larger eigenvalue is left. If the iteration or the certificate fails, all eigenvectors are
    computed.

    Args:
        matrix: A symmetric positive semi-definite matrix `(d, d)`.
        count: How many eigenvectors to return.
        start: Approximate leading eigenvectors `(d, c)`, such as those of a nearly equal matrix.

    Returns:
        Orthonormal eigenvectors `(d, count)`, as columns.

    >>> leading_vectors(torch.diag(torch.tensor([1.0, 9.0, 4.0])), count=1).abs().T.tolist()
    [[0.0, 1.0, 0.0]]
    """
    d = len(matrix)
    make = torch.Generator().manual_seed(0)
    spare = count + _SPARE if start is None else _BESIDE_START
    # For a small matrix, computing all eigenvectors is faster.
    if 20 * (spare if start is None else spare + start.shape[1]) < d:
        block = torch.randn(d, spare, generator=make, dtype=torch.float64).to(matrix)
        if start is not None:
            # Random columns find leading directions that are orthogonal to the start.
            block = torch.cat([start, block], dim=1)
        for _ in range(_STEPS):
            block = torch.linalg.qr(matrix @ block).Q
            image = matrix @ block
            values, rotation = torch.linalg.eigh(block.T @ image)
            block, image = block @ rotation.flip(1), image @ rotation.flip(1)
            residual = image[:, :count] - block[:, :count] * values.flip(0)[:count]
            if bool(residual.norm() <= _TOLERANCE * values[-1]):
                if _are_leading(matrix, block[:, :count], values.flip(0)[:count]):
                    return block[:, :count]
                break
    return torch.linalg.eigh(matrix).eigenvectors[:, -count:].flip(1)


def _are_leading(matrix: Float[Tensor, "d d"], vectors: Float[Tensor, "d c"], values: Float[Tensor, "c"]) -> bool:
    """Return whether the matrix without these eigenvectors has no eigenvalue above the smallest of theirs."""
    shifted = (vectors * values) @ vectors.T - matrix
    shifted.diagonal().add_(values[-1] + 10 * _TOLERANCE * values[0])
    # A matrix has a Cholesky factor if and only if it is positive definite.
    return int(torch.linalg.cholesky_ex(shifted).info) == 0


def krylov_basis(matrix: Float[Tensor, "d d"]) -> Float[Tensor, "d c"]:
    """Return an orthonormal basis in which a matrix has nearly the same largest eigenvalue.

    The basis spans the products of a random vector with the first powers of the matrix. The largest eigenvalue in it is
    right to three digits even where the spectrum is flat, in which case `leading_vectors` computes all eigenvectors.

    Args:
        matrix: A symmetric positive semi-definite matrix `(d, d)`.

    >>> basis = krylov_basis(torch.diag(torch.tensor([1.0, 9.0, 4.0])))
    >>> round(float(torch.linalg.eigvalsh(basis.T @ torch.diag(torch.tensor([1.0, 9.0, 4.0])) @ basis)[-1]), 5)
    9.0
    """
    d = len(matrix)
    if d <= _POWERS:
        return torch.eye(d).to(matrix)
    make = torch.Generator().manual_seed(0)
    # Single precision finds the same subspace, and half of the memory is read.
    product = matrix.float()
    image = torch.randn(d, generator=make, dtype=torch.float64).to(product)
    basis = product.new_zeros(_POWERS, d)
    for number in range(_POWERS):
        before = basis[:number]
        image = torch.addmv(image, before.T, before @ image, alpha=-1)
        # If nothing is left, the vector is zero, and the decomposition below puts another in its place.
        torch.div(image, torch.linalg.vector_norm(image).clamp_min(_TINY), out=basis[number])
        image = product @ basis[number]
    # Rounding takes away some orthogonality, but not what the vectors span.
    return torch.linalg.qr(basis.T.to(matrix)).Q


def basis_without_groups(
    rows: Float[Tensor, "n d"],
    member: Float[Tensor, "g n"],
    matrix: Float[Tensor, "d d"],
    leading: Float[Tensor, "d c"],
) -> Float[Tensor, "d b"]:
    """Return a basis in which to seek the leading direction of all rows without a group, for any of the groups.

    It spans the leading directions of all rows and what each group adds to the image of the first of these, because to
    leave a group out turns the leading direction away from there; and the images of these, because it turns further
    towards large eigenvalues. What else it may turn to changes the eigenvalue to second order only.

    Args:
        rows: Rows `(n, d)`.
        member: 1 where a row belongs to a group, else 0.
        matrix: X^T X of all rows, up to a factor.
        leading: Its leading eigenvectors `(d, c)`, the first one first.
    """
    weights = member.to(rows) * (rows @ leading[:, 0].to(rows))
    added = (weights @ rows).T.to(matrix)
    return torch.linalg.qr(torch.cat([leading, added, matrix @ added / matrix.trace()], dim=1)).Q


def leading_directions(
    rows: Float[Tensor, "n d"], count: int
) -> tuple[Float[Tensor, "d count"], Float[Tensor, "n count"]]:
    """Return approximate leading principal directions of the rows, and the coordinates of the rows along them.

    The method is a randomised range finder: a random block is multiplied twice by X^T X, without forming that matrix.
    Where the spectrum falls, the block then spans the leading directions well; where it does not, any directions hold
    about as much of the rows. This takes less time than the product X^T X alone.

    Args:
        rows: Rows `(n, d)`. They are not centred here: variance means the mean square around 0.
        count: How many directions to return.

    Returns:
        Orthonormal directions `(d, count)`, as columns, the one with the largest variance first; and the coordinates
        `(n, count)` of the rows along them, which are uncorrelated.

    >>> directions, along = leading_directions(torch.tensor([[1.0, 0.0, 0.0], [0.0, 9.0, 0.0]]), count=1)
    >>> directions.abs().T.tolist(), along.abs().T.tolist()
    ([[0.0, 1.0, 0.0]], [[0.0, 9.0]])
    """
    d = rows.shape[1]
    make = torch.Generator().manual_seed(0)
    block = torch.eye(d, dtype=rows.dtype, device=rows.device)
    # With few features, computing all eigenvectors is faster.
    if 4 * (count + _SPARE) < d:
        block = torch.randn(d, count + _SPARE, generator=make, dtype=torch.float64).to(rows)
        for _ in range(_PASSES):
            block = torch.linalg.qr(rows.T @ (rows @ block)).Q
    inside = rows @ block
    rotation = torch.linalg.eigh((inside.T @ inside).double()).eigenvectors.flip(1)[:, :count].to(rows)
    return block @ rotation, inside @ rotation
