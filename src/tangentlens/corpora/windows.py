"""Windows of tokens from all over a text, in random order; of a long text, only what is used is read."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from tangentlens.corpora.text import builtin_text, no_text_file
from tangentlens.errors import InputError
from tangentlens.lazy import cached_property

# Bytes that are read at once.
_CHUNK = 2**16
# The largest number of chunks that enter a fingerprint.
_LOOKED_AT = 256
# How many bytes are searched for white space at which to cut.
_LONGEST_WORD = 256
# Windows of this many chunks are shuffled together.
_MIXED = 16


@dataclass(frozen=True)
class Text:
    """A text that is read in pieces.

    Attributes:
        path: A UTF-8 file; if None, the text is `content` or, without any, `builtin_text`.
        content: The text itself.
    """

    path: Path | None = None
    content: bytes | None = None

    @property
    def size(self) -> int:
        """The size of the text in bytes."""
        if self.path is None:
            return len(self._held)
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise no_text_file(self.path, error) from error

    @cached_property
    def _held(self) -> bytes:
        """The text, if it is not a file."""
        return builtin_text().encode() if self.content is None else self.content

    @property
    def fingerprint(self) -> str:
        """The SHA-256 hash of the size and of up to 256 evenly spaced chunks: of the whole text, up to 16 MiB."""
        digest = hashlib.sha256(str(self.size).encode())
        n_chunks = -(-self.size // _CHUNK)
        for place in range(min(n_chunks, _LOOKED_AT)):
            chunk = place * n_chunks // min(n_chunks, _LOOKED_AT)
            digest.update(self._bytes(chunk * _CHUNK, _CHUNK))
        return digest.hexdigest()

    @property
    def identity(self) -> dict[str, str | int]:
        """What a run's manifest keeps of the text, to recognise it."""
        return {"fingerprint": self.fingerprint, "bytes": self.size}

    def piece(self, start: int, length: int) -> str:
        """Return the text of about the given bytes, cut at white space near both ends.

        If there is no white space near an end, the text is cut between two characters.

        Args:
            start: The first byte.
            length: Number of bytes.
        """
        data = self._bytes(start, length)
        first = 0 if start == 0 else _cut(data)
        last = len(data) if start + length >= self.size else len(data) - _cut(data[::-1])
        for end in range(last, last - 4, -1):
            # The last character, of up to 4 bytes, may be incomplete.
            with contextlib.suppress(UnicodeDecodeError):
                return data[first:end].decode()
        raise InputError(f"{self.path} must be UTF-8 text, but is not, at byte {start} or after; convert it first")

    def pieces(self) -> Iterator[str]:
        """Yield the whole text, a piece at a time; words that are cut between two pieces are left out."""
        for start in range(0, self.size, _CHUNK):
            yield self.piece(start, _CHUNK)

    def _bytes(self, start: int, length: int) -> bytes:
        """Return up to `length` bytes of the text from `start` on."""
        if self.path is None:
            return self._held[start : start + length]
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise no_text_file(self.path, error) from error


def windows(text: Text, encode: Callable[[str], list[int]], length: int, seed: int) -> Iterator[Int[Tensor, "length"]]:
    """Yield all windows of `length` tokens of a text, each once, in random order.

    Args:
        text: The text. It is read in chunks, and tokens that do not fill a window at the end of one are left out.
        encode: Turns text into token ids.
        length: Tokens in a window.
        seed: Seed of the order.

    >>> first = next(windows(Text(), lambda piece: list(piece.encode()), length=8, seed=0))
    >>> first.shape
    torch.Size([8])
    """
    generator = torch.Generator().manual_seed(seed)
    n_chunks = -(-text.size // _CHUNK)
    order = torch.randperm(n_chunks, generator=generator).tolist()
    for mixed in range(0, n_chunks, _MIXED):
        pool: list[Tensor] = []
        for chunk in order[mixed : mixed + _MIXED]:
            ids = torch.tensor(encode(text.piece(chunk * _CHUNK, _CHUNK)), dtype=torch.int64)
            pool += ids[: len(ids) // length * length].reshape(-1, length).unbind()
        for place in torch.randperm(len(pool), generator=generator).tolist():
            yield pool[place]


def _cut(data: bytes) -> int:
    """Return how many bytes to leave out at the beginning: up to the first white space, or the rest of a character."""
    space = re.search(rb"[ \n]", data[:_LONGEST_WORD])
    if space:
        return space.end()
    return next((place for place, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
