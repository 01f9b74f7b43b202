"""A block: the module or modules between two points of the residual stream, and what they add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

# Paths, inside a block, of the module whose output is added to the residual stream; the first that exists is used.
# To support a new architecture, add its path here.
ADDED = {
    "attn": (
        "hook_attn_out",
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
        "hook_mlp_out",
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
# If a block has both modules of a row, its parts pass through them before they are added to the stream: norms in
# Gemma 2 and OLMo 2, norms in litgpt, gates or norms in torchtune. If it has the first one only, that is something
# else, such as the norm before the second part (Llama).
_SANDWICHES = (
    {"attn": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"},
    {"attn": "post_attention_norm", "mlp": "post_mlp_norm"},
    {"attn": "sa_scale", "mlp": "mlp_scale"},
)


@dataclass(frozen=True, eq=False)
class Block:
    """A block of the stack, in one of its calls in a forward pass.

    Attributes:
        first: The module that takes the stream.
        last: The module that returns it: the same one, unless the parts of the block are kept in a list.
        added: The modules whose outputs are added to the stream, by their kind in `ADDED`, in the order they run.
        call: The number of the call, from 0.
        calls: The number of calls in a forward pass.
    """

    first: nn.Module
    last: nn.Module
    added: Mapping[str, nn.Module]
    call: int = 0
    calls: int = 1


def whole_blocks(order: Sequence[nn.Module]) -> list[Block]:
    """Return blocks that are one module each; a module that runs several times is as many blocks.

    Args:
        order: The modules in the order in which they run, as often as they do.
    """
    return [
        Block(module, module, _added(module), order[:place].count(module), order.count(module))
        for place, module in enumerate(order)
    ]


def _added(block: nn.Module) -> dict[str, nn.Module]:
    """Return the modules inside a block whose outputs are added to the stream, by kind."""
    inside = dict(block.named_modules())
    if "albert_layers.1" in inside:
        # A group of several layers: the output of a single one is not what the whole block adds.
        return {}
    sandwich = next((row for row in _SANDWICHES if set(row.values()) <= inside.keys()), {})
    paths = {kind: (sandwich[kind],) if kind in sandwich else known for kind, known in ADDED.items()}
    found = {kind: next((inside[path] for path in known if path in inside), None) for kind, known in paths.items()}
    return {kind: module for kind, module in found.items() if module is not None}
