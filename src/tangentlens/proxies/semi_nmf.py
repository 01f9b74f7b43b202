"""The tangent proxy: semi-NMF, which writes rows as non-negative mixtures of concepts, X - mean ~ Z D with Z >= 0."""

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

# The initial dictionary is fitted to this many rows, in this many iterations.
_START_ROWS, _START_TURNS = 1024, 40
# Meanwhile, the penalty on the codes falls from the first to the last of these.
_PENALTY_FIRST, _PENALTY_LAST = 0.3, 0.001
# The largest number of attempts at an initial dictionary; more than one is made only as long as all attempts together
# have at most this many concepts.
_START_ATTEMPTS, _START_CONCEPTS = 4, 16
# Gradient steps of the codes per update of the dictionary: for the initial dictionary, in the first iteration, in which
# codes begin at zero, and in later iterations.
_START_STEPS, _FIRST_STEPS, _STEPS = 6, 30, 16
# Sweeps over the concepts, one at a time, per update of the dictionary under a penalty that stays.
_UNIT_SWEEPS = 5
# Codes of new rows: the largest number of rounds, and the steps in each; momentum restarts with each round.
_TRANSFORM_ROUNDS, _TRANSFORM_STEPS = 40, 50
# Where only the span of the concepts counts, a fit may stop at this tolerance: until it converges, the span changes
# less than it does with another seed (docs/measures/alignment.md).
SPAN_TOL = 4e-3


class SemiNMF:
    """Semi-non-negative matrix factorisation of rows X: X - mean ~ Z D with codes Z >= 0 and a dictionary D.

    The rows are first reduced to their leading `k + 16` principal directions. Many dictionaries fit equally well, so
    the initial one decides between them. It starts from extreme rows, and alternating steps under a fading penalty on
    the codes then favour the dictionary with the sparsest codes. From there codes (by a few gradient steps) and
    dictionary (exactly) are updated in turn, without penalty unless `sparsity` is given, until the objective converges;
    it never increases (docs/measures/alignment.md).

    Args:
        n_components: Number of concepts, k.
        center: Whether to subtract the mean first: tangent vectors are differences of rows.
        max_iter: Largest number of iterations.
        tol: Stop when an iteration lowers the relative error by less than this fraction of it, or of the error that a
            hundredth of the energy of rows of median length would be, if that is larger.
        seed: Seed of the initial dictionary.
        sparsity: Weight of a penalty on the codes that stays, 0 for none. With concepts of length 1 and rows of root
            mean square length 1, the fit minimises |X - mean - Z D|^2 / 2 + sparsity * sum(Z): a concept is used only
            where it explains more than `sparsity` times the typical length of a row.

    Attributes:
        components_: The dictionary D, `(k, d)`; its rows are the concepts.
        codes_: The codes Z of the fitted rows, `(n, k)`, none below 0.
        mean_: The mean that was subtracted, `(d,)`; 0 if not centred.
        scale_: The root mean square length of X - mean.
        error_: The relative error |X - mean - Z D|^2 / |X - mean|^2.
        n_iter_: Number of iterations done.

    >>> rows = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    >>> fit = SemiNMF(n_components=3).fit(rows)
    >>> fit.components_.shape, bool((fit.codes_ >= 0).all()), fit.subspace()
    (torch.Size([3, 8]), True, Subspace(rank=3, dim=8))
    """

    components_: Float[Tensor, "k d"]
    codes_: Float[Tensor, "n k"]
    mean_: Float[Tensor, "d"]
    scale_: float
    error_: float
    n_iter_: int

    def __init__(
        self,
        n_components: int,
        center: bool = True,
        max_iter: int = 200,
        tol: float = 2e-4,
        seed: int = 0,
        sparsity: float = 0.0,
    ) -> None:
        self.n_components = n_components
        self.center = center
        self.max_iter = max_iter
        self.tol = tol
        self.seed = seed
        self.sparsity = sparsity

    def fit(self, x: Any, init: SemiNMF | None = None) -> SemiNMF:
        """Fit the dictionary and the codes to rows, and return this object.

        Args:
            x: Rows `(n, d)`, or their `Principal`.
            init: An earlier fit of as many concepts, whose dictionary is the initial one; concepts keep their order.
        """
        principal = Principal.of(x, self.center)
        self._check(principal, init)
        directions, coordinates = principal.leading(self.n_components + SPARE)
        points = coordinates.T.contiguous()
        if init is None:
            dictionary = _sparse_start(points, self.n_components, self.center, self.seed, self.sparsity)
        else:
            before = init.components_.to(directions) / unit_scale(init.components_)
            dictionary = normalize(before @ directions, dim=1)
        codes = points.new_zeros(self.n_components, points.shape[1])
        energy = float(points.shape[1])
        # A few very long rows have most of the energy. An error that is small beside it may be all of the other rows.
        least = 0.01 * min(float(points.square().sum(dim=0).median()), 1.0)
        objective = math.inf
        for n_iter in range(1, self.max_iter + 1):
            # Codes begin at zero, and need more steps before the first update of the dictionary.
            moved = _improved_codes(codes, points, dictionary, _STEPS if n_iter > 1 else _FIRST_STEPS, self.sparsity)
            if self.sparsity:
                solved, explained = _best_unit_dictionary(moved, points, dictionary)
                explained -= 2 * self.sparsity * float(moved.sum(dtype=torch.float64))
            else:
                solved, solves = _best_dictionary(moved, points)
                explained = float(solves)
            # Without penalty, this is the relative error.
            previous, objective = objective, 1 - explained / energy
            # Momentum may overshoot: such an iteration is the last, and its result is discarded.
            if objective <= previous:
                codes, dictionary = _rescaled(moved, solved)
            if previous - objective <= self.tol * max(objective, least):
                break
        if self.sparsity:
            dictionary[codes.sum(dim=1) == 0] = 0
        within = float(points.square().sum(dtype=torch.float64))
        residual = float((points - dictionary.T @ codes).square().sum(dtype=torch.float64))
        self.components_ = (dictionary @ directions.T) * principal.scale
        self.codes_ = codes.T.contiguous()
        self.mean_ = principal.mean.to(principal.rows)
        self.scale_ = principal.scale
        self.error_ = (residual + max(energy - within, 0.0)) / energy
        self.n_iter_ = n_iter
        return self

    def _check(self, principal: Principal, init: SemiNMF | None) -> None:
        """Raise an error if the settings or the initial fit do not suit the rows."""
        shape, k = tuple(principal.rows.shape), self.n_components
        if not 1 <= k <= min(shape):
            raise InputError(
                f"n_components must be between 1 and {min(shape)}, the smaller side of the {shape} rows, but is {k}"
            )
        if self.max_iter < 1:
            raise InputError(f"max_iter must be at least 1, but is {self.max_iter}")
        if not 0 <= self.sparsity < math.inf:
            raise InputError(
                f"sparsity must be a number from 0 on, but is {self.sparsity}; 0 is no penalty, and 0.1 a strong one"
            )
        if init is not None:
            init._check_fitted()
        if init is not None and tuple(init.components_.shape) != (k, shape[1]):
            raise InputError(
                f"init must be a fit of {k} concepts in R^{shape[1]}, but has {init.components_.shape[0]} in "
                f"R^{init.components_.shape[1]}; start without it"
            )

    def transform(self, x: Any) -> Float[Tensor, "n k"]:
        """Return the codes `(n, k)` of rows `x` `(n, d)` for the fitted dictionary, none below 0."""
        self._check_fitted()
        rows = as_rows(x).to(self.components_)
        if rows.shape[1] != self.components_.shape[1]:
            raise InputError(
                f"rows must have {self.components_.shape[1]} features, as those that were fitted, but have "
                f"{rows.shape[1]}; use the same site"
            )
        # Products of very small or large numbers would vanish or overflow. Codes do not depend on a common scale.
        scale = unit_scale(self.components_)
        points = ((rows - self.mean_) / scale).T
        lengths = (self.components_ / scale).norm(dim=1)
        dictionary = normalize(self.components_ / scale, dim=1)
        codes = points.new_zeros(len(dictionary), points.shape[1])
        penalty = self.sparsity * self.scale_ / scale
        for _ in range(_TRANSFORM_ROUNDS):
            before, codes = codes, _improved_codes(codes, points, dictionary, _TRANSFORM_STEPS, penalty)
            if float((codes - before).norm()) <= 1e-5 * float(codes.norm()):
                break
        return (codes.T / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)).contiguous()

    def contributions(self, x: Any) -> Float[Tensor, "n k"]:
        """Return the length of what each concept contributes to each row of `x` `(n, d)`: its code times its length."""
        return self.transform(x).double() * self.components_.double().norm(dim=1)

    def dominant(self, x: Any) -> Int[Tensor, "n"]:
        """Return the number (0 ... k - 1) of the concept that contributes most to each row of `x` `(n, d)`."""
        return self.contributions(x).argmax(dim=1)

    def subspace(self) -> Subspace:
        """Return the span of the dictionary, the tangent proxy; its rank is below k if concepts are dependent."""
        self._check_fitted()
        # The length of a concept is arbitrary, as its codes compensate, so it must not influence the numerical rank.
        return Subspace.span(normalize(self.components_.double(), dim=1, eps=1e-300))

    def _check_fitted(self) -> None:
        """Raise an error before the first fit."""
        if not hasattr(self, "components_"):
            raise InputError("this SemiNMF must be fitted first, but is not; call fit(rows)")


def semi_nmf(x: Any, rank: int, seed: int = 0) -> Subspace:
    """Return the tangent proxy, the span of the dictionary of a centred semi-NMF.

    Args:
        x: Rows `(n, d)`, or their `Principal`.
        rank: Number of concepts.
        seed: Seed of the initial dictionary.
    """
    return SemiNMF(rank, seed=seed, tol=SPAN_TOL).fit(x).subspace()


def _sparse_start(
    points: Float[Tensor, "m n"], k: int, center: bool, seed: int, sparsity: float
) -> Float[Tensor, "k m"]:
    """Return an initial dictionary: the best of several attempts if concepts are few, which makes attempts cheap.

    Attempts are many small steps, which take longer on a GPU, so the CPU makes them.
    """
    make = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(points.shape[1], generator=make)[:_START_ROWS]
    some = points[:, chosen.to(points.device)].contiguous().cpu()
    n_attempts = min(max(_START_CONCEPTS // k, 1), _START_ATTEMPTS)
    corners = torch.stack([_extreme_points(points, k, center, make) for _ in range(n_attempts)])
    return _sparsest(some, normalize(corners, dim=2).cpu(), sparsity).to(points.device)


def _sparsest(
    points: Float[Tensor, "m n"], dictionaries: Float[Tensor, "attempts k m"], sparsity: float
) -> Float[Tensor, "k m"]:
    """Fit all dictionaries under a fading penalty on the codes; return that with the least penalised objective.

    The penalty fades no further than to `sparsity`, with which the fit continues. Attempts are one computation: each
    is too small to keep the processor busy.
    """
    first, last = max(_PENALTY_FIRST, sparsity), max(_PENALTY_LAST, sparsity)
    codes = points.new_zeros(*dictionaries.shape[:2], points.shape[1])
    for turn in range(_START_TURNS):
        penalty = first * (last / first) ** (turn / (_START_TURNS - 1))
        codes = _improved_codes(codes, points, dictionaries, _START_STEPS, penalty)
        codes, dictionaries = _rescaled(codes, _best_dictionary(codes, points)[0])
        unused = dictionaries.square().sum(dim=2) == 0
        for attempt in unused.any(dim=1).nonzero()[:, 0].tolist():
            # A concept that no row uses is replaced by a row that the others fit worst.
            errors = (points - dictionaries[attempt].T @ codes[attempt]).square().sum(dim=0)
            worst = errors.topk(int(unused[attempt].sum())).indices
            dictionaries[attempt, unused[attempt]] = normalize(points[:, worst].T, dim=1)
    errors = (points - dictionaries.mT @ codes).square().sum(dim=(1, 2))
    return dictionaries[(errors / 2 + last * codes.sum(dim=(1, 2))).argmin()]


def _extreme_points(points: Float[Tensor, "m n"], k: int, center: bool, make: torch.Generator) -> Float[Tensor, "k m"]:
    """Return `k` extreme points: corners of a simplex if centred, else edges of a cone.

    Each is the farthest along a random direction that is orthogonal to the points before.
    """
    if center:
        flat = torch.cat([points[: k - 1], torch.ones_like(points[:1])]).T
    else:
        # The cone is cut at height 1 along the first direction. Points near its tip are left out as mostly noise.
        height = points[0] if float(points[0].sum()) >= 0 else -points[0]
        points = points[:, height >= height[height > 0].median() / 2]
        flat = (points[:k] / points[0].abs()).T
    draws = torch.randn(k, k, generator=make, dtype=torch.float64).to(flat)
    basis = flat.new_zeros(k, 0)
    corners = []
    for draw in draws:
        # `points[:, farthest]` would read that number from the device, and wait for it.
        farthest = (flat @ (draw - basis @ (basis.T @ draw))).abs().argmax(dim=0, keepdim=True)
        corners.append(points.index_select(1, farthest)[:, 0])
        corner = flat.index_select(0, farthest)[0]
        beyond = corner - basis @ (basis.T @ corner)
        basis = torch.cat([basis, normalize(beyond - basis @ (basis.T @ beyond), dim=0)[:, None]], dim=1)
    return torch.stack(corners)


def _improved_codes(
    codes: Float[Tensor, "*attempts k n"],
    points: Float[Tensor, "m n"],
    dictionary: Float[Tensor, "*attempts k m"],
    steps: int,
    penalty: float = 0.0,
) -> Float[Tensor, "*attempts k n"]:
    """Return codes after projected gradient steps with momentum; concepts must have length 1 or 0."""
    gram = dictionary @ dictionary.mT
    steepest = torch.linalg.eigvalsh(gram)[..., -1:, None].clamp_min(torch.finfo(gram.dtype).tiny)
    fits = (dictionary @ points).sub_(penalty).div_(steepest)
    keep = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device) - gram / steepest
    multiply_add = torch.addmm if codes.ndim == 2 else torch.baddbmm
    ahead, momentum = codes, 1.0
    for _ in range(steps):
        moved = multiply_add(fits, keep, ahead).clamp_min_(0)
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = torch.lerp(codes, moved, 1 + (momentum - 1) / next_momentum)
        codes, momentum = moved, next_momentum
    return codes


def _best_dictionary(
    codes: Float[Tensor, "*attempts k n"], points: Float[Tensor, "m n"]
) -> tuple[Float[Tensor, "*attempts k m"], Float[Tensor, "*attempts"]]:
    """Return the least squares dictionary and the energy it explains; a concept that no row uses becomes zero."""
    gram, fits = (codes @ codes.mT).double(), (codes @ points.T).double()
    size = gram.diagonal(dim1=-2, dim2=-1).mean(dim=-1, keepdim=True)
    gram.diagonal(dim1=-2, dim2=-1).add_(1e-10 * size + torch.finfo(torch.float64).tiny)
    dictionary = torch.linalg.solve(gram, fits)
    return dictionary.to(points), (dictionary * fits).sum(dim=(-2, -1))


def _best_unit_dictionary(
    codes: Float[Tensor, "k n"], points: Float[Tensor, "m n"], dictionary: Float[Tensor, "k m"]
) -> tuple[Float[Tensor, "k m"], float]:
    """Return a better dictionary of concepts of length 1 and the energy it explains; unused concepts stay as they are.

    Under a penalty on the codes, free lengths would be no gain: codes would have to grow with them. Each concept in
    turn becomes the best one of length 1 given all others, so that the error never rises.
    """
    gram, fits, dictionary = (codes @ codes.T).double(), (codes @ points.T).double(), dictionary.double()
    for _ in range(_UNIT_SWEEPS):
        for k in gram.diagonal().nonzero()[:, 0].tolist():
            rest = fits[k] - gram[k] @ dictionary + gram[k, k] * dictionary[k]
            dictionary[k] = normalize(rest, dim=0) if rest.any() else dictionary[k]
    explained = 2 * (dictionary * fits).sum() - ((gram @ dictionary) * dictionary).sum()
    return dictionary.to(points), float(explained)


def _rescaled(
    codes: Float[Tensor, "*attempts k n"], dictionary: Float[Tensor, "*attempts k m"]
) -> tuple[Float[Tensor, "*attempts k n"], Float[Tensor, "*attempts k m"]]:
    """Return codes and dictionary with concepts of length 1; codes are multiplied by the lengths, in place."""
    return codes.mul_(dictionary.norm(dim=-1, keepdim=True)), normalize(dictionary, dim=-1)
