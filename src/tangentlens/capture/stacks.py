"""Where a model keeps its blocks: one stack, or an encoder's and a decoder's; and what a block adds to its stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

# What a block adds to the residual stream, by the path of the module inside the block: the first that exists is taken.
# A new architecture is a word here.
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
# In a block that has both, these norms stand between its parts and the stream (Gemma 2, OLMo 2). The first one alone is
# the norm before the second part (Llama).
_SANDWICH = {"attn": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}


@dataclass(frozen=True, eq=False)
class Block:
    """A module of the stack in one of the times that it runs in a forward pass: time `call` of `calls`."""

    module: nn.Module
    call: int = 0
    calls: int = 1

    def added(self) -> Iterator[tuple[str, nn.Module]]:
        """The kinds of `ADDED` that this block has, with their modules, in the order in which they run."""
        inside = dict(self.module.named_modules())
        if "albert_layers.1" in inside:
            # Several layers in a group: none of them is what the block adds.
            return
        sandwich = _SANDWICH if set(_SANDWICH.values()) <= inside.keys() else {}
        for kind, known in ADDED.items():
            paths = (sandwich[kind],) if kind in sandwich else known
            found = next((inside[path] for path in paths if path in inside), None)
            if found is not None:
                yield kind, found


@dataclass(frozen=True, eq=False)
class Stack:
    """Blocks in the order in which they run, with the embedding before and the norm after them, if there are such.

    `module` holds them all; `name` is that of the half of an encoder-decoder.
    """

    name: str
    module: nn.Module
    blocks: list[Block]
    embedding: nn.Embedding | None
    norm: nn.Module | None


def find_stacks(model: nn.Module) -> list[Stack]:
    """The stack of a model; of an encoder-decoder both, by their names; none of a model without blocks."""
    halves = {name: _named(model, name) for name in ("encoder", "decoder")}
    stacks = {name: _stack(half, name) for name, half in halves.items() if half is not None}
    if len(stacks) == 2 and all(stacks.values()):
        return [stack for stack in stacks.values() if stack is not None]
    # Beside a tower for images or sound there is one for text.
    text = _named(model, "language_model") or _named(model, "text_model")
    whole = _stack(text or model, "")
    return [] if whole is None else [whole]


def _named(model: nn.Module, name: str) -> nn.Module | None:
    return next((module for path, module in model.named_modules() if path.split(".")[-1] == name), None)


def _stack(model: nn.Module, name: str) -> Stack | None:
    modules = _block_list(model)
    if modules is None:
        # Recurrent layers come as one module.
        recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
        blocks = [Block(module) for module in recurrent] if len(recurrent) == 1 else []
        norm = None
    else:
        blocks = _blocks(modules, getattr(model, "config", None))
        norm = _final_norm(model, modules)
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    return Stack(name, model, blocks, embedding, norm) if blocks else None


def _block_list(model: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """The longest list of modules that is not inside another such list (as heads are inside a block).

    A `Sequential` is one if all are of one class: of several, it is mostly a single layer. Where lists of one length
    stand side by side (XLM keeps attentions in one and the rest in others), none of them holds the blocks.
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
        beside = [child for child in parent.children() if child in outermost and len(child) == len(longest or ())]
        if len(beside) > 1:
            return None
    return longest


def _blocks(modules: nn.ModuleList | nn.Sequential, config: Any) -> list[Block]:
    """The modules, each once; or shared between layers, as ALBERT's configuration says."""
    groups, layers = getattr(config, "num_hidden_groups", None), getattr(config, "num_hidden_layers", None)
    if groups != len(modules) or layers is None:
        return [Block(module) for module in modules]
    group_of = [layer * groups // layers for layer in range(layers)]
    return [
        Block(modules[group], group_of[:layer].count(group), group_of.count(group))
        for layer, group in enumerate(group_of)
    ]


def _final_norm(model: nn.Module, blocks: nn.Module) -> nn.Module | None:
    """The norm that stands beside the blocks: after them, or before them under a name that says 'final'."""
    for parent in model.modules():
        beside = dict(parent.named_children())
        if any(child is blocks for child in beside.values()):
            norms = {
                name: child
                for name, child in beside.items()
                if "norm" in type(child).__name__.lower() and "emb" not in name.lower()
            }
            place = {name: i for i, name in enumerate(beside)}
            at = next(i for i, child in enumerate(beside.values()) if child is blocks)
            after = [child for name, child in norms.items() if place[name] > at or "final" in name]
            return after[0] if after else None
    return None
