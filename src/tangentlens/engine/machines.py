"""Where many tasks are done."""

from __future__ import annotations

from dataclasses import dataclass, field

from tangentlens.engine.here import Here
from tangentlens.engine.on_ray import OnRay
from tangentlens.engine.task import Needs
from tangentlens.errors import check_whole


@dataclass(frozen=True)
class Machines:
    """Where many tasks are done.

    Attributes:
        engine: Does the tasks: one after the other in this process, or on a Ray cluster.
        needs: What each task needs.
        keep_downloads: Whether a machine keeps what it downloads for a task.
        site_groups: Into how many tasks the sites of each checkpoint of a sweep are split.
    """

    engine: Here | OnRay = field(default_factory=Here)
    needs: Needs = field(default_factory=Needs)
    keep_downloads: bool = True
    site_groups: int = 1

    def __post_init__(self) -> None:
        check_whole(1, site_groups=self.site_groups)
