"""Every measure of a cloud of activations, in one table: what a profile, a lens and a report show.

A new measure is a file with its function and a line in `MEASURES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.curvature.local_geometry import local_geometry
from tangentlens.geometry.dimension.entropy import NEIGHBOUR, entropy_at
from tangentlens.geometry.dimension.intrinsic import Estimation
from tangentlens.geometry.dimension.neighbourhoods import Neighbourhoods
from tangentlens.geometry.massive import THRESHOLD, MassiveRows, massive_by_length, massive_rows
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.neighbours import distinct_rows
from tangentlens.geometry.spectrum.alpha_req import alpha_req
from tangentlens.geometry.spectrum.anisotropy import anisotropy, anisotropy_replicates
from tangentlens.geometry.spectrum.cosine import contributions, sums_of_directions
from tangentlens.geometry.spectrum.direction_counts import (
    effective_rank,
    entropy_rank,
    isoscore,
    participation_ratio,
    rankme,
    stable_rank,
)
from tangentlens.geometry.spectrum.local_anisotropy import LocalAnisotropy, local_anisotropy
from tangentlens.geometry.spectrum.partition import partition_isotropy
from tangentlens.lazy import cached_property
from tangentlens.statistics.influence import held_by_top
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import share_jackknife

# The variant of measures that use only the first occurrence of each token type.
ONE_PER_TYPE = "one_per_type"
# How many neighbours TwoNN needs.
_FOR_TWONN = 2
# Tangent planes for curvature: of one dimension and of as many rows everywhere, so that sites can be compared.
_PATCHES = {"n_anchors": 64, "k": 128, "dimension": 6}
# Rows that are looked at together: few enough to fit into a cache.
_PART = 512


@dataclass(frozen=True, eq=False)
class Cloud:
    """The activations of one site, with everything that several measures need, computed once.

    Attributes:
        rows: Activations `(n, d)`.
        tokens: The token id of each row.
        sequences: The sequence id of each row, for intervals over sequences.
        threshold: How many times as long as the median row a row must be to count as massive.
        whole: The cloud that these are the rows of without massive ones, if they are.
    """

    rows: Float[Tensor, "n d"]
    tokens: Int[Tensor, "n"]
    sequences: Int[Tensor, "n"]
    threshold: float = THRESHOLD
    whole: Cloud | None = None

    @cached_property
    def massive(self) -> MassiveRows:
        """Which rows are many times as long as the median row."""
        if self.whole is None:
            return massive_rows(self.rows, self.threshold)
        return massive_by_length(self.whole.massive.ratios[~self.whole.massive.mask], self.threshold)

    def without_massive(self) -> Cloud:
        """Return the cloud without its massive rows; what both need is computed once."""
        keep = ~self.massive.mask
        return Cloud(self._not_massive, self.tokens[keep], self.sequences[keep], self.threshold, whole=self)

    @cached_property
    def _not_massive(self) -> Float[Tensor, "m d"]:
        return self.rows[~self.massive.mask]

    @cached_property
    def moments(self) -> Moments:
        """Count, mean and second moment of the rows."""
        if self.whole is not None:
            return self.whole._moments_without_massive
        if not self.massive.count:
            return Moments.of(self.rows)
        return Moments.of(self.rows[self.massive.mask]).merge(self._moments_without_massive)

    @cached_property
    def _moments_without_massive(self) -> Moments:
        return Moments.of(self._not_massive)

    @cached_property
    def neighbourhoods(self) -> Neighbourhoods:
        """The nearest neighbours of each row, for dimension, entropy and duplicates."""
        if self.whole is None:
            return Neighbourhoods.of(self.rows, NEIGHBOUR)
        return self.whole.neighbourhoods.among(~self.whole.massive.mask)

    @property
    def held_of_anisotropy(self) -> float:
        """The part of the variance along the leading direction that the top 1% of rows hold."""
        return held_by_top(self._spread[0])

    @property
    def held_of_variance(self) -> float:
        """The part of the total variance that the top 1% of rows hold."""
        return held_by_top(self._spread[1])

    @cached_property
    def _spread(self) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """The squares of each row around the mean: along the leading direction, and along all directions."""
        center, leader = self.moments.mean.to(self.rows), self.moments.leading_direction().to(self.rows)
        along, lengths = [], []
        # Few at a time, because a copy of all rows would take longer.
        for part in self.rows.split(_PART):
            centred = part - center
            along.append(centred @ leader)
            lengths.append(torch.linalg.vector_norm(centred, dim=1))
        return torch.cat(along).square(), torch.cat(lengths).square()

    @cached_property
    def types(self) -> Int[Tensor, "t"]:
        """The first row of each token type. Occurrences of one token are mostly each other's neighbours."""
        return distinct_rows(self.tokens[:, None].double())

    @cached_property
    def _neighbourhoods_of_types(self) -> Neighbourhoods:
        if self.whole is None:
            return self._among_first_rows(self.types)
        return self.whole._among_first_rows((~self.whole.massive.mask).nonzero()[:, 0][self.types])

    def _among_first_rows(self, which: Int[Tensor, "t"]) -> Neighbourhoods:
        """Return the neighbourhoods in these of all rows, the first of each token type with or without massive rows."""
        rows, around = self._first_rows
        return around.among(torch.isin(rows, which))

    @cached_property
    def _first_rows(self) -> tuple[Int[Tensor, "m"], Neighbourhoods]:
        """The first rows of each token type, with massive rows or without, which are searched once for both."""
        kept = (~self.massive.mask).nonzero()[:, 0]
        without = kept[distinct_rows(self.tokens[kept, None].double())]
        rows = torch.cat([self.types, without]).unique()
        mask = torch.zeros(len(self.rows), dtype=torch.bool, device=rows.device)
        mask[rows] = True
        return rows, self.neighbourhoods.among(mask, _FOR_TWONN)

    @cached_property
    def dimension(self) -> Estimation:
        """The intrinsic dimension of all rows."""
        return Estimation.of(self.neighbourhoods)

    @cached_property
    def dimension_of_types(self) -> Estimation:
        """The intrinsic dimension with one row per token type."""
        return Estimation.of(self._neighbourhoods_of_types)

    @cached_property
    def clusters(self) -> LocalAnisotropy:
        """The anisotropy inside clusters."""
        return local_anisotropy(self.rows)

    @cached_property
    def cosines(self) -> Float[Tensor, "d"]:
        """What each coordinate adds to the mean cosine."""
        return contributions(self._directions, len(self.rows))

    @cached_property
    def _directions(self) -> Float[Tensor, "2 d"]:
        if self.whole is None:
            return sums_of_directions(self.rows)
        return self.whole._directions - sums_of_directions(self.whole.rows[self.whole.massive.mask])


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a single batch says of a measure.

    Attributes:
        interval: The value with its interval over the batch's own sequences, tokens or types.
        n: The number of rows behind it.
        replicates: The value, then the value without each group of sequences, if it has such replicates. A mean over
            sites needs them.
    """

    interval: Interval
    n: int
    replicates: Float[Tensor, "g_plus_1"] | None = None


@dataclass(frozen=True)
class Measure:
    """One measure of activations.

    Attributes:
        name: The metric's name in records.
        of: The value, given a cloud.
        label: What people read on axes and in tables.
        variant: The variant's name in records, if there are several of one metric.
        unit: The unit, if there is one.
        log: Whether it is drawn on a logarithmic axis.
        shown: Where a report shows it: in the 'table' and figures, in a 'figure' only, or not at all ('records').
        in_lens: Whether it is cheap enough to be measured on every due step of a training.
        estimate: The value from a single batch, with an interval if it has one; None from it means that there is none.
        decided_by: The variant of `held_by_top` that says whether a few rows decide this measure; empty if they cannot.
        costly: Whether it takes much longer than others, so that a profile measures it only if asked.
        beside: The name of a measure, or of what decides it, with which this one always comes: it says how far that is
            to be trusted. 'every' stands for all measures.
    """

    name: str
    of: Callable[[Cloud], float]
    label: str
    variant: str = ""
    unit: str = ""
    log: bool = False
    shown: Literal["table", "figure", "records"] = "figure"
    in_lens: bool = False
    estimate: Callable[[Cloud], Estimate | float | None] | None = None
    decided_by: str = ""
    costly: bool = False
    beside: str = ""

    @property
    def key(self) -> str:
        """The name with its variant: `metric` or `metric:variant`."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


def _anisotropy(cloud: Cloud) -> Estimate | float:
    if bool((cloud.sequences == cloud.sequences[0]).all()):
        # There is no interval over a single sequence.
        return anisotropy(cloud.moments)
    replicates = anisotropy_replicates(cloud.rows, cloud.sequences, covariance=cloud.moments.covariance())
    return Estimate(share_jackknife(replicates), len(cloud.rows), replicates)


def _dimension(cloud: Cloud) -> Estimate:
    return _of_dimension(cloud.dimension, over="tokens")


def _dimension_of_types(cloud: Cloud) -> Estimate | None:
    return _of_dimension(cloud.dimension_of_types, over="types") if len(cloud.types) >= 3 else None


def _misfit_of_types(cloud: Cloud) -> float | None:
    return cloud.dimension_of_types.misfit if len(cloud.types) >= 3 else None


def _trouble_of_types(cloud: Cloud) -> float | None:
    return float(cloud.dimension_of_types.is_doubtful) if len(cloud.types) >= 3 else None


def _of_dimension(dimension: Estimation, over: str) -> Estimate:
    found = dimension.result()
    return Estimate(Interval(found.value, found.ci_low, found.ci_high, over), found.n_used)


def _visible_curvature(cloud: Cloud) -> float:
    return local_geometry(cloud.rows, **_PATCHES).visible_curvature.value


# fmt: off
MEASURES = (
    Measure("anisotropy", lambda cloud: anisotropy(cloud.moments), "anisotropy",
            shown="table", in_lens=True, estimate=_anisotropy, decided_by="anisotropy"),
    Measure("mean_cosine", lambda cloud: float(cloud.cosines.sum()), "mean cosine", shown="table"),
    Measure("intrinsic_dimension", lambda cloud: cloud.dimension.value, "dimension",
            log=True, shown="table", in_lens=True, estimate=_dimension),
    Measure("intrinsic_dimension", lambda cloud: cloud.dimension_of_types.value, "dimension of types",
            variant=ONE_PER_TYPE, log=True, shown="table", in_lens=True, estimate=_dimension_of_types),
    Measure("manifold_entropy", lambda cloud: entropy_at(cloud.neighbourhoods, cloud.dimension.value),
            "entropy", unit="nats", shown="table"),
    Measure("effective_rank", lambda cloud: effective_rank(cloud.moments), "effective rank", decided_by="variance"),
    Measure("isoscore", lambda cloud: isoscore(cloud.moments), "IsoScore", decided_by="variance"),
    Measure("local_anisotropy", lambda cloud: cloud.clusters.value, "anisotropy inside clusters", costly=True),
    Measure("local_anisotropy", lambda cloud: cloud.clusters.matched, "anisotropy of as many random rows",
            variant="matched", decided_by="variance", costly=True),
    Measure("partition_isotropy", lambda cloud: partition_isotropy(cloud.rows), "partition isotropy", shown="records",
            costly=True),
    Measure("visible_curvature", _visible_curvature, "visible curvature", shown="records", costly=True),
    Measure("participation_ratio", lambda cloud: participation_ratio(cloud.moments), "participation ratio",
            shown="records", decided_by="variance"),
    Measure("entropy_rank", lambda cloud: entropy_rank(cloud.moments), "entropy rank", shown="records",
            decided_by="variance"),
    Measure("rankme", lambda cloud: rankme(cloud.moments), "RankMe", shown="records", decided_by="variance",
            costly=True),
    Measure("stable_rank", lambda cloud: stable_rank(cloud.moments), "stable rank", shown="records",
            decided_by="variance"),
    Measure("alpha_req", lambda cloud: alpha_req(cloud.moments), "alpha-ReQ", shown="records", decided_by="variance"),
    Measure("rogue_dimensions", lambda cloud: float(cloud.cosines.amax() / cloud.cosines.sum()),
            "largest share of one coordinate in the mean cosine", shown="records"),
    Measure("duplicates", lambda cloud: float(cloud.dimension.around.n_duplicates), "duplicate rows",
            shown="records", in_lens=True, beside="intrinsic_dimension"),
    Measure("massive_rows", lambda cloud: float(cloud.massive.count), "massive rows", shown="records", in_lens=True,
            beside="every"),
    Measure("massive_threshold", lambda cloud: cloud.threshold, "length from which a row is massive, over the median",
            shown="records", in_lens=True, beside="every"),
    Measure("massive_ratio", lambda cloud: cloud.massive.largest, "length of the longest row over the median",
            shown="records", in_lens=True, beside="every"),
    Measure("held_by_top", lambda cloud: cloud.held_of_anisotropy,
            "part of the anisotropy that the top 1% of rows hold", variant="anisotropy", shown="records", in_lens=True,
            beside="anisotropy"),
    Measure("held_by_top", lambda cloud: cloud.held_of_variance,
            "part of the variance that the top 1% of rows hold", variant="variance", shown="records", in_lens=True,
            beside="variance"),
    Measure("dimension_misfit", lambda cloud: cloud.dimension.misfit,
            "distance of ratios from the law of the dimension", shown="records", in_lens=True,
            beside="intrinsic_dimension"),
    Measure("dimension_misfit", lambda cloud: cloud.dimension_of_types.misfit,
            "distance of ratios from the law of the dimension of types",
            variant=ONE_PER_TYPE, shown="records", in_lens=True, estimate=_misfit_of_types,
            beside="intrinsic_dimension"),
    Measure("dimension_trouble", lambda cloud: float(cloud.dimension.is_doubtful),
            "1 if the dimension is not to be trusted", shown="records", in_lens=True, beside="intrinsic_dimension"),
    Measure("dimension_trouble", lambda cloud: float(cloud.dimension_of_types.is_doubtful),
            "1 if the dimension of types is not to be trusted",
            variant=ONE_PER_TYPE, shown="records", in_lens=True, estimate=_trouble_of_types,
            beside="intrinsic_dimension"),
)
# fmt: on


# The names that a profile may be asked for, and those that it measures if it is not asked.
NAMES = tuple(dict.fromkeys(measure.name for measure in MEASURES if not measure.beside))
USUAL = tuple(dict.fromkeys(measure.name for measure in MEASURES if not measure.beside and not measure.costly))


def chosen(names: Sequence[str]) -> tuple[Measure, ...]:
    """Return the measures of these names, and those that say how far they are to be trusted.

    >>> [measure.key for measure in chosen(["mean_cosine"])]
    ['mean_cosine', 'massive_rows', 'massive_threshold', 'massive_ratio']
    """
    wanted = [measure for measure in MEASURES if measure.name in names]
    known = {"every", *(one.name for one in wanted), *(one.decided_by for one in wanted if one.decided_by)}
    return tuple(measure for measure in MEASURES if measure in wanted or measure.beside in known)


def measure_all(cloud: Cloud, measures: Sequence[Measure] = MEASURES) -> dict[str, float]:
    """Return the value of every measure by its key; NaN where the rows do not allow it."""
    return {measure.key: _or_nan(measure, cloud) for measure in measures}


def _or_nan(measure: Measure, cloud: Cloud) -> float:
    try:
        return measure.of(cloud)
    except InputError:
        return math.nan
