"""What happened between two checkpoints: later gradients in earlier subspaces, and how subspaces turned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tangentlens.alignment.prediction import GRADIENTS_THEN
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.prediction import SitePrediction, mean_prediction_records, prediction_records
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import ACTIVATION, CHECKPOINT, MEAN_SITE, PROXY
from tangentlens.studies.sweep.series import Checkpoint


@dataclass(frozen=True, eq=False)
class SiteBetween:
    """What happened at a site between two checkpoints.

    Attributes:
        records: Its records.
        prediction: What earlier subspaces take of the later gradients, for the mean over sites.
    """

    records: Sequence[Record]
    prediction: SitePrediction


def site_between(
    about: Record,
    prediction: SitePrediction,
    then: Mapping[str, Subspace],
    now: Mapping[str, Subspace],
    proxy: str,
) -> SiteBetween:
    """Return what happened at a site.

    Args:
        about: What the records of the later checkpoint have in common at the site.
        prediction: What earlier subspaces take of the later gradients.
        then: The subspaces of the earlier checkpoint, by name.
        now: Those of the later one.
        proxy: The name of the proxy.
    """
    turned = [
        replace(
            about,
            quantity=ACTIVATION,
            metric="overlap",
            variant=name,
            rank=one.rank,
            value=one.overlap(now[name]),
            detail=PROXY if name == proxy else "",
        )
        for name, one in then.items()
        if name != GRADIENTS_THEN and name in now
    ]
    return SiteBetween([*prediction_records(about, prediction), *turned], prediction)


def between(about: Record, earlier: Checkpoint, sites: Sequence[SiteBetween]) -> Iterator[Record]:
    """Yield what happened between two checkpoints, at each site and in the mean over sites.

    Args:
        about: What the records of the later checkpoint have in common.
        earlier: The earlier checkpoint.
        sites: What happened at each site.
    """
    yield replace(about, quantity=CHECKPOINT, metric="earlier_step", value=float(earlier.step), detail=earlier.label)
    overlaps: dict[str, list[Record]] = {}
    for site in sites:
        yield from site.records
        for record in site.records:
            if record.metric == "overlap":
                overlaps.setdefault(record.variant, []).append(record)
    yield from mean_prediction_records(replace(about, site=MEAN_SITE), [site.prediction for site in sites])
    for records in overlaps.values():
        mean = sum(record.value or 0.0 for record in records) / len(records)
        yield replace(records[0], site=MEAN_SITE, rank=None, value=mean)
