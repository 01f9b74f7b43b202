"""Products of fp32 in all of its digits, whatever a training has allowed its own products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """A context in which products of fp32 have its 24 bits, and neither the 11 of TF32 nor the 8 of bf16.

    Trainings often allow these, by `torch.set_float32_matmul_precision("high")` for example. The settings hold for the
    whole process, so this is for a time when the model does not run. Afterwards they are what they were.

    >>> with full_precision():
    ...     torch.get_float32_matmul_precision()
    'highest'
    """
    before = {backend: str(backend.fp32_precision) for backend in _backends()}
    named = _named()
    if named == "highest" and not {"tf32", "bf16"} & {*before.values()}:
        yield
        return
    if named is None:
        _set(dict.fromkeys(before, "ieee"))
    else:
        # PyTorch refuses products on a GPU if what was set in the older way is changed in the newer one.
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if named is not None:
            torch.set_float32_matmul_precision(named)
        _set(before)


def _backends() -> tuple[Any, ...]:
    """Return what has a precision of its own; before PyTorch 2.9 nothing has."""
    of_products = (getattr(backend, "matmul", None) for backend in (torch.backends.cuda, torch.backends.mkldnn))
    return tuple(backend for backend in of_products if hasattr(backend, "fp32_precision"))


def _named() -> str | None:
    """Return the precision for all backends, or None if they have been set one by one."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set(precisions: dict[Any, str]) -> None:
    """Set the precision of each backend, where it is another."""
    for backend, precision in precisions.items():
        if backend.fp32_precision != precision:
            # None of its own, so that it follows the setting for all backends if that is the same.
            backend.fp32_precision = "none"
        if backend.fp32_precision != precision:
            backend.fp32_precision = precision
