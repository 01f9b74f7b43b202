"""Checks of what a lens is given, before a training begins and not hours into it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tangentlens.capture.batch import OBJECTIVES
from tangentlens.errors import InputError
from tangentlens.geometry.measures import MEASURES
from tangentlens.lens.alarms import Alarm
from tangentlens.lens.measures import SCALARS
from tangentlens.proxies import named_proxy


def check_settings(proxy: Any, measures: Any, objective: Any, alarms: Any, loss_scale: Any) -> None:
    """Refuse settings that are misspelt or of the wrong type."""
    known = {measure.name for measure in MEASURES}
    unknown = [measures] if isinstance(measures, str) else [name for name in measures if name not in known]
    if unknown:
        raise InputError(f"measures must be a list of some of {', '.join(sorted(known))}, but {unknown[0]!r} came")
    if named_proxy(proxy)[0] == "<lambda>":
        raise InputError("the proxy of a lens must have a name, by which a run is continued, but is a lambda; use def")
    if objective is not None and objective not in OBJECTIVES:
        raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}, but is {objective!r}")
    if loss_scale is not None and not callable(loss_scale):
        raise InputError(f"loss_scale must be a function such as scaler.get_scale, but is {loss_scale!r}")
    if not isinstance(alarms, Sequence) or not all(isinstance(alarm, Alarm) for alarm in alarms):
        raise InputError(f"alarms must be a list of Alarm, but is {alarms!r}")
    for alarm in alarms:
        if alarm.scalar not in SCALARS:
            raise InputError(f"an alarm must be of one of {', '.join(SCALARS)}, but is of {alarm.scalar!r}")


def token_ids(exclude: Any) -> tuple[int, ...]:
    """Return token ids to leave out, as a tuple of numbers."""
    try:
        return tuple(operator.index(token) for token in exclude)
    except TypeError as error:
        raise InputError(f"exclude must be a list of token ids, but is {exclude!r}") from error
