"""Names that the callbacks share: those of numbers in a tracker, and of the folders of repeated trainings."""

from collections.abc import Mapping
from typing import Any

from tangentlens.runs.files import as_place


def prefixed(scalars: Mapping[str, float]) -> dict[str, float]:
    """Return the scalars with a prefix, by which trackers put them into one group of charts.

    >>> prefixed({"anisotropy": 0.25})
    {'tangentlens/anisotropy': 0.25}
    """
    return {f"tangentlens/{name}": value for name, value in scalars.items()}


def repeated(settings: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Return the settings for a training that starts over, with a run folder of its own.

    Frameworks start over to find a batch size, for example.

    Args:
        settings: The settings of the lens.
        times: The number of trainings that the callback has seen before.

    >>> repeated({"run": "runs/lens"}, times=1)
    {'run': PosixPath('runs/lens-2')}
    """
    run = as_place(settings.get("run", "runs/lens"))
    return dict(settings) | ({"run": run.with_name(f"{run.name}-{times + 1}")} if times else {})
