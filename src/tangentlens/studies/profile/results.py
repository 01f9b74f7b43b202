"""What a profile has measured: one site of one batch, as it is stored, and the summary over batches, as records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.capture.sites import Site
from tangentlens.geometry.massive import Places
from tangentlens.geometry.measures import Cloud, Measure, measure_all
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run
from tangentlens.runs.vocabulary import (
    ALL_ROWS,
    METRICS,
    SD,
    SHAPE,
    SHAPE_BATCHES,
    SHAPE_MARGIN,
    WITHOUT_MASSIVE,
    derived,
)
from tangentlens.statistics.evidence import BATCHES
from tangentlens.statistics.interval import mean_interval
from tangentlens.statistics.shape import profile_shape


@dataclass(frozen=True)
class SiteBatch:
    """One site of one batch, measured.

    Attributes:
        values: The value of each measure by its key; without massive rows, by `without_massive/key`.
        massive: Where the massive rows are.
    """

    values: dict[str, float]
    massive: Places

    def write(self, run: Run, part: str) -> None:
        """Store the values in a run."""
        # One tensor for all: as many tensors as values take longer to write than some measures to make.
        values = torch.tensor(list(self.values.values()), dtype=torch.float64)
        about = {"names": json.dumps(list(self.values)), "massive": json.dumps(asdict(self.massive))}
        run.save_tensors(part, {"values": values}, about)

    @classmethod
    def read(cls, run: Run, part: str) -> SiteBatch | None:
        """Return what was stored, or None if nothing was, or if it was by a version that had no names."""
        stored = run.load_tensors(part)
        if stored is None or "names" not in stored[1]:
            return None
        places = json.loads(stored[1]["massive"])
        counted = ({int(number): times for number, times in places[key].items()} for key in ("positions", "tokens"))
        names, values = json.loads(stored[1]["names"]), stored[0]["values"].tolist()
        return cls(dict(zip(names, values, strict=True)), Places(*counted))


def measure_both_ways(cloud: Cloud, measures: Sequence[Measure]) -> dict[str, float]:
    """Return the measures of all rows and, under other names, without massive rows."""
    values = measure_all(cloud, measures)
    without = measure_all(cloud.without_massive(), measures) if cloud.massive.count else values
    return values | {f"{WITHOUT_MASSIVE}/{name}": value for name, value in without.items()}


def cells(batches: Sequence[SiteBatch]) -> dict[str, str]:
    """Return the headline measures of a site, mean and standard deviation over its batches so far, as text."""
    shown = [name for name, metric in METRICS.items() if metric.shown == "table" and name in batches[0].values]
    columns = {name: [batch.values[name] for batch in batches] for name in shown}
    return {METRICS[name].axis: _cell(values) for name, values in columns.items()}


def _cell(values: Sequence[float]) -> str:
    return f"{fmean(values):.3g} ±{stdev(values):.1g}" if len(values) > 1 else f"{values[0]:.3g}"


def is_finished(run: Run, name: str) -> bool:
    """Return whether every batch of a model has been measured."""
    return name in run.manifest.get("finished", {})


def summary(
    base: Record,
    sites: Sequence[Site],
    measured: Sequence[Sequence[SiteBatch]],
    batch_tokens: int,
    token_name: Callable[[int], str],
) -> Iterator[Record]:
    """Yield mean, standard deviation and shape of each measure: of all rows and, if some are massive, without.

    Args:
        base: What the records have in common.
        sites: The sites.
        measured: The batches of each site.
        batch_tokens: The number of rows of a batch.
        token_name: Returns what to call a token, given its id.
    """
    massive = [sum((batch.massive for batch in of_site), Places({}, {})) for of_site in measured]
    n_massive = [int(sum(batch.values["massive_rows"] for batch in of_site)) for of_site in measured]
    # What comes from disk is in another order.
    for name in sorted(measured[0][0].values):
        prefix, _, key = name.rpartition("/")
        metric, _, variant = key.partition(":")
        table = torch.tensor([[batch.values[name] for batch in of_site] for of_site in measured], dtype=torch.float64)
        rows = WITHOUT_MASSIVE if prefix else ALL_ROWS
        n = table.shape[1] * batch_tokens
        about = replace(base, variant=variant, rows=rows, n=n)
        if rows == WITHOUT_MASSIVE and not any(n_massive):
            continue
        for place, (site, of_site) in enumerate(zip(sites, table, strict=True)):
            if rows == WITHOUT_MASSIVE and not n_massive[place]:
                continue
            here = replace(about, site=site.name, depth=site.depth)
            if rows == WITHOUT_MASSIVE:
                here = replace(here, n=n - n_massive[place])
            is_count = metric == "massive_rows" and rows == ALL_ROWS
            detail = massive[place].told(token_name) if is_count else ""
            yield here.estimate(metric, mean_interval(of_site, BATCHES), detail=detail)
            yield replace(here, metric=derived(SD, metric), value=float(of_site.std()))
        if bool(table.isfinite().all()):
            yield from _shape(about, metric, sites, table.T)


def _shape(
    about: Record, metric: str, sites: Sequence[Site], table: Float[Tensor, "batches sites"]
) -> Iterator[Record]:
    """Yield the shape over the residual sites, its margin, and how many batches an undecided one needs."""
    at = [i for i, site in enumerate(sites) if site.name.startswith("resid.")]
    if len(at) < 3:
        return
    depth = torch.tensor([sites[i].depth for i in at])
    shape = profile_shape(table[:, at], depth)
    yield replace(
        about,
        site=sites[at[shape.place]].name,
        metric=derived(SHAPE, metric),
        detail=shape.kind,
        value=shape.value,
        ci_low=shape.ci_low,
        ci_high=shape.ci_high,
    )
    yield replace(about, metric=derived(SHAPE_MARGIN, metric), value=shape.margin)
    if shape.batches_needed is not None:
        yield replace(about, metric=derived(SHAPE_BATCHES, metric), value=float(shape.batches_needed))
