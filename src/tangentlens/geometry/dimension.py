"""Intrinsic dimension: how many coordinates the rows need locally, whatever the space around them."""

from dataclasses import dataclass
from typing import Any, Literal

from scipy import stats

from tangentlens.errors import InputError
from tangentlens.geometry.neighbours import distinct_rows, neighbour_distances
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
        method: `twonn`, (N - 1) / sum log(r2/r1), with the exact interval of that Pareto law.
        duplicates: `drop` them, or `raise` an error if there are any.

    >>> import torch
    >>> square = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> intrinsic_dimension(square)
    IntrinsicDimension(1.90 [1.82, 1.99], twonn, n_used=2000, n_duplicates=0)
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
    nearest = neighbour_distances(rows[kept], k=2)
    total = float((nearest[:, 1] / nearest[:, 0]).log().sum())
    if total == 0:
        raise InputError(
            f"first and second neighbours are equally far for all {len(kept)} distinct rows, as on a grid; "
            "TwoNN needs points in general position"
        )
    n = len(kept)
    low, high = (float(stats.chi2.ppf(tail, 2 * n)) / (2 * total) for tail in (0.025, 0.975))
    return IntrinsicDimension((n - 1) / total, low, high, n, n_duplicates, method)
