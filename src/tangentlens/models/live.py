"""A model that is already in memory, with its tokenizer or with token ids alone, as commands take one from a disk."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tangentlens.errors import InputError
from tangentlens.models.load import kind_of, longest_input
from tangentlens.models.loaded import LoadedModel


class TokenIds:
    """Stands in for a tokenizer where the text is token ids: numbers, separated by blanks.

    >>> TokenIds()("3 1 4")
    {'input_ids': [3, 1, 4]}
    """

    model_max_length = 2**31
    mask_token_id = bos_token_id = None

    def __init__(self) -> None:
        self.added_tokens_decoder: dict[int, Any] = {}
        self.all_special_ids: list[int] = []

    def __call__(self, text: str, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        """Return the numbers of a text."""
        return {"input_ids": [int(word) for word in text.split() if word.isdecimal()]}

    def decode(self, ids: list[int]) -> str:
        """Return token ids as text."""
        return " ".join(map(str, ids))


def live_model(model: nn.Module, tokenizer: Any, name: str) -> LoadedModel:
    """Return a model in memory as if it had been loaded.

    Args:
        model: The model. One that is not of Hugging Face is called with token ids alone, and counts as a decoder.
        tokenizer: Its tokenizer.
        name: What to call it.
    """
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    if embedding is None:
        raise InputError(
            f"{name} must be a language model with an embedding of tokens, but has no torch.nn.Embedding; "
            "measure rows you captured with the functions for rows, such as tangentlens.anisotropy"
        )
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else None
    return LoadedModel(
        name=name,
        revision="",
        kind="decoder" if text is None else kind_of(text),
        model=model,
        tokenizer=tokenizer,
        width=embedding.embedding_dim if text is None else text.hidden_size,
        longest=tokenizer.model_max_length
        if text is None
        else longest_input(getattr(model, "base_model", model), tokenizer),
        not_loaded=(),
    )


def as_text(ids: Any) -> str:
    """Return token ids as the text that `TokenIds` reads.

    Args:
        ids: A tensor or sequence of integers, of any shape.
    """
    try:
        numbers = torch.as_tensor(ids).flatten()
    # What cannot be a tensor is told by different errors.
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0)
    if not len(numbers) or numbers.is_floating_point() or bool((numbers < 0).any()):
        raise InputError(
            "token ids must be integers of at least 0, but are not, or there are none; pass a text with tokenizer=, or "
            "ids as a tokenizer gives them"
        )
    return " ".join(map(str, numbers.tolist()))
