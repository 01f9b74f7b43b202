"""Wraps every function of the package while tests run: shapes and types are checked, an int being a float.

A test checks its first calls alone: the ten-thousandth is like them, and checks take longer than most functions.
"""

import inspect
from functools import wraps

import jaxtyping
from beartype import BeartypeConf, beartype

CALLS = 300
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_inner = {}
_left = CALLS


def check_anew():
    """Check as many calls again."""
    global _left
    _left = CALLS
    jaxtyping.config.update("jaxtyping_disable", False)


def _first_calls(checked):
    @wraps(checked)
    def call(*args, **kwargs):
        global _left
        _left -= 1
        if _left < 0:
            jaxtyping.config.update("jaxtyping_disable", True)
        return checked(*args, **kwargs)

    return call


def checker(function):
    """What comes here has a signature and nothing to do, so that of a function made anew at every call is kept."""
    if "<locals>" not in function.__qualname__:
        return _first_calls(_check(function))
    key = function.__module__, function.__qualname__, str(inspect.signature(function))
    if key not in _inner:
        _inner[key] = _first_calls(_check(function))
    return _inner[key]
