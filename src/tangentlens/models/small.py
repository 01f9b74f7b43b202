"""Small reference models: a decoder, an encoder, an encoder with the causal mask of a decoder, and variations."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tangentlens.errors import InputError, check_name
from tangentlens.models.variations import VARIATIONS, VariedForCausalLM

# What a model has to predict: each next token, or tokens that are masked.
Kind = Literal["decoder", "encoder"]
# Small models by name; those of `VARIATIONS` are decoders too.
SMALL_MODELS = ("decoder", "encoder", "masked decoder", *VARIATIONS)


def small_model(kind: str, vocabulary: int, layers: int, width: int, length: int, mask: int, seed: int) -> nn.Module:
    """Return an untrained Llama (`decoder`), EuroBERT (`encoder`) or variation, with its language modelling head.

    Both have rotary positions, RMS norm, gated MLPs and tied embeddings. A `masked decoder` is the encoder with the
    same weights and the same loss, in which tokens attend to earlier ones only. The global random state is left
    unchanged.

    Args:
        kind: One of `SMALL_MODELS`.
        vocabulary: Number of token types.
        layers: Number of blocks.
        width: Width of the residual stream, a multiple of 32; each attention head has width 32.
        length: Largest number of tokens in a sequence.
        mask: The id of the mask token, which a decoder does not use.
        seed: Seed of the initial weights.
    """
    check_name("a small model", kind, SMALL_MODELS)
    if kind in VARIATIONS:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return VariedForCausalLM(VARIATIONS[kind], vocabulary, layers, width, length)
    from transformers import EuroBertConfig, EuroBertForMaskedLM, LlamaConfig, LlamaForCausalLM

    if width % 32:
        raise InputError(f"width must be a multiple of 32, the width of a head, but is {width}")
    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": 32 * round(width * 8 / 3 / 32),
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "num_key_value_heads": width // 32,
        "max_position_embeddings": length,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "decoder":
            return LlamaForCausalLM(LlamaConfig(**shape))
        encoder = EuroBertForMaskedLM(EuroBertConfig(mask_token_id=mask, **shape))
    if kind == "masked decoder":
        for block in encoder.model.layers:
            block.self_attn.is_causal = True
    return encoder


def weight_hash(model: nn.Module, leave_out: Collection[str] = ()) -> str:
    """Return the SHA-256 hash of all parameters and buffers: equal hashes mean equal weights.

    Args:
        model: The model.
        leave_out: Names of parameters and buffers that do not count.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name in leave_out:
            continue
        digest.update(name.encode())
        with _present(model, name, tensor) as present:
            digest.update(present.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _present(model: nn.Module, name: str, tensor: Tensor) -> Iterator[Tensor]:
    """Yield a tensor of a model; one that is kept on disk is read for as long as it is needed."""
    if not tensor.is_meta:
        yield tensor
        return
    from accelerate.utils import align_module_device

    module, _, own = name.rpartition(".")
    with align_module_device(model.get_submodule(module)):
        yield getattr(model.get_submodule(module), own)
