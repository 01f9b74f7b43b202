"""What the lens's numbers are called in a tracker."""

from collections.abc import Mapping


def prefixed(scalars: Mapping[str, float]) -> dict[str, float]:
    """All in one group of charts.

    >>> prefixed({"anisotropy": 0.25})
    {'tangentlens/anisotropy': 0.25}
    """
    return {f"tangentlens/{name}": value for name, value in scalars.items()}
