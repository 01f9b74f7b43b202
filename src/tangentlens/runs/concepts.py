"""Concepts in words, read from records: a table of those of a step, and how they go on from step to step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from typing import Any, TypeVar

import polars as pl

from tangentlens.alignment.concepts import SAME
from tangentlens.errors import InputError

Name = TypeVar("Name", str, int)

# The columns of the table that are numbers of the records, with their metrics and fields there.
_NUMBERS = {
    "variance_share": ("concept_variance", "value"),
    "variance_share_low": ("concept_variance", "ci_low"),
    "variance_share_high": ("concept_variance", "ci_high"),
    "energy_share": ("concept_energy", "value"),
    "energy_share_low": ("concept_energy", "ci_low"),
    "energy_share_high": ("concept_energy", "ci_high"),
    "usage": ("concept_usage", "value"),
    "frequency": ("concept_frequency", "value"),
    "found_again": ("concept_found_again", "value"),
    "kept": ("concept_kept", "value"),
}
_WHOLE, _WORDS = ("concept", "lineage", "born"), ("tokens", "contexts")
_SCHEMA = pl.Schema(
    [(name, pl.Int64) for name in _WHOLE]
    + [(name, pl.Float64) for name in (*_NUMBERS, "chance")]
    + [(name, pl.List(pl.String)) for name in _WORDS]
)


def concept_table(records: pl.DataFrame, site: str, step: int | None, model: str | None) -> pl.DataFrame:
    """Return the concepts of a site at a step, as `Run.concepts` describes them.

    Args:
        records: The records of a run.
        site: The site.
        step: The step; None for the last one.
        model: The model; None if there is only one.
    """
    known = records.filter(pl.col("metric").str.starts_with("concept_"))
    if known.is_empty():
        raise InputError(
            "the run must hold concepts, but has none; pass the tokenizer as Lens(concepts=...), or run `tangentlens "
            "test` on the model"
        )
    model = _chosen("model", model, known["model"].unique().sort().to_list())
    known = known.filter(model=model)
    known = known.filter(site=_chosen("site", site, known["site"].unique(maintain_order=True).to_list()))
    steps = known["step"].unique().sort().to_list()
    step = steps[-1] if step is None else _chosen("step", step, steps)
    return described(known, step)


def _chosen(what: str, given: Name | None, known: list[Name]) -> Name:
    """Return what was given, or the only one there is, or raise with the list of those that are known."""
    if given in known or (given is None and len(known) == 1):
        return known[0] if given is None else given
    listed = ", ".join(map(str, known[:12])) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    came = "none was named" if given is None else f"{given!r} came"
    raise InputError(f"the {what} must be one whose concepts the run holds ({listed}), but {came}; choose one of these")


def described(known: pl.DataFrame, step: int) -> pl.DataFrame:
    """Return the table of the concepts of one site of one model at a step.

    Args:
        known: The records of concepts of the site, at all steps.
        step: The step.
    """
    lineage, born = lineages(known)
    chance = known.filter(metric="concept_chance")["value"][0]
    rows: list[dict[str, Any]] = []
    for (variant,), of_concept in known.filter(pl.col("step") == step, pl.col("metric") != "concept_chance").group_by(
        ["variant"], maintain_order=True
    ):
        by_metric = {record["metric"]: record for record in of_concept.iter_rows(named=True)}
        told, place = json.loads(by_metric["concept_tokens"]["detail"]), (step, int(str(variant)))
        rows.append(
            {"concept": place[1], "lineage": lineage[place], "born": born[lineage[place]], "chance": chance}
            | {name: by_metric.get(metric, {}).get(field) for name, (metric, field) in _NUMBERS.items()}
            | {
                "tokens": [token for _, token, _, _ in told],
                "contexts": [f"{before}[{token}]{after}" for before, token, after, _ in told],
            }
        )
    return pl.DataFrame(rows, schema=_SCHEMA).sort("energy_share", descending=True, maintain_order=True)


def lineages(known: pl.DataFrame) -> tuple[Mapping[tuple[int, int], int], Mapping[int, int]]:
    """Return the lineage of each concept, by step and number, and the step at which each lineage begins.

    A concept goes on if its match at the next due step has a cosine of at least `SAME` with it; else it ends, and the
    other one begins a lineage.

    Args:
        known: The records of concepts of one site of one model.
    """
    links = {
        (record["step"], int(record["variant"])): (record["value"], record["detail"])
        for record in known.filter(metric="concept_kept").iter_rows(named=True)
    }
    lineage: dict[tuple[int, int], int] = {}
    born: dict[int, int] = {}
    new = count()
    there = known.filter(metric="concept_tokens").select("step", pl.col("variant").cast(int)).sort("step", "variant")
    for step, number in there.rows():
        cosine, earlier = links.get((step, number), (0.0, ""))
        before = tuple(map(int, earlier.split(":"))) if cosine >= SAME else ()
        if before in lineage:
            lineage[step, number] = lineage[before]
        else:
            lineage[step, number] = next(new)
            born[lineage[step, number]] = step
    return lineage, born
