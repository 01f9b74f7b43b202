"""Checks of what a lens is given, before a training begins and not hours into it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from tangentlens.capture.batch import OBJECTIVES
from tangentlens.capture.device import MeasureOn
from tangentlens.capture.names import meant
from tangentlens.capture.sites import Site
from tangentlens.errors import InputError
from tangentlens.geometry.measures import MEASURES
from tangentlens.lens.alarms import Alarm
from tangentlens.lens.measures import SCALARS
from tangentlens.proxies import named_proxy
from tangentlens.runs.run import Run, check_same


def check_settings(proxy: Any, measures: Any, objective: Any, alarms: Any, loss_scale: Any, on: Any) -> None:
    """Refuse settings that are misspelt or of the wrong type."""
    known = {measure.name for measure in MEASURES}
    unknown = [measures] if isinstance(measures, str) else [name for name in measures if name not in known]
    if unknown:
        raise InputError(f"measures must be a list of some of {', '.join(sorted(known))}, but {unknown[0]!r} came")
    if named_proxy(proxy)[0] == "<lambda>":
        raise InputError("the proxy of a lens must have a name, by which a run is continued, but is a lambda; use def")
    if objective is not None and objective not in OBJECTIVES:
        raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}, but is {objective!r}")
    if on not in (None, *get_args(MeasureOn)):
        raise InputError(
            f"measure_on must be 'cpu', or None for the device of the model, but is {on!r}; leave it out, or pass 'cpu'"
        )
    if loss_scale is not None and not callable(loss_scale):
        raise InputError(f"loss_scale must be a function such as scaler.get_scale, but is {loss_scale!r}")
    if not isinstance(alarms, Sequence) or not all(isinstance(alarm, Alarm) for alarm in alarms):
        raise InputError(f"alarms must be a list of Alarm, but is {alarms!r}")
    for alarm in alarms:
        if alarm.scalar not in SCALARS:
            raise InputError(f"an alarm must be of one of {', '.join(SCALARS)}, but is of {alarm.scalar!r}")


def check_rank(rank: int, widths: Mapping[str, int]) -> None:
    """Refuse a rank with which no site of these widths can ever be tested.

    Args:
        rank: The rank of the proxy.
        widths: The width of each site, by name.
    """
    site = min(widths, key=lambda name: widths[name], default=None)
    # The control `normal` is as large as the proxy and orthogonal to it.
    if site is not None and rank > widths[site] // 2:
        raise InputError(
            f"rank must be at most half the width of every site, but is {rank}, and {site} is {widths[site]} wide; "
            f"choose a rank of at most {widths[site] // 2}, or other sites"
        )


def claim(run: Run, name: str, settings: Mapping[str, Any], begins: bool) -> None:
    """Write the settings of a lens to a run's manifest, or raise if another lens has measured under its name there.

    Args:
        run: The run.
        name: The name of the lens, which is that of its model in the records.
        settings: Its settings.
        begins: Whether a training begins, so that there must not be one already.
    """
    known = run.manifest.get("lenses", {}).get(name)
    measured = known is not None and not run.records.filter(model=name).is_empty()
    # What a lens left that never measured, as with a rank that is too high, does not stand in the way of another.
    if known is not None and (measured or not begins):
        check_same(run.path, known, settings)
    if measured and begins:
        raise InputError(
            f"{run.path} must be empty for a training that starts at step 0, but holds one; choose another folder, "
            "delete this one, or pass step= and tokens_seen= to continue from a checkpoint"
        )
    run.describe("lenses", {name: settings})


def logged(sites: Sequence[Site], wanted: str | Sequence[str]) -> set[str]:
    """Return the names of the sites whose own values are logged, or raise if one is not measured."""
    names, chosen = [site.name for site in sites], set()
    for pattern in [wanted] if isinstance(wanted, str) else wanted:
        found = meant(pattern, names, names)
        if not found:
            raise InputError(
                f"log_sites must be among the sites that are measured, but {pattern!r} is not; add it to sites"
            )
        chosen |= set(found)
    return chosen


def token_ids(exclude: Any) -> tuple[int, ...]:
    """Return token ids to leave out, as a tuple of numbers."""
    try:
        return tuple(operator.index(token) for token in exclude)
    except TypeError as error:
        raise InputError(f"exclude must be a list of token ids, but is {exclude!r}") from error
