"""What each position has to predict, as a user says it: an argument of the model's call, or a function of the call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from tangentlens.capture.batch import NO_TARGET, named_arguments, unwrapped
from tangentlens.errors import InputError

# The name of an argument, or a function of the positional and the named arguments of a call.
Targets = str | Callable[[tuple[Any, ...], dict[str, Any]], Tensor | None]


def checked_targets(model: nn.Module, targets: Any) -> Targets | None:
    """Return targets, or raise if they are neither None, an argument of the model's `forward`, nor a function."""
    if targets is None or callable(targets):
        return targets
    parameters = inspect.signature(unwrapped(model).forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not isinstance(targets, str) or (targets not in parameters and not takes_any):
        raise _not_an_argument(targets, parameters)
    return targets


def named_targets(targets: Targets) -> str:
    """Return what a run is told of the targets: the name of the argument, or that of the function."""
    return targets if isinstance(targets, str) else f"{getattr(targets, '__name__', type(targets).__name__)}()"


def targets_of_call(
    model: nn.Module, targets: Targets, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Int[Tensor, "batch length"] | None:
    """Return the token that each position has to predict, `NO_TARGET` for all negative numbers; None if not known.

    Args:
        model: The model that is called.
        targets: The name of the argument that holds them, or a function that returns them.
        args: The positional arguments of the call.
        kwargs: Its named arguments.
    """
    given = _argument(model, targets, args, kwargs) if isinstance(targets, str) else targets(tuple(args), dict(kwargs))
    if given is None:
        return None
    if not isinstance(given, Tensor) or given.is_floating_point() or given.ndim != 2:
        came = f"{tuple(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
        raise InputError(
            f"targets must be token ids (batch, length), one for each position, but {came} came; return what position "
            "i has to predict at place i, and a negative number where it predicts nothing"
        )
    ids = given.detach().long()
    return ids.masked_fill(ids < 0, NO_TARGET)


def _argument(model: nn.Module, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an argument of a call, None if it is left at its default, or raise if the model has none of that name."""
    named = named_arguments(model, args, kwargs)
    if name not in named and name not in inspect.signature(unwrapped(model).forward).parameters:
        # A model that takes any argument does not tell of a misspelt one.
        raise _not_an_argument(name, named)
    return named.get(name)


def _not_an_argument(targets: Any, names: Iterable[str]) -> InputError:
    return InputError(
        "targets must be the name of an argument that the model is called with, or a function of its arguments, but "
        f"{targets!r} came; the arguments are {', '.join(names) or 'none'}"
    )
