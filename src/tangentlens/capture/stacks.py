"""Where a model keeps its blocks, in one stack or in an encoder and a decoder; and what a block adds to its stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

# Paths, inside a block, of the module whose output is added to the residual stream; the first that exists is used.
# To support a new architecture, add its path here.
ADDED = {
    "attn": (
        "attention.output.dense",
        "albert_layers.0.attention.dense",
        "layer.0.SelfAttention",
        "post_self_attn_layernorm",
        "self_attention.dense",
        "self_attn",
        "self_attention",
        "attn",
        "attention",
    ),
    "cross": ("layer.1.EncDecAttention", "encoder_attn", "multihead_attn"),
    "mixer": ("mixer", "mamba", "linear_attn"),
    "mlp": (
        "post_mlp_layernorm",
        "mlp.dense_4h_to_h",
        "mlp",
        "output.dense",
        "albert_layers.0.ffn_output",
        "layer.1.DenseReluDense",
        "layer.2.DenseReluDense",
        "layer.1.mlp",
        "layer.2.mlp",
        "ffn.down_proj",
        "fc2",
        "linear2",
        "feed_forward",
        "ffn",
    ),
}
# If a block has both of these norms, they are applied to the outputs of its parts before those are added to the stream
# (Gemma 2, OLMo 2). If it has the first one only, that is the norm before the second part (Llama).
_SANDWICH = {"attn": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}


@dataclass(frozen=True, eq=False)
class Block:
    """A module of the stack, in one of its calls in a forward pass.

    Attributes:
        module: The module.
        call: The number of the call, from 0.
        calls: The number of calls in a forward pass.
    """

    module: nn.Module
    call: int = 0
    calls: int = 1

    def added(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the kinds of `ADDED` that this block has, with their modules, in the order in which they run."""
        inside = dict(self.module.named_modules())
        if "albert_layers.1" in inside:
            # A group of several layers: the output of a single one is not what the whole block adds.
            return
        sandwich = _SANDWICH if set(_SANDWICH.values()) <= inside.keys() else {}
        for kind, known in ADDED.items():
            paths = (sandwich[kind],) if kind in sandwich else known
            module = next((inside[path] for path in paths if path in inside), None)
            if module is not None:
                yield kind, module


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
        blocks = [Block(module) for module in recurrent] if len(recurrent) == 1 else []
        norm = None
    else:
        blocks = _blocks(modules, getattr(model, "config", None))
        norm = _final_norm(model, modules)
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    return Stack(name, model, blocks, embedding, norm) if blocks else None


def _block_list(model: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """Return the longest list of modules that is not inside another such list, as heads are inside a block; or None.

    A `Sequential` counts only if all its modules are of one class; otherwise it is usually a single layer. If several
    lists of the same length have the same parent (XLM keeps attention in one and the rest in others), none of them
    holds whole blocks.
    """
    outermost: list[nn.ModuleList | nn.Sequential] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or module in inside:
            continue
        if len({type(block) for block in module}) == 1 or (isinstance(module, nn.ModuleList) and len(module) > 1):
            outermost.append(module)
            inside |= set(module.modules())
    longest = max(outermost, key=len, default=None)
    for parent in model.modules():
        longest_here = [child for child in parent.children() if child in outermost and len(child) == len(longest or ())]
        if len(longest_here) > 1:
            return None
    return longest


def _blocks(modules: nn.ModuleList | nn.Sequential, config: Any) -> list[Block]:
    """Return the blocks in the order in which they run; a module that runs several times is as many blocks."""
    order = _order(modules, config)
    return [Block(module, order[:place].count(module), order.count(module)) for place, module in enumerate(order)]


def _order(modules: nn.ModuleList | nn.Sequential, config: Any) -> list[nn.Module]:
    """Return the modules in the order in which they run, as often as they do; ALBERT's configuration tells its own."""
    groups, layers = getattr(config, "num_hidden_groups", None), getattr(config, "num_hidden_layers", None)
    if groups != len(modules) or layers is None:
        return list(modules)
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
