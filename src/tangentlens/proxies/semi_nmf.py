"""Semi-NMF: rows as non-negative mixtures of free directions, X - mean ~ Z D with Z >= 0. The tangent proxy."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.clusters import far_apart
from tangentlens.geometry.rows import as_rows
from tangentlens.geometry.subspace import Subspace


class SemiNMF:
    """Semi-non-negative matrix factorisation.

    The rows are first expressed in their leading `2 k + 16` principal directions: the dictionary lies in the span of
    the rows, and what is left out could not be reached at rank k. The codes are then improved column by column
    (hierarchical alternating least squares) and the dictionary solved for exactly, so the error never rises.

    Args:
        n_components: Number of concepts, k.
        center: Subtract the mean first: tangent vectors are differences.
        max_iter: At most so many sweeps.
        tol: Stop when a sweep lowers the relative error by less than this share of it.
        seed: Draws the starting dictionary.

    Attributes:
        components_: Dictionary D, `(k, d)`.
        codes_: Codes Z of the fitted rows, `(n, k)`, none below 0.
        mean_: What was subtracted, `(d,)`.
        error_: |X - mean - Z D|^2 / |X - mean|^2.
        n_iter_: Sweeps done.

    >>> rows = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    >>> fit = SemiNMF(n_components=3).fit(rows)
    >>> fit.components_.shape, bool((fit.codes_ >= 0).all()), fit.subspace()
    (torch.Size([3, 8]), True, Subspace(rank=3, dim=8))
    """

    components_: Float[Tensor, "k d"]
    codes_: Float[Tensor, "n k"]
    mean_: Float[Tensor, "d"]
    error_: float
    n_iter_: int

    def __init__(
        self, n_components: int, center: bool = True, max_iter: int = 200, tol: float = 1e-4, seed: int = 0
    ) -> None:
        self.n_components = n_components
        self.center = center
        self.max_iter = max_iter
        self.tol = tol
        self.seed = seed

    def fit(self, x: Any) -> SemiNMF:
        """Fit dictionary and codes to rows `x`."""
        rows = as_rows(x)
        k = self.n_components
        if not 1 <= k <= min(rows.shape):
            raise InputError(
                f"n_components must be between 1 and {min(rows.shape)}, the smaller side of the {tuple(rows.shape)} "
                f"rows, but is {k}"
            )
        if self.max_iter < 1:
            raise InputError(f"max_iter must be at least 1, but is {self.max_iter}")
        mean = rows.mean(dim=0, dtype=torch.float64).to(rows) if self.center else torch.zeros_like(rows[0])
        centred = rows - mean
        energy = float(centred.double().square().sum())
        # What is left of equal rows is the rounding of their mean.
        rounding = 8 * torch.finfo(rows.dtype).eps
        if energy <= rounding**2 * float(rows.double().square().sum()):
            raise InputError("rows must differ for concepts to exist, but all are equal; check the site and the mask")
        directions = _leading_directions(centred, min(2 * k + 16, rows.shape[1]))
        reduced = centred @ directions
        lost = max(energy - float(reduced.double().square().sum()), 0.0)
        dictionary = far_apart(reduced, k, self.seed)
        codes = torch.zeros(len(rows), k, dtype=rows.dtype, device=rows.device)
        error = torch.inf
        for n_iter in range(1, self.max_iter + 1):  # noqa: B007
            _improve_codes(codes, reduced, dictionary)
            dictionary = _best_dictionary(codes, reduced)
            previous, error = error, (_residual(codes, reduced, dictionary) + lost) / energy
            if previous - error <= self.tol * max(error, 1e-6):
                break
        self.components_ = dictionary @ directions.T
        self.codes_ = codes
        self.mean_ = mean
        self.error_ = error
        self.n_iter_ = n_iter
        return self

    def transform(self, x: Any) -> Float[Tensor, "n k"]:
        """Codes of rows `x` for the fitted dictionary."""
        rows = as_rows(x).to(self.components_)
        return _best_codes(rows - self.mean_, self.components_)

    def subspace(self) -> Subspace:
        """The span of the dictionary: the tangent proxy. Its rank is below k if concepts depend on each other."""
        if not hasattr(self, "components_"):
            raise InputError("this SemiNMF must be fitted to have a subspace, but is not; call fit(rows) first")
        # A concept's length is arbitrary (its codes undo it), so it must not decide the numerical rank.
        return Subspace.span(torch.nn.functional.normalize(self.components_, dim=1))


def semi_nmf(rows: Tensor, rank: int, seed: int = 0) -> Subspace:
    """The tangent proxy: the span of a centred semi-NMF dictionary of `rank` concepts."""
    return SemiNMF(rank, seed=seed).fit(rows).subspace()


def _leading_directions(rows: Float[Tensor, "n d"], count: int) -> Float[Tensor, "d count"]:
    vectors = torch.linalg.eigh((rows.T @ rows).double()).eigenvectors
    return vectors[:, -count:].to(rows)


def _improve_codes(codes: Float[Tensor, "n k"], rows: Float[Tensor, "n m"], dictionary: Float[Tensor, "k m"]) -> None:
    """One sweep of coordinate descent over the columns of `codes`, in place; each column is at its optimum."""
    gram = dictionary @ dictionary.T
    fits = rows @ dictionary.T
    for j in range(len(dictionary)):
        if gram[j, j] > 0:
            step = (fits[:, j] - codes @ gram[:, j]) / gram[j, j]
            codes[:, j] = (codes[:, j] + step).clamp_min_(0)


def _best_codes(rows: Float[Tensor, "n m"], dictionary: Float[Tensor, "k m"]) -> Float[Tensor, "n k"]:
    """Non-negative least squares for all rows at once: projected gradient steps with momentum, restarted if it errs.

    Concepts are far from orthogonal, and column by column this would take thousands of sweeps.
    """
    gram, fits = dictionary @ dictionary.T, rows @ dictionary.T
    steepest = torch.linalg.matrix_norm(gram, ord=2)
    codes = ahead = torch.zeros_like(fits)
    momentum = 1.0
    for _ in range(2000):
        moved = (ahead - (ahead @ gram - fits) / steepest).clamp_min_(0)
        step = moved - codes
        if float(((ahead - moved) * step).sum()) > 0:
            momentum = 1.0
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * step
        codes, momentum = moved, following
        if float(step.norm()) <= 1e-6 * float(codes.norm()):
            break
    return codes


def _best_dictionary(codes: Float[Tensor, "n k"], rows: Float[Tensor, "n m"]) -> Float[Tensor, "k m"]:
    """Least squares; a concept that no row uses gets a zero direction."""
    gram = (codes.T @ codes).double()
    return (torch.linalg.pinv(gram, hermitian=True) @ (codes.T @ rows).double()).to(rows)


def _residual(codes: Float[Tensor, "n k"], rows: Float[Tensor, "n m"], dictionary: Float[Tensor, "k m"]) -> float:
    return float((rows - codes @ dictionary).square().sum(dtype=torch.float64))
