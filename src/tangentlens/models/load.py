"""Models from a hub or a directory, with their tokenizers. Nothing remote is run unless asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from tangentlens.errors import InputError
from tangentlens.models.small import Kind


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model without its head, ready to be looked at, and what turns text into its tokens."""

    name: str
    revision: str
    kind: Kind
    model: nn.Module
    tokenizer: Any
    width: int
    longest: int

    def encode(self, text: str) -> list[int]:
        """Token ids without specials."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @property
    def specials(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and after a text."""
        ids, bare = list(self.tokenizer("a")["input_ids"]), self.encode("a")
        before = next((i for i in range(len(ids)) if ids[i : i + len(bare)] == bare), 0)
        return ids[:before], ids[before + len(bare) :]


def load_model(
    spec: str, device: str = "cpu", dtype: torch.dtype = torch.float32, trust_remote_code: bool = False
) -> LoadedModel:
    """Load `spec`: a directory, a hub id, or `id@revision`. Weights must be safetensors.

    Of an encoder-decoder, the encoder is taken.
    """
    from transformers import AutoModel, AutoTokenizer

    source, revision = _parse(spec)
    options = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
    with _quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model = AutoModel.from_pretrained(source, dtype=dtype, use_safetensors=True, **options)
        except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"MODEL must be a directory or a hub id (id@revision) that transformers can load, with a tokenizer and "
                f"safetensors weights, but {spec!r} is not: {reason[:300]}"
            ) from error
    config = model.config
    kind: Kind = "decoder" if _is_decoder(config) else "encoder"
    if getattr(config, "is_encoder_decoder", False):
        model, kind = model.get_encoder(), "encoder"
    longest = min(getattr(config, "max_position_embeddings", None) or 2**31, tokenizer.model_max_length)
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise InputError(
            f"{spec!r} must have a token embedding for every token, but its tokenizer has {len(tokenizer)} tokens and "
            f"the model {known}; the two do not belong together"
        )
    return LoadedModel(
        model_name(spec), revision, kind, model.to(device).eval(), tokenizer, config.hidden_size, longest
    )


def model_name(spec: str) -> str:
    """What a model is called: its directory's own name, or the hub's."""
    return Path(spec).absolute().name if Path(spec).is_dir() else spec


def _parse(spec: str) -> tuple[str, str]:
    """Where to load from, and which revision."""
    if Path(spec).is_dir():
        return spec, ""
    if spec.startswith((".", "/", "~")) or spec.count("/") > 1:
        raise InputError(f"MODEL must be a directory that exists or a hub id, but there is no directory {spec!r}")
    source, _, revision = spec.partition("@")
    return source, revision


def _is_decoder(config: Any) -> bool:
    names = getattr(config, "architectures", None) or []
    causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
    return causal or bool(getattr(config, "is_decoder", False))


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars or notes of the loader's own; its settings are put back."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
