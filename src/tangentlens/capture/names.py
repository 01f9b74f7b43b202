"""Names of sites: which of them a pattern means, and how deep in the network a name is."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from tangentlens.capture.blocks import ADDED
from tangentlens.errors import InputError

# Portable names of families of sites: one for each block, or one more.
_FAMILIES = ("resid", *ADDED)


def meant(pattern: str, names: Collection[str], portable: Collection[str]) -> Sequence[str]:
    """Return the names that a pattern means: a name, a glob, a family, or at most so many of these.

    Args:
        pattern: The pattern.
        names: All names, in the order of the network.
        portable: Those that may belong to a family. Parts of an MLP that is a `Sequential` have paths like its members.

    >>> meant("resid:2", ["resid.0", "mlp.0", "resid.1", "mlp.1", "resid.2"], ["resid.0", "resid.1", "resid.2"])
    ['resid.0', 'resid.2']
    """
    name, most = _most(pattern)
    found = [one for one in names if fnmatchcase(one, name) or (one in portable and _of_family(one, name))]
    return _spread(found, most)


def depths(names: Collection[str]) -> dict[str, float | None]:
    """Return how deep each name is between the first block, 0, and the last, 1; None where the name does not tell.

    The last block is the last that a name tells of, in each half of an encoder-decoder.

    >>> depths(["embed", "resid.1", "mlp.1", "resid.2", "gate"])
    {'embed': 0.0, 'resid.1': 0.5, 'mlp.1': 0.75, 'resid.2': 1.0, 'gate': None}
    """
    places = {name: _place(name) for name in names}
    blocks: dict[str, int] = {}
    for half, place in places.values():
        blocks[half] = max(blocks.get(half, 1), math.ceil(place or 0))
    ends = {"embed": 0.0, "final": 1.0}
    return {
        name: ends.get(name.split(".")[-1]) if place is None else place / blocks[half]
        for name, (half, place) in places.items()
    }


def _place(name: str) -> tuple[str, float | None]:
    """Return the half that a name is of, '' if of the whole, and how many blocks are before it; None if not known."""
    parts = re.fullmatch(rf"(.*?)\.?({'|'.join(_FAMILIES)})\.(\d+)", name)
    if parts is None:
        return "", None
    half, family, number = parts.groups()
    # What a block adds is half-way through it.
    return half, int(number) + (0.0 if family == "resid" else 0.5)


def _most(pattern: str) -> tuple[str, int | None]:
    """Split `resid:8` into the name and how many of its sites are wanted at most; None for all."""
    name, colon, number = pattern.rpartition(":")
    if not colon:
        return pattern, None
    if not number.isdecimal() or int(number) < 2:
        raise InputError(f"the number of sites after ':' must be at least 2, but {pattern!r} came; write {name}:8")
    return name, int(number)


def _spread(names: Sequence[str], most: int | None) -> Sequence[str]:
    """Return at most so many names, evenly spread from the first to the last."""
    if most is None or len(names) <= most:
        return names
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]


def _of_family(name: str, pattern: str) -> bool:
    """Return whether the pattern names a family of sites, in all stacks or in one, that this site belongs to."""
    return pattern.split(".")[-1] in _FAMILIES and bool(re.search(rf"(^|\.){re.escape(pattern)}\.\d+$", name))
