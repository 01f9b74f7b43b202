"""Intrinsic dimension: how many coordinates the rows need locally, whatever the space around them."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tangentlens.errors import InputError
from tangentlens.geometry.neighbours import distinct_rows, nearest
from tangentlens.geometry.rows import as_rows


@dataclass(frozen=True)
class IntrinsicDimension:
    """An estimate with its 95% interval over the rows, and how many rows it stands on."""

    value: float
    ci_low: float
    ci_high: float
    n_used: int
    n_duplicates: int
    method: str

    def __repr__(self) -> str:
        return (
            f"IntrinsicDimension({self.value:.2f} [{self.ci_low:.2f}, {self.ci_high:.2f}], {self.method}, "
            f"n_used={self.n_used}, n_duplicates={self.n_duplicates})"
        )


def intrinsic_dimension(
    x: Any, method: Literal["twonn"] = "twonn", duplicates: Literal["drop", "raise"] = "drop"
) -> IntrinsicDimension:
    """TwoNN by maximum likelihood: the ratio of second to first neighbour distance is Pareto with exponent m.

    Equal rows say nothing about dimension and would make it infinite or zero, so they are dropped and counted.

    Args:
        x: Rows `(n, d)`.
        method: `twonn`, (N - 1) / sum log(r2/r1).
        duplicates: `drop` them, or `raise` an error if there are any.

    >>> import torch
    >>> square = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> intrinsic_dimension(square)
    IntrinsicDimension(1.90 [1.79, 2.02], twonn, n_used=2000, n_duplicates=0)
    """
    if method != "twonn":
        raise InputError(f"method must be 'twonn', but is {method!r}")
    rows = as_rows(x)
    kept = distinct_rows(rows)
    n_duplicates = len(rows) - len(kept)
    if n_duplicates and duplicates == "raise":
        raise InputError(
            f"rows must be distinct, but {n_duplicates} of {len(rows)} repeat; duplicates='drop' drops them"
        )
    if len(kept) < 3:
        raise InputError(
            f"TwoNN needs at least 3 distinct rows, but {len(rows)} rows came, {n_duplicates} of them duplicates; "
            "pass more tokens"
        )
    distances, neighbours = nearest(rows[kept], k=2)
    logs = (distances[:, 1] / distances[:, 0]).log().cpu().numpy()
    total = float(logs.sum())
    if total == 0:
        raise InputError(
            f"first and second neighbours are equally far for all {len(kept)} distinct rows, as on a grid; "
            "TwoNN needs points in general position"
        )
    n = len(kept)
    value = (n - 1) / total
    reach = math.exp(_log_reach(logs, neighbours[:, 0].cpu().numpy()))
    return IntrinsicDimension(value, value / reach, value * reach, n, n_duplicates, method)


def _log_reach(logs: np.ndarray, neighbour: np.ndarray) -> float:
    """Half the width of the 95% interval of log dimension.

    The ratios are Pareto, but not independent: two rows that are each other's nearest share a distance. So rows linked
    by nearest-neighbour steps count as one observation (docs/concepts.md, 'Intrinsic dimension').
    """
    n = len(logs)
    links = coo_matrix((np.ones(n), (np.arange(n), neighbour)), shape=(n, n))
    count, cluster = connected_components(links, directed=False)
    if count < 2:
        return math.inf
    spread = np.bincount(cluster, weights=logs - logs.mean())
    error = math.sqrt(float((spread**2).sum()) * count / (count - 1)) / float(logs.sum())
    return float(stats.t.ppf(0.975, count - 1)) * error
