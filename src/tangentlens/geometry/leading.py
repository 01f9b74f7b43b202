"""Leading eigenvectors of a symmetric matrix, without the rest of them."""

import torch
from jaxtyping import Float
from torch import Tensor

# Columns beyond those wanted, steps at least and at most, and the residual that counts as none.
_SPARE, _LEAST, _STEPS, _TOLERANCE = 16, 3, 30, 1e-9


def leading_vectors(
    matrix: Float[Tensor, "d d"], count: int, start: Float[Tensor, "d c"] | None = None
) -> Float[Tensor, "d count"]:
    """The eigenvectors of the `count` largest eigenvalues of a positive semi-definite matrix, the largest first.

    A block of vectors is multiplied and orthonormalised until those wanted stand still, which takes a few products
    where the spectrum falls, or where `start` is nearly right. Where it does not fall, all eigenvectors are computed.

    >>> leading_vectors(torch.diag(torch.tensor([1.0, 9.0, 4.0])), count=1).abs().T.tolist()
    [[0.0, 1.0, 0.0]]
    """
    d = len(matrix)
    make = torch.Generator().manual_seed(0)
    block = torch.randn(d, count + _SPARE, generator=make, dtype=torch.float64).to(matrix)
    if start is not None:
        # The random columns find what a start that lies elsewhere would never see.
        block = torch.cat([start, block], dim=1)
    # Of a small matrix, all eigenvectors are found sooner.
    if 20 * block.shape[1] < d:
        for step in range(_STEPS):
            block = torch.linalg.qr(matrix @ block).Q
            image = matrix @ block
            values, turn = torch.linalg.eigh(block.T @ image)
            block, image = block @ turn.flip(1), image @ turn.flip(1)
            rest = image[:, :count] - block[:, :count] * values.flip(0)[:count]
            if step >= _LEAST and float(values[-1]) > 0 and float(rest.norm()) <= _TOLERANCE * float(values[-1]):
                return block[:, :count]
    return torch.linalg.eigh(matrix).eigenvectors[:, -count:].flip(1)
