"""Wraps every function of the package while tests run: shapes and types are checked, an int being a float."""

import inspect

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_inner = {}


def checker(function):
    """What comes here has a signature and nothing to do, so that of a function made anew at every call is kept."""
    if "<locals>" not in function.__qualname__:
        return _check(function)
    key = function.__module__, function.__qualname__, str(inspect.signature(function))
    if key not in _inner:
        _inner[key] = _check(function)
    return _inner[key]
