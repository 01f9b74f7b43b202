"""The 205 symbols of enwik8, which are bytes, and their ids (docs/enwik8.md#the-vocabulary)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tangentlens.corpora.tokens import SPECIALS
from tangentlens.errors import InputError

# The distinct bytes of raw enwik8: tab and line feed, printable ASCII, and those of its characters beyond ASCII.
# First bytes of characters that never occur are missing: 0xDD, 0xDF, 0xEE, and all from 0xF1 on.
SYMBOLS = bytes(
    [0x09, 0x0A, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xDD), 0xDE, *range(0xE0, 0xEE), 0xEF, 0xF0]
)

# Special tokens have the first ids.
N_IDS = len(SPECIALS) + len(SYMBOLS)

_NO_ID = -1
_ID_OF_BYTE = np.full(256, _NO_ID)
_ID_OF_BYTE[list(SYMBOLS)] = np.arange(len(SPECIALS), N_IDS)


def spell(text: str) -> bytes:
    """Return the UTF-8 form of a text, without characters that the symbols cannot spell.

    >>> spell("no bell" + chr(7))
    b'no bell'
    """
    try:
        spelled = text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"a text must be Unicode, but has {text[error.start]!r}; decode it in another way") from error
    if not spelled.translate(None, SYMBOLS):
        return spelled
    unknown = [character for character in set(text) if character.encode().translate(None, SYMBOLS)]
    return text.translate(dict.fromkeys(map(ord, unknown))).encode()


def encode(symbols: bytes) -> Int[Tensor, "n"]:
    """Return the ids of symbols.

    >>> encode("é".encode()).tolist()
    [164, 140]
    """
    ids = _ID_OF_BYTE[np.frombuffer(symbols, dtype=np.uint8)]
    if (ids == _NO_ID).any():
        place = int((ids == _NO_ID).argmax())
        raise InputError(
            f"symbols must be among the {len(SYMBOLS)} bytes of enwik8, but byte {place:,} is 0x{symbols[place]:02X}; "
            "`spell` leaves such characters out of a text"
        )
    return torch.from_numpy(ids)


def decode(ids: Int[Tensor, "n"]) -> bytes:
    """Return the symbols of ids, special tokens left out. Text that is cut may begin or end inside a character.

    >>> decode(encode(b"any text")).decode("utf-8", "replace")
    'any text'
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < N_IDS:
        raise InputError(f"ids must be from 0 to {N_IDS - 1}, but are from {int(ids.min())} to {int(ids.max())}")
    places = ids[ids >= len(SPECIALS)].cpu().numpy() - len(SPECIALS)
    return np.frombuffer(SYMBOLS, dtype=np.uint8)[places].tobytes()


def text_of(ids: list[int]) -> str:
    """Return the text of ids; a character that is cut is replaced.

    >>> text_of([164, 140])
    'é'
    """
    return decode(torch.tensor(ids, dtype=torch.int64)).decode("utf-8", "replace")
