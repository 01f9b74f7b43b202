"""What the callbacks have in common: the names of numbers in a tracker, and of the folders of repeated trainings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def prefixed(scalars: Mapping[str, float]) -> dict[str, float]:
    """All in one group of charts.

    >>> prefixed({"anisotropy": 0.25})
    {'tangentlens/anisotropy': 0.25}
    """
    return {f"tangentlens/{name}": value for name, value in scalars.items()}


def repeated(settings: Mapping[str, Any], times: int) -> dict[str, Any]:
    """The settings for a training that begins anew, in a folder of its own: frameworks start over to find a batch size.

    >>> repeated({"run": "runs/lens"}, times=1)
    {'run': PosixPath('runs/lens-2')}
    """
    run = Path(settings.get("run", "runs/lens"))
    return dict(settings) | ({"run": run.with_name(f"{run.name}-{times + 1}")} if times else {})
