"""What was measured at a site, kept in the run: a mean over sites needs replicates, which records do not hold."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from tangentlens.alignment.tangent_result import Cell, TangentTest
from tangentlens.errors import InputError
from tangentlens.geometry.massive import Places
from tangentlens.geometry.measures import Estimate
from tangentlens.lens.measures import SiteMeasures
from tangentlens.runs.run import Run
from tangentlens.statistics.interval import Interval

# What a mean over sites needs of a test, beside its shares: as it is, and as numbers for each frequency bin.
_PLAIN = ("proxy", "rank", "dim", "n_bins", "of", "n_tokens", "effective_tokens", "effective_sequences")
_BY_BIN = ("energy", "rms", "anisotropy")


def keep_measures(run: Run, part: str, measures: SiteMeasures) -> None:
    """Write what a mean over sites needs of one of them, beside the records of the same part."""
    run.save_tensors(part, {}, {"measures": json.dumps(told_measures(measures))})


def kept_measures(run: Run, part: str) -> SiteMeasures | None:
    """Return what was kept of a site, without what has no mean over sites; None if nothing was kept."""
    kept = run.load_tensors(part)
    return None if kept is None else read_measures(json.loads(kept[1]["measures"]))


def told_measures(measures: SiteMeasures) -> dict[str, Any]:
    """Return what a mean over sites needs of one, in the types of JSON, which has every digit of a number."""
    test, without = measures.test, measures.without_massive
    estimates = {key: one for key, one in measures.estimates.items() if isinstance(one, Estimate)}
    return {
        "n": measures.n,
        "dim": measures.dim,
        "replicates": {key: one.replicates.tolist() for key, one in estimates.items() if one.replicates is not None},
        "test": told_test(test) if isinstance(test, TangentTest) else str(test),
        "without_massive": told_measures(without) if isinstance(without, SiteMeasures) else without and str(without),
    }


def told_test(test: TangentTest) -> dict[str, Any]:
    """Return what a mean over sites needs of a test, in the types of JSON."""
    by_bin = {name: {key: values.tolist() for key, values in getattr(test, name).items()} for name in _BY_BIN}
    shares = [[*cell, values.tolist()] for cell, values in test.shares.items()]
    return {name: getattr(test, name) for name in _PLAIN} | by_bin | {"shares": shares}


def read_measures(told: dict[str, Any]) -> SiteMeasures:
    """Return measures as they were told, without what has no mean over sites."""
    test, without, unknown = told["test"], told["without_massive"], Interval(math.nan, math.nan, math.nan, "")
    return SiteMeasures(
        n=told["n"],
        dim=told["dim"],
        test=InputError(test) if isinstance(test, str) else read_test(test),
        estimates={key: Estimate(unknown, told["n"], _tensor(values)) for key, values in told["replicates"].items()},
        gradient_anisotropy=None,
        gradient_rms=math.nan,
        massive=Places({}, {}),
        without_massive=InputError(without) if isinstance(without, str) else without and read_measures(without),
    )


def read_test(told: dict[str, Any]) -> TangentTest:
    """Return a test as it was told."""
    fields: dict[str, Any] = {name: told[name] for name in _PLAIN}
    fields |= {name: {key: _tensor(values) for key, values in told[name].items()} for name in _BY_BIN}
    return TangentTest(**fields, shares={Cell(*cell): _tensor(values) for *cell, values in told["shares"]})


def _tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)
