"""The largest eigenvalues of a matrix with their eigenvectors, by Lanczos iterations."""

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.geometry.leading import leading_vectors

# The relative residual at which the iteration has converged.
_TOLERANCE = 1e-10
# How many steps are made before the first look at the residual, and by what the number grows until the next look.
_FIRST_LOOK, _GROWTH = 20, 1.4
# Below this part of the trace, what is left of a vector is rounding.
_NOTHING = 1e-14


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
    d = len(matrix)
    if matrix.device.type != "cpu":
        vectors = leading_vectors(matrix, count)
        return (vectors * (matrix @ vectors)).sum(dim=0), vectors
    krylov = _Krylov(matrix)
    steps = max(_FIRST_LOOK, 2 * count + 1)
    # With a basis of half of the space, all eigenvectors are computed in less time.
    while 2 * steps < d:
        krylov.extend(steps)
        values, vectors, residuals = krylov.leading(count)
        if bool((residuals <= _TOLERANCE * values[0]).all()):
            return values, vectors
        steps = int(_GROWTH * steps)
    everything = torch.linalg.eigh(matrix)
    return everything.eigenvalues[-count:].flip(0), everything.eigenvectors[:, -count:].flip(1)


class _Krylov:
    """An orthonormal basis, in which a matrix is tridiagonal, of the products of a random vector with its powers.

    Where these products span no more, as for a matrix with few different eigenvalues, another random vector goes on.
    """

    def __init__(self, matrix: Float[Tensor, "d d"]) -> None:
        self.matrix, self.nothing = matrix, _NOTHING * float(matrix.trace())
        self.make = torch.Generator().manual_seed(0)
        self.diagonal: list[float] = []
        # The last is the length of what the next vector is made of.
        self.beside: list[float] = []
        self.basis = matrix.new_empty(0, len(matrix))
        self.next = self._random()

    def extend(self, steps: int) -> None:
        """Extend the basis to as many vectors as `steps`."""
        done = len(self.basis)
        self.basis = torch.cat([self.basis, self.basis.new_empty(steps - done, len(self.matrix))])
        for step in range(done, steps):
            self.basis[step] = self.next
            known = self.basis[: step + 1]
            image = self.matrix @ self.next
            along = known @ image
            # Twice, because rounding would leave some of the known vectors in what is left.
            left = _without(known, image.addmv_(known.T, along, alpha=-1))
            length = float(torch.linalg.vector_norm(left))
            exhausted = length <= self.nothing
            self.diagonal.append(float(along[step]))
            self.beside.append(0.0 if exhausted else length)
            self.next = self._random(known) if exhausted else left / length

    def leading(self, count: int) -> tuple[Float[Tensor, "count"], Float[Tensor, "d count"], Float[Tensor, "count"]]:
        """Return the `count` largest eigenvalues in the basis, descending, their eigenvectors and their residuals."""
        beside = torch.tensor(self.beside, dtype=self.matrix.dtype)
        diagonal = torch.tensor(self.diagonal, dtype=self.matrix.dtype)
        inside = torch.diag(diagonal) + torch.diag(beside[:-1], 1) + torch.diag(beside[:-1], -1)
        values, vectors = torch.linalg.eigh(inside)
        values, vectors = values[-count:].flip(0), vectors[:, -count:].flip(1)
        return values, self.basis.T @ vectors, beside[-1] * vectors[-1].abs()

    def _random(self, known: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "d"]:
        """Return a random unit vector, orthogonal to the known ones if there are any."""
        vector = torch.randn(len(self.matrix), generator=self.make, dtype=torch.float64).to(self.matrix)
        vector = vector if known is None else _without(known, _without(known, vector))
        return vector / torch.linalg.vector_norm(vector)


def _without(known: Float[Tensor, "m d"], vector: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
    """Return what is left of a vector without its components along known unit vectors."""
    return torch.addmv(vector, known.T, known @ vector, alpha=-1)
