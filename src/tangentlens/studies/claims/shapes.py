"""The shape of profiles over depth at the end of training, judged over the networks of a stratum."""

from __future__ import annotations

from collections import Counter

import polars as pl
import torch

from tangentlens.report.reading import interval_text
from tangentlens.runs.vocabulary import ALL_ROWS, METRICS
from tangentlens.statistics.shape import profile_shape
from tangentlens.studies.claims.estimands import SAME, depth_profile

_MEASURES = ("anisotropy", "intrinsic_dimension")


def depth_shapes(records: pl.DataFrame) -> pl.DataFrame:
    """Return whether profiles over depth are bells, valleys, flat or otherwise, by the test of `profile_shape`.

    Networks take the place of batches: a shape is shown if seeds agree on it.

    Args:
        records: The records of trainings, as `read_runs` returns them.

    Returns:
        One row for each stratum with at least 2 networks and measure: `stratum`, `measure`, `networks`, `shape`, and
        the `difference` that decides it, with the sites it is between and its 95% interval over networks.
    """
    rows = []
    for measure in _MEASURES:
        profiles = depth_profile(records, measure, None, ALL_ROWS).filter(pl.col("family") != "")
        # One and the same network may be in several runs.
        key = ["family", SAME, "site", "depth"]
        once = profiles.filter(pl.col("weights") != "").group_by(key, maintain_order=True).agg(pl.mean("value"))
        for (family,), of_family in once.group_by(["family"], maintain_order=True):
            networks = [one.sort("depth") for _, one in of_family.group_by(["same"], maintain_order=True)]
            # A network that was measured at other sites than most cannot be set beside them.
            ((sites, count),) = Counter(tuple(one["site"]) for one in networks).most_common(1)
            alike = [one for one in networks if tuple(one["site"]) == sites]
            if count >= 2:
                values = torch.tensor([one["value"].to_list() for one in alike])
                shape = profile_shape(values, torch.tensor(alike[0]["depth"].to_list()))
                ends = {"value": shape.value, "ci_low": shape.ci_low, "ci_high": shape.ci_high}
                difference = f"{sites[shape.place]} − {sites[shape.base]}: {interval_text(ends)}"
                about = {"stratum": str(family), "measure": METRICS[measure].label, "networks": count}
                rows.append({**about, "shape": shape.kind, "difference": difference})
    return pl.DataFrame(rows)
