"""A model that is run between two steps of its training, and is afterwards as it was, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import numpy as np
import torch
from torch import nn

from tangentlens.capture.sites import is_compiled


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """A context in which a model runs in evaluation mode, without gradients and without mixed precision.

    Afterwards each module is in the mode it was in, buffers hold what they held, and random states (of PyTorch, NumPy
    and Python) are those from before. Compiled blocks run uncompiled: what they were compiled for stays what it was.
    """
    with ExitStack() as stack:
        for context in (_random_states(model), _modes(model), _buffers(model), _uncompiled(model)):
            stack.enter_context(context)
        stack.enter_context(torch.no_grad())
        for kind in {"cpu", *(parameter.device.type for parameter in model.parameters())}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def _random_states(model: nn.Module) -> Iterator[None]:
    """Keep all random states that a forward pass may draw from."""
    devices = {parameter.device for parameter in model.parameters()} - {torch.device("cpu")}
    kind = next((device.type for device in devices), "cuda")
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device.index or 0 for device in devices], device_type=kind):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _modes(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode for a while.

    The flags are set by hand: a model's own `eval` and `train` may do more, such as merging adapters into weights.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _buffers(model: nn.Module) -> Iterator[None]:
    """Put the buffers back as they were, those that a forward pass changes even in evaluation mode."""
    kept = [
        (module, name, buffer, None if buffer is None else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for module, name, buffer, copy in kept:
            module._buffers[name] = buffer
            # An equal buffer is not written to, as a graph that is still in use may hold it.
            if buffer is not None and copy is not None and not _same(buffer, copy):
                with torch.no_grad():
                    buffer.copy_(copy)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one shape are equal, NaN for NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _uncompiled(model: nn.Module) -> AbstractContextManager[object]:
    """Return a context in which compiled modules run uncompiled.

    Compiled for the shapes of another text, a module may be compiled anew for shapes of any size, whose kernels round
    differently.
    """
    if not any(is_compiled(module) for module in model.modules()):
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
