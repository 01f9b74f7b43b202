"""The tokenizer of a model: its own or another one, but never one that transformers made up."""

from __future__ import annotations

from typing import Any

from tangentlens.errors import InputError
from tangentlens.models.source import Source

# Files of which a tokenizer has at least one, whatever its class.
_FILES = (
    *("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
)


def load_tokenizer(source: Source, trust_remote_code: bool) -> Any:
    """Return the tokenizer of a directory or a hub id, or raise if it has none.

    Without files of a tokenizer, transformers makes one up for some models, with special tokens alone.

    Args:
        source: Where it comes from.
        trust_remote_code: Whether to run code that the repository contains.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.place, **source.options(trust_remote_code))
    # Where nothing can be made up, what is raised depends on the model.
    except Exception as error:
        if source.has("config.json") and not has_tokenizer(source):
            raise _no_tokenizer(source) from error
        raise
    own = tokenizer.vocab_files_names.values()
    # Tokenizers of bytes and characters have no files.
    if own and not any(map(source.has, {*_FILES, *own})):
        raise _no_tokenizer(source)
    return tokenizer


def has_tokenizer(source: Source) -> bool:
    """Return whether a directory holds files of a tokenizer, or such files of a hub id were downloaded."""
    return any(map(source.has, _FILES))


def check_vocabulary(source: Source, tokenizer: Any, model: Any) -> None:
    """Raise if the tokenizer has tokens for which the model has no embedding.

    Args:
        source: Where the model comes from.
        tokenizer: The tokenizer.
        model: The model, with or without weights.
    """
    known, largest = model.get_input_embeddings().num_embeddings, max(tokenizer.get_vocab().values(), default=-1)
    if largest >= known:
        raise InputError(
            f"{source.place} must have a token embedding for every token, but its tokenizer has {len(tokenizer)} "
            f"tokens, with ids up to {largest}, and the model has {known} embeddings; the two do not belong together: "
            "name the model's own: tokenizer=DIR"
        )


def _no_tokenizer(source: Source) -> InputError:
    return InputError(
        f"{source.place} must hold a tokenizer, but there is no tokenizer here, as in many checkpoints of trainings; "
        "name the directory or hub id that has it: tokenizer=DIR"
    )
