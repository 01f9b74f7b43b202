"""Blocks of x-transformers, whose parts are kept in one list: for each, its norms, its layer and its residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from tangentlens.capture.blocks import Block

# The letters by which x-transformers calls its layers.
_KINDS = {"a": "attn", "c": "cross", "f": "mlp"}

Indices = tuple[int, ...]


def sublayer_blocks(parent: Any, modules: Sequence[nn.Module]) -> list[Block]:
    """Return the blocks of a list of sublayers in the order in which they run; none if it is another kind of list.

    Args:
        parent: The module that the list belongs to.
        modules: The sublayers.
    """
    types: Sequence[str] = getattr(parent, "layer_types", ())
    if len(types) != len(modules) or not all(_is_sublayer(module) for module in modules):
        return []
    order = tuple(getattr(parent, "layers_execute_order", range(len(modules))))
    groups = _grouped(order, types)
    return [
        _block([modules[i] for i in group], [types[i] for i in group], groups[:place].count(group), groups.count(group))
        for place, group in enumerate(groups)
    ]


def _is_sublayer(module: nn.Module) -> bool:
    """Return whether a module is a list of norms, layer and residual; norms are before and after the layer, and last.

    Any of the three norms may be None.
    """
    if not isinstance(module, nn.ModuleList) or len(module) != 3:
        return False
    return isinstance(module[0], nn.ModuleList) and len(module[0]) == 3


def _grouped(order: Indices, types: Sequence[str]) -> list[Indices]:
    """Return the sublayers of each block: the shortest sequence of types that the stack repeats, such as a, f.

    If the stack repeats none, or a sublayer is shared between different blocks, each sublayer is a block of its own.
    """
    run = [types[i] for i in order]
    size = next(size for size in range(1, len(run) + 1) if run[:size] * (len(run) // size) == run)
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    is_irregular = size == len(run) and len(set(run)) < size
    is_shared = sum(map(len, set(groups))) > len(set(order))
    return [(i,) for i in order] if is_irregular or is_shared else groups


def _block(sublayers: Sequence[Any], types: Sequence[str], call: int, calls: int) -> Block:
    """Return the block of some sublayers that run one after the other."""
    (before, _, _), layer, _ = sublayers[0]
    (_, _, after), _, residual = sublayers[-1]
    # The norm after the layer is applied before its output is added to the stream.
    outputs = [layer if norm is None else norm for (_, norm, _), layer, _ in sublayers]
    added = {_KINDS[kind]: module for kind, module in zip(types, outputs, strict=True) if types.count(kind) == 1}
    return Block(layer if before is None else before, residual if after is None else after, added, call, calls)
