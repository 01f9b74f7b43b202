"""Checkpoints of a training as transformers keeps them: one folder a step, and the tokenizer beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tangentlens.corpora.tokens import SPECIALS
from tangentlens.runs.files import make_directory


def keep_checkpoint(model: Any, folder: Path, step: int) -> None:
    """Save the weights of a model under the number of a step; what was saved before is left as it is.

    Args:
        model: A model of transformers.
        folder: Where the checkpoints of this model are.
        step: The number of the step.
    """
    whole, draft = folder / f"checkpoint-{step}", folder / f".checkpoint-{step}"
    if not whole.exists():
        make_directory(folder)
        model.save_pretrained(draft)
        # A checkpoint is there whole or not at all.
        draft.replace(whole)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int) -> None:
    """Save a tokenizer for all checkpoints of a folder.

    Args:
        tokenizer: The tokenizer, which has the usual special tokens.
        folder: The folder.
        longest: The largest number of tokens that the model takes at once.
    """
    from transformers import PreTrainedTokenizerFast

    pad, mask = SPECIALS
    make_directory(folder)
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=longest, pad_token=pad, mask_token=mask
    )
    whole.save_pretrained(folder)
