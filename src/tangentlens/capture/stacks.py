"""Where a model keeps its blocks: in one stack, or in an encoder and a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from tangentlens.capture.blocks import Block, whole_blocks
from tangentlens.capture.sublayers import sublayer_blocks


@dataclass(frozen=True, eq=False)
class Stack:
    """The blocks of a model, or of one half of an encoder-decoder.

    Attributes:
        name: 'encoder' or 'decoder' in an encoder-decoder, else ''.
        module: The module that contains everything else.
        blocks: The blocks in the order in which they run.
        embedding: The embedding before the blocks, if there is one.
        norm: The norm after the blocks, if there is one.
    """

    name: str
    module: nn.Module
    blocks: list[Block]
    embedding: nn.Embedding | None
    norm: nn.Module | None


def find_stacks(model: nn.Module) -> list[Stack]:
    """Return the stacks of a model: one, both of an encoder-decoder, or none if no blocks are found."""
    halves = {name: _named(model, name) for name in ("encoder", "decoder")}
    stacks = {name: _stack(half, name) for name, half in halves.items() if half is not None}
    if len(stacks) == 2 and all(stacks.values()):
        return [stack for stack in stacks.values() if stack is not None]
    # A multimodal model has a separate stack for text.
    text = _named(model, "language_model") or _named(model, "text_model")
    whole = _stack(text or model, "")
    return [] if whole is None else [whole]


def _named(model: nn.Module, name: str) -> nn.Module | None:
    """Return the first module whose path ends with `name`, or None."""
    return next((module for path, module in model.named_modules() if path.split(".")[-1] == name), None)


def _stack(model: nn.Module, name: str) -> Stack | None:
    """Return the stack of a model or half of a model, or None if no blocks are found."""
    modules = _block_list(model)
    if modules is None:
        # PyTorch keeps all layers of a recurrent network in one module.
        recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
        blocks = whole_blocks(recurrent) if len(recurrent) == 1 else []
        norm = None
    else:
        blocks = _blocks(modules, model)
        norm = _final_norm(model, modules)
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    return Stack(name, model, blocks, embedding, norm) if blocks else None


def module_lists(model: nn.Module) -> dict[str, nn.Module]:
    """Return the lists of modules that may be blocks, by path: those that are not inside another, as heads are."""
    outermost: dict[str, nn.Module] = {}
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if module not in inside and entries(module):
            outermost[path] = module
            inside |= set(module.modules())
    return outermost


def entries(module: nn.Module) -> list[nn.Module]:
    """Return the modules of a list that may be one of blocks; none if the module is not such a list.

    A `Sequential` counts only if all its modules are of one class; otherwise it is usually a single layer. A
    `ModuleDict` counts if its keys are numbers.
    """
    if isinstance(module, nn.ModuleDict):
        listed = list(module.values()) if all(key.isdecimal() for key in module) else []
    else:
        listed = list(module) if isinstance(module, nn.ModuleList | nn.Sequential) else []
    # Lists of optional parts hold None where there is none.
    found = [entry for entry in listed if entry is not None]
    is_alike = len({type(entry) for entry in found}) == 1
    return found if is_alike or (len(found) > 1 and not isinstance(module, nn.Sequential)) else []


def runs(module: nn.Module) -> bool:
    """Return whether a module is ever called: lists are not, only what they hold."""
    return not isinstance(module, nn.ModuleList | nn.ModuleDict)


def _block_list(model: nn.Module) -> nn.Module | None:
    """Return the longest list of modules, or None.

    If several lists of the same length have the same parent (XLM keeps attention in one and the rest in others), none
    of them holds whole blocks.
    """
    lists = list(module_lists(model).values())
    longest = max(lists, key=lambda one: len(entries(one)), default=None)
    for parent in model.modules():
        here = [child for child in parent.children() if child in lists]
        if longest is not None and sum(len(entries(child)) == len(entries(longest)) for child in here) > 1:
            return None
    return longest


def _blocks(modules: nn.Module, model: nn.Module) -> list[Block]:
    """Return the blocks in the order in which they run; none if the list holds lists of an unknown kind."""
    order = _order(entries(modules), getattr(model, "config", None))
    if all(runs(module) for module in order):
        return whole_blocks(order)
    parents = (parent for parent in model.modules() if any(child is modules for child in parent.children()))
    return sublayer_blocks(next(parents, None), order)


def _order(modules: list[nn.Module], config: Any) -> list[nn.Module]:
    """Return the modules in the order in which they run, as often as they do; ALBERT's configuration tells its own."""
    groups, layers = getattr(config, "num_hidden_groups", None), getattr(config, "num_hidden_layers", None)
    if groups != len(modules) or layers is None:
        return modules
    # With another rounding, some numbers of layers and groups would give other groups than transformers runs.
    return [modules[int(layer / (layers / groups))] for layer in range(layers)]


def _final_norm(model: nn.Module, blocks: nn.Module) -> nn.Module | None:
    """Return the norm that has the same parent as the blocks and comes after them, or has 'final' in its name."""
    for parent in model.modules():
        children = dict(parent.named_children())
        if any(child is blocks for child in children.values()):
            norms = {
                name: child
                for name, child in children.items()
                if "norm" in type(child).__name__.lower() and "emb" not in name.lower()
            }
            place = {name: i for i, name in enumerate(children)}
            at = next(i for i, child in enumerate(children.values()) if child is blocks)
            after = [child for name, child in norms.items() if place[name] > at or "final" in name]
            return after[0] if after else None
    return None
