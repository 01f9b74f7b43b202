"""Terms to add to a loss that change the geometry of representations: each takes rows and returns a number.

A term takes rows `(n, d)` and returns a scalar that a gradient flows through; the smaller it is, the more isotropic or
the flatter the rows are. None depends on the scale of the rows, and none needs an eigendecomposition. Rows that do not
determine a term, such as a single one or equal ones, give 0 and no gradient: a training must not end because of a
batch. `Penalty` applies a term to the activations of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.errors import InputError, check_name, check_whole

Term = Callable[[Tensor], Float[Tensor, ""]]

# Rows whose variance is a smaller part of their mean square differ by rounding alone.
_EQUAL = 1e-10


def cosine(rows: Tensor) -> Float[Tensor, ""]:
    """Return the mean cosine of distinct rows, from -1 / (n - 1) to 1. Rows of zeros are left out.

    >>> cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
    tensor(0.3333)
    """
    x = _at_unit_scale(rows)
    lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    pointing = lengths > 0
    directions = torch.where(pointing, x / lengths.where(pointing, 1.0), 0.0)
    n = pointing.sum()
    return (directions.sum(dim=0).square().sum() - n) / (n * (n - 1)).clamp_min(1)


def spectral(rows: Tensor) -> Float[Tensor, ""]:
    """Return 1 / participation ratio of the covariance C, tr C^2 / (tr C)^2: 1 / d if isotropic, 1 if on a line.

    Both traces are estimated without bias, so that few rows do not look more anisotropic than many: as means over
    quadruples of distinct rows, in closed form (docs/regularisers.md). At least four rows are needed.

    >>> round(float(spectral(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [1.0, 0.0], [5.0, 0.0]]))), 5)
    1.0
    """
    n = len(rows)
    if n < 4:
        return _nothing(rows)
    x, differ = _centred(rows)
    lengths = x.square().sum(dim=1)
    trace = lengths.sum() / (n - 1)
    square = (x @ x.T).square().sum() / (n - 1) ** 2
    quartic = n * lengths.square().sum() / (n - 1)
    # Both share a factor that cancels.
    of_square = (n - 1) * (n - 2) * square + trace.square() - quartic
    squared = 2 * square + (n * n - 3 * n + 1) * trace.square() - quartic
    return torch.where(differ, of_square / squared.where(differ, 1.0), 0.0)


@dataclass
class IsoScore:
    """1 - IsoScore* of the rows, the regulariser I-STAR of Rudman and Eickhoff: from 0 if isotropic to 1 if on a line.

    A batch has fewer rows than features, so its covariance is mixed with one of more rows. The authors compute that one
    once an epoch; here it is a running mean over the batches before. IsoScore is (participation ratio - 1) / (d - 1),
    which needs no singular values.

    Args:
        shrinkage: The weight of the running covariance, from 0 (this batch alone) to below 1.
        memory: The part of the running covariance that each batch leaves as it is, from 0 to below 1.
    """

    shrinkage: float = 0.2
    memory: float = 0.9
    running: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("shrinkage", "memory"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be from 0 to below 1, but is {getattr(self, name)}")

    def __call__(self, rows: Tensor) -> Float[Tensor, ""]:
        """Return the term for the rows of a batch, and add them to the running covariance."""
        n, d = rows.shape
        if n < 2 or d < 2:
            return _nothing(rows)
        x, differ = _centred(rows)
        # At trace 1, because what is mixed must have one scale, and the scale of activations changes in training.
        trace = x.square().sum()
        covariance = x.T @ x / trace.where(differ, 1.0)
        seen, mixed = covariance.detach(), covariance
        if self.running is None:
            self.running = seen
        else:
            before = self.running.to(seen)
            mixed = torch.lerp(covariance, before, self.shrinkage)
            self.running = torch.where(differ, torch.lerp(seen, before, self.memory), before)
        ratio = mixed.trace().square() / mixed.square().sum().where(differ, 1.0)
        return torch.where(differ, 1 - (ratio - 1) / (d - 1), 0.0)


@dataclass(frozen=True)
class Bending:
    """How far rows lie from the flat through their neighbours: squared distance over squared distance of neighbours.

    Near a point of a manifold, x(u) = p + T u + II(u, u) / 2 + ... A flat manifold contains every point in the affine
    span of enough neighbours, however unevenly these lie around it; on a curved one the second term takes the point out
    of it, by a square that grows with that of the curvature. The distance is 1 / (1' G^-1 1), where G holds the inner
    products of the displacements to the neighbours. Noise counts as well.

    Args:
        neighbours: How many neighbours span the flat. One more than the manifold has dimensions is right: fewer miss
            tangent directions, which then count as if they were curvature, and many more span normal ones too.
        anchors: The number of rows whose neighbours are looked at, at most.
        ridge: What is added to the diagonal of G, relative to its mean: neighbours are weighted evenly where it costs
            no more than this.
    """

    neighbours: int = 16
    anchors: int = 128
    ridge: float = 1e-3

    def __post_init__(self) -> None:
        check_whole(2, neighbours=self.neighbours)
        check_whole(1, anchors=self.anchors)
        if not self.ridge > 0:
            raise InputError(f"ridge must be above 0, but is {self.ridge}; 1e-3 is usual")

    def __call__(self, rows: Tensor) -> Float[Tensor, ""]:
        """Return the term for the rows of a batch, which must be more than the neighbours; else it is 0."""
        n, k = len(rows), self.neighbours
        if n <= k:
            return _nothing(rows)
        x, differ = _centred(rows)
        # The rows of a batch come in the order of the text, so that the first ones would be of few sequences.
        places = torch.linspace(0, n - 1, min(self.anchors, n), device=x.device).long()
        steps = x[_nearest(x.detach(), places, k)] - x[places, None]
        products = steps @ steps.mT
        sizes = products.diagonal(dim1=1, dim2=2).mean(dim=1)
        # An anchor that equals all of its neighbours says nothing.
        apart = differ & (sizes > _EQUAL)
        relative = torch.where(apart[:, None, None], products / sizes.where(apart, 1.0)[:, None, None], 0.0)
        relative = relative + self.ridge * torch.eye(k, dtype=x.dtype, device=x.device)
        ones = x.new_ones(len(places), k, 1)
        distances = 1 / torch.linalg.solve(relative, ones).sum(dim=(1, 2))
        return torch.where(apart, distances, 0.0).sum() / apart.sum().clamp_min(1)


# Terms by name, as studies and plans write them; those that remember something are made anew for each site.
TERMS: dict[str, Callable[[], Term]] = {
    "cosine": lambda: cosine,
    "spectral": lambda: spectral,
    "isoscore": IsoScore,
    "bending": Bending,
}


def named_term(name: str) -> Term:
    """Return a new term of a name."""
    check_name("a regulariser", name, TERMS)
    return TERMS[name]()


def _at_unit_scale(rows: Tensor) -> Float[Tensor, "n d"]:
    """Return rows in at least fp32, divided by their largest number: squares neither overflow nor vanish.

    Rows below the smallest normal number of their format become 0: what is left of their digits says nothing, and their
    gradient would not fit into it.
    """
    if rows.ndim != 2:
        raise InputError(f"rows must have the shape (n, d), but have {tuple(rows.shape)}; flatten batch and length")
    x = rows if rows.dtype == torch.float64 else rows.float()
    if not len(x):
        return x
    largest = x.detach().abs().amax()
    return x / largest.where(largest >= torch.finfo(rows.dtype).tiny, torch.inf)


def _centred(rows: Tensor) -> tuple[Float[Tensor, "n d"], Bool[Tensor, ""]]:
    """Return rows around their mean, at unit scale, and whether they differ by more than rounding."""
    x = _at_unit_scale(rows)
    centred = x - x.mean(dim=0)
    differ = centred.detach().square().sum() > _EQUAL * x.detach().square().sum()
    return torch.where(differ, _at_unit_scale(centred), 0.0), differ


def _nearest(x: Float[Tensor, "n d"], places: Int[Tensor, "a"], k: int) -> Int[Tensor, "a k"]:
    """Return the `k` nearest neighbours of the rows at these places, themselves left out."""
    distances = torch.cdist(x[places], x)
    distances.scatter_(1, places[:, None], torch.inf)
    return distances.topk(k, dim=1, largest=False).indices


def _nothing(rows: Tensor) -> Float[Tensor, ""]:
    """Return 0 through which a gradient of 0 flows."""
    return _at_unit_scale(rows).sum() * 0.0
