"""Semi-NMF: rows as non-negative mixtures of free directions, X - mean ~ Z D with Z >= 0. The tangent proxy."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows, unit_scale
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import SPARE, Principal

# The start is looked for on so many rows, in so many turns, under a penalty on codes that falls between these.
_START_ROWS, _START_TURNS = 1024, 40
_PENALTY_FIRST, _PENALTY_LAST = 0.3, 0.001
# At most so many attempts, and so many concepts in all of them, unless one attempt has more.
_START_ATTEMPTS, _START_CONCEPTS = 4, 16
# Steps of the codes for each solution of the dictionary: in the start, when codes begin at zero, and afterwards.
_START_STEPS, _FIRST_STEPS, _STEPS = 6, 30, 16
# Codes of new rows: at most so many rounds of so many steps; momentum begins anew with each.
_TRANSFORM_ROUNDS, _TRANSFORM_STEPS = 40, 50


class SemiNMF:
    """Semi-non-negative matrix factorisation.

    The rows are first expressed in their leading `k + 16` principal directions. Many dictionaries fit equally well, so
    the start decides which is found: extreme rows, then alternating steps under a penalty on the codes that fades away,
    which prefers the dictionary with the sparsest codes. From there codes (a few steps) and dictionary (exactly)
    take turns on the plain objective until the error stands still; it never rises (docs/concepts.md, 'Tangent proxy').

    Args:
        n_components: Number of concepts, k.
        center: Subtract the mean first: tangent vectors are differences.
        max_iter: At most so many turns.
        tol: Stop when a turn lowers the relative error by less than this share of it, or of 0.01.
        seed: Draws the start.

    Attributes:
        components_: Dictionary D, `(k, d)`.
        codes_: Codes Z of the fitted rows, `(n, k)`, none below 0.
        mean_: What was subtracted, `(d,)`.
        error_: |X - mean - Z D|^2 / |X - mean|^2.
        n_iter_: Turns done.

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
        self, n_components: int, center: bool = True, max_iter: int = 200, tol: float = 4e-3, seed: int = 0
    ) -> None:
        self.n_components = n_components
        self.center = center
        self.max_iter = max_iter
        self.tol = tol
        self.seed = seed

    def fit(self, x: Any, init: SemiNMF | None = None) -> SemiNMF:
        """Fit to rows `x` (or their `Principal`), starting from the dictionary of an earlier fit if one is given."""
        principal = Principal.of(x, self.center)
        self._check(principal, init)
        directions, coordinates = principal.leading(self.n_components + SPARE)
        points = coordinates.T.contiguous()
        if init is None:
            dictionary = _sparse_start(points, self.n_components, self.center, self.seed)
        else:
            before = init.components_.to(directions) / unit_scale(init.components_)
            dictionary = normalize(before @ directions, dim=1)
        codes = points.new_zeros(self.n_components, points.shape[1])
        energy = float(points.shape[1])
        error = math.inf
        for n_iter in range(1, self.max_iter + 1):
            # Codes begin at zero, and must catch up with the dictionary before it is solved for anew.
            moved = _improved_codes(codes, points, dictionary, _STEPS if n_iter > 1 else _FIRST_STEPS)
            found, explained = _best_dictionary(moved, points)
            previous, error = error, 1 - explained / energy
            # Momentum may overshoot: such a turn is the last, and does not count.
            if error <= previous:
                codes, dictionary = _rescaled(moved, found)
            if previous - error <= self.tol * max(error, 0.01):
                break
        within = float(points.square().sum(dtype=torch.float64))
        rest = float((points - dictionary.T @ codes).square().sum(dtype=torch.float64))
        self.components_ = (dictionary @ directions.T) * principal.scale
        self.codes_ = codes.T.contiguous()
        self.mean_ = principal.mean.to(principal.rows)
        self.error_ = (rest + max(energy - within, 0.0)) / energy
        self.n_iter_ = n_iter
        return self

    def _check(self, principal: Principal, init: SemiNMF | None) -> None:
        shape, k = tuple(principal.rows.shape), self.n_components
        if not 1 <= k <= min(shape):
            raise InputError(
                f"n_components must be between 1 and {min(shape)}, the smaller side of the {shape} rows, but is {k}"
            )
        if self.max_iter < 1:
            raise InputError(f"max_iter must be at least 1, but is {self.max_iter}")
        if init is not None:
            init._check_fitted()
        if init is not None and tuple(init.components_.shape) != (k, shape[1]):
            raise InputError(
                f"init must be a fit of {k} concepts in R^{shape[1]}, but has {init.components_.shape[0]} in "
                f"R^{init.components_.shape[1]}; start without it"
            )

    def transform(self, x: Any) -> Float[Tensor, "n k"]:
        """Codes of rows `x` for the fitted dictionary."""
        self._check_fitted()
        rows = as_rows(x).to(self.components_)
        if rows.shape[1] != self.components_.shape[1]:
            raise InputError(
                f"rows must have {self.components_.shape[1]} features, as those that were fitted, but have "
                f"{rows.shape[1]}; use the same site"
            )
        # Products of very small or large numbers would vanish or overflow; codes do not depend on the common scale.
        scale = unit_scale(self.components_)
        points = ((rows - self.mean_) / scale).T
        lengths = (self.components_ / scale).norm(dim=1)
        dictionary = normalize(self.components_ / scale, dim=1)
        codes = points.new_zeros(len(dictionary), points.shape[1])
        for _ in range(_TRANSFORM_ROUNDS):
            before, codes = codes, _improved_codes(codes, points, dictionary, _TRANSFORM_STEPS)
            if float((codes - before).norm()) <= 1e-5 * float(codes.norm()):
                break
        return (codes.T / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)).contiguous()

    def dominant(self, x: Any) -> Int[Tensor, "n"]:
        """The concept that adds most to each row."""
        lengths = self.components_.double().norm(dim=1)
        return (self.transform(x).double() * lengths).argmax(dim=1)

    def subspace(self) -> Subspace:
        """The span of the dictionary: the tangent proxy. Its rank is below k if concepts depend on each other."""
        self._check_fitted()
        # A concept's length is arbitrary (its codes undo it), so it must not decide the numerical rank.
        return Subspace.span(normalize(self.components_.double(), dim=1, eps=1e-300))

    def _check_fitted(self) -> None:
        if not hasattr(self, "components_"):
            raise InputError("this SemiNMF must be fitted first, but is not; call fit(rows)")


def semi_nmf(x: Any, rank: int, seed: int = 0) -> Subspace:
    """The tangent proxy: the span of a centred semi-NMF dictionary of `rank` concepts."""
    return SemiNMF(rank, seed=seed).fit(x).subspace()


def _sparse_start(points: Float[Tensor, "m n"], k: int, center: bool, seed: int) -> Float[Tensor, "k m"]:
    """The best of several attempts where concepts are few and attempts cheap."""
    make = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(points.shape[1], generator=make)[:_START_ROWS]
    some = points[:, chosen.to(points.device)].contiguous()
    attempts = []
    for _ in range(min(max(_START_CONCEPTS // k, 1), _START_ATTEMPTS)):
        dictionary = normalize(_extreme_points(points, k, center, make), dim=1)
        attempts.append(_sparse_attempt(some, dictionary))
    return min(attempts, key=lambda attempt: attempt[1])[0]


def _sparse_attempt(
    points: Float[Tensor, "m n"], dictionary: Float[Tensor, "k m"]
) -> tuple[Float[Tensor, "k m"], float]:
    """Alternate under a penalty on the codes that fades; the dictionary, and the penalised objective at the end."""
    codes = points.new_zeros(len(dictionary), points.shape[1])
    for turn in range(_START_TURNS):
        penalty = _PENALTY_FIRST * (_PENALTY_LAST / _PENALTY_FIRST) ** (turn / (_START_TURNS - 1))
        codes = _improved_codes(codes, points, dictionary, _START_STEPS, penalty)
        codes, dictionary = _rescaled(codes, _best_dictionary(codes, points)[0])
        unused = dictionary.square().sum(dim=1) == 0
        if unused.any():
            # A concept that died starts anew at the rows that the others fit worst.
            rest = (points - dictionary.T @ codes).square().sum(dim=0)
            dictionary[unused] = normalize(points[:, rest.topk(int(unused.sum())).indices].T, dim=1)
    rest = (points - dictionary.T @ codes).square().sum()
    return dictionary, float(rest / 2 + _PENALTY_LAST * codes.sum())


def _extreme_points(points: Float[Tensor, "m n"], k: int, center: bool, make: torch.Generator) -> Float[Tensor, "k m"]:
    """Each the furthest along a random direction orthogonal to those before: corners of a simplex, edges of a cone."""
    if center:
        flat = torch.cat([points[: k - 1], torch.ones_like(points[:1])]).T
    else:
        # Through the cone at a height of 1; points near its tip are mostly noise.
        height = points[0] if float(points[0].sum()) >= 0 else -points[0]
        points = points[:, height >= height[height > 0].median() / 2]
        flat = (points[:k] / points[0].abs()).T
    draws = torch.randn(k, k, generator=make, dtype=torch.float64).to(flat)
    basis = flat.new_zeros(k, 0)
    corners = []
    for draw in draws:
        furthest = (flat @ (draw - basis @ (basis.T @ draw))).abs().argmax()
        corners.append(points[:, furthest])
        beyond = flat[furthest] - basis @ (basis.T @ flat[furthest])
        basis = torch.cat([basis, normalize(beyond - basis @ (basis.T @ beyond), dim=0)[:, None]], dim=1)
    return torch.stack(corners)


def _improved_codes(
    codes: Float[Tensor, "k n"],
    points: Float[Tensor, "m n"],
    dictionary: Float[Tensor, "k m"],
    steps: int,
    penalty: float = 0.0,
) -> Float[Tensor, "k n"]:
    """Projected gradient steps with momentum, for all rows at once. The concepts must have length 1, or 0."""
    gram = dictionary @ dictionary.T
    steepest = float(torch.linalg.eigvalsh(gram)[-1]) or 1.0
    fits = (dictionary @ points).sub_(penalty).div_(steepest)
    keep = torch.eye(len(gram), dtype=gram.dtype, device=gram.device) - gram / steepest
    ahead, momentum = codes, 1.0
    for _ in range(steps):
        moved = torch.addmm(fits, keep, ahead).clamp_min_(0)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = torch.lerp(codes, moved, 1 + (momentum - 1) / following)
        codes, momentum = moved, following
    return codes


def _best_dictionary(codes: Float[Tensor, "k n"], points: Float[Tensor, "m n"]) -> tuple[Float[Tensor, "k m"], float]:
    """Least squares, and the energy it explains; a concept that no row uses gets a zero direction."""
    gram, fits = (codes @ codes.T).double(), (codes @ points.T).double()
    gram.diagonal().add_(1e-10 * gram.trace() / len(gram) + torch.finfo(torch.float64).tiny)
    dictionary = torch.linalg.solve(gram, fits)
    return dictionary.to(points), float((dictionary * fits).sum())


def _rescaled(
    codes: Float[Tensor, "k n"], dictionary: Float[Tensor, "k m"]
) -> tuple[Float[Tensor, "k n"], Float[Tensor, "k m"]]:
    """Both with concepts of length 1: the codes take the lengths, in place, so that a penalty sees them."""
    return codes.mul_(dictionary.norm(dim=1, keepdim=True)), normalize(dictionary, dim=1)
