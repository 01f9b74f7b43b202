"""Tokenization: a byte-level BPE tokenizer trained on a text, and the text as sequences of one length."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from tangentlens.errors import InputError, check_whole

# Special tokens; their ids are the first ones.
SPECIALS = ("[PAD]", "[MASK]")
PAD, MASK = range(len(SPECIALS))


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text as sequences of token ids of equal length.

    Attributes:
        sequences: The token ids, `(n_sequences, length)`.
        vocabulary: Number of token types.
        text: Returns the text of token ids.
    """

    sequences: Int[Tensor, "n_sequences length"]
    vocabulary: int
    text: Callable[[list[int]], str] = str

    @property
    def counts(self) -> Int[Tensor, "vocabulary"]:
        """The number of occurrences of each token id."""
        return self.sequences.flatten().bincount(minlength=self.vocabulary)

    @property
    def sha256(self) -> str:
        """The SHA-256 hash of the sequences: equal hashes mean the same text, tokenized in the same way."""
        return hashlib.sha256(self.sequences.numpy().tobytes()).hexdigest()


# All parts of a study read the same text.
@lru_cache(maxsize=1)
def tokenize(text: str, vocabulary: int, length: int) -> TokenizedText:
    """Train a byte-level BPE tokenizer on the text itself, and return the text as sequences.

    Args:
        text: The text.
        vocabulary: Largest number of token types.
        length: Tokens in a sequence; tokens at the end that do not fill one are left out.

    >>> tokens = tokenize("the cat sat on the mat. " * 50, vocabulary=280, length=16)
    >>> tokens.sequences.shape[1], int(tokens.counts.sum()) == tokens.sequences.numel()
    (16, True)
    """
    tokenizer = train_tokenizer(text, vocabulary)
    ids = torch.tensor(tokenizer.encode(text).ids)
    return in_sequences(ids, tokenizer.get_vocab_size(), length, partial(tokenizer.decode, skip_special_tokens=False))


def in_sequences(
    ids: Int[Tensor, "n"], vocabulary: int, length: int, text: Callable[[list[int]], str] = str
) -> TokenizedText:
    """Return token ids as sequences of one length; those at the end that do not fill one are left out.

    Args:
        ids: The token ids of a text.
        vocabulary: Number of token types.
        length: Tokens in a sequence.
        text: Returns the text of token ids.
    """
    check_whole(1, length=length)
    n = len(ids) // length
    if n < 1:
        raise InputError(f"the text must give at least {length} tokens, but gives {len(ids)}; use a longer text")
    return TokenizedText(ids[: n * length].reshape(n, length), vocabulary, text)


def train_tokenizer(text: str, vocabulary: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer that is trained on a text.

    Args:
        text: The text.
        vocabulary: Largest number of token types, `SPECIALS` included, which come first.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer
