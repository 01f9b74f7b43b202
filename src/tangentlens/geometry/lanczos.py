"""The largest eigenvalues of a matrix with their eigenvectors, by Lanczos iterations."""

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.geometry.leading import leading_vectors

# The relative residual at which the iteration has converged, and the largest number of its restarts.
_TOLERANCE, _RESTARTS = 1e-10, 40


def largest(matrix: Float[Tensor, "d d"], count: int) -> tuple[Float[Tensor, "count"], Float[Tensor, "d count"]]:
    """Return the `count` largest eigenvalues, descending, and their eigenvectors as columns.

    Lanczos iterations take a few products with single vectors even where the spectrum is flat. They are many small
    steps on the host, so on a GPU, which multiplies blocks as fast as vectors, `leading_vectors` takes their place.

    Args:
        matrix: A symmetric positive semi-definite matrix `(d, d)`.
        count: How many to return.

    >>> values, vectors = largest(torch.diag(torch.tensor([1.0, 9.0, 4.0], dtype=torch.float64)), count=1)
    >>> round(float(values[0]), 6), [round(abs(entry), 6) for entry in vectors[:, 0].tolist()]
    (9.0, [0.0, 1.0, 0.0])
    """
    if matrix.device.type != "cpu" or count >= len(matrix):
        vectors = leading_vectors(matrix, count)
        return (vectors * (matrix @ vectors)).sum(dim=0), vectors
    # At unit scale, so that an eigenvalue of 0 can be told from a small one.
    scale = float(matrix.trace()) or 1.0
    product = scipy.sparse.linalg.LinearOperator(
        matrix.shape, lambda x: (matrix @ torch.from_numpy(x)).numpy() / scale, dtype="float64"
    )
    start = torch.randn(len(matrix), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    try:
        values, vectors = scipy.sparse.linalg.eigsh(
            product, count, which="LA", v0=start.numpy(), tol=_TOLERANCE, maxiter=_RESTARTS
        )
    except scipy.sparse.linalg.ArpackError:
        # It need not converge where fewer than `count` eigenvalues differ from 0.
        everything = torch.linalg.eigh(matrix)
        return everything.eigenvalues[-count:].flip(0), everything.eigenvectors[:, -count:].flip(1)
    return torch.from_numpy(values).flip(0) * scale, torch.from_numpy(vectors).flip(1)
