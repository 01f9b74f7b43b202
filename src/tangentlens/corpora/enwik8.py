"""enwik8, the first 100,000,000 bytes of a dump of the English Wikipedia: from a file to sequences of symbols."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tangentlens.corpora.symbols import N_IDS, encode, spell, text_of
from tangentlens.corpora.text import no_text_file
from tangentlens.corpora.tokens import TokenizedText, in_sequences
from tangentlens.corpora.wikitext import clean, pages
from tangentlens.errors import InputError, check_whole

# The SHA-256 hashes of the first bytes of enwik8, by their number; the last is the hash of the whole.
PREFIXES = {
    1_000_000: "369b688978f649681136198fb96db14c1616756260c55fb4b65e9bc049552cad",
    2_000_000: "f35c97c117cef50d6650f334befce5415f727139e28d2ff6524e05f1d90bbc68",
    5_000_000: "9d033612ed15474e064c907915497c17ab770420dfe677c8be07ecec7b50867d",
    10_000_000: "5985c81c39d927ae0e169625790ca4d9e7d1531270c8b09ad73176a375bb3d97",
    20_000_000: "ab409e5aee762114c7a3336bbb1093cd64c4a3d81fd3e67510d61d3151c36091",
    100_000_000: "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
}
_LEAST, _WHOLE = min(PREFIXES), max(PREFIXES)

_GET_IT = "get it with `tangentlens enwik8`, or name another file"


def tokenize_enwik8(path: Path, length: int, size: int | None = None) -> TokenizedText:
    """Return enwik8, cleaned, as sequences of symbols, whose ids follow those of the special tokens.

    Args:
        path: The file, as in `read_enwik8`.
        length: Symbols in a sequence; symbols at the end that do not fill one are left out.
        size: How many bytes of the raw text to use, as in `read_enwik8`.
    """
    return in_sequences(encode(clean_enwik8(read_enwik8(path, size))), N_IDS, length, text_of)


def clean_enwik8(raw: bytes) -> bytes:
    """Return the text of the pages of enwik8, without markup, code, media and HTML, in symbols.

    Pages are separated by a blank line. Redirects, and a page that the end cuts, are left out.

    Args:
        raw: enwik8 or a leading piece of it.
    """
    texts = (spell(clean(page)) for page in pages(raw))
    return b"\n\n".join(text for text in texts if text)


def read_enwik8(path: Path, size: int | None = None) -> bytes:
    """Return the raw bytes of enwik8, or of a leading piece of it; any other file is refused.

    Args:
        path: A file of enwik8, of a leading piece of it, or of a longer dump that begins with it, such as enwik9. It
            may be compressed with zip, gzip or xz, whatever its name.
        size: How many bytes to return. None: all that the file has, up to 100,000,000.
    """
    wanted = _WHOLE if size is None else size
    check_whole(1, size=wanted)
    if wanted > _WHOLE:
        raise InputError(f"size must be at most {_WHOLE:,}, all of enwik8, but is {wanted:,}")
    # Reading on to the next known hash verifies all that is returned.
    raw = _content(path, min(place for place in PREFIXES if place >= wanted))
    _check(path, raw)
    if size is not None and len(raw) < size:
        raise InputError(f"{path} must hold the {size:,} bytes asked for, but holds {len(raw):,}; lower `size`")
    return raw[:wanted]


def _check(path: Path, raw: bytes) -> None:
    """Raise if the bytes are too few, or are not the first bytes of enwik8, as far as their hashes are known."""
    if len(raw) < _LEAST:
        raise InputError(f"{path} must hold at least {_LEAST:,} bytes of enwik8, but holds {len(raw):,}; {_GET_IT}")
    digest, done = hashlib.sha256(), 0
    for place, expected in PREFIXES.items():
        if place > len(raw):
            break
        digest.update(memoryview(raw)[done:place])
        if digest.hexdigest() != expected:
            verdict = f"is damaged between bytes {done:,} and {place:,}" if done else "is not"
            raise InputError(
                f"{path} must be enwik8, {_WHOLE:,} bytes, or begin like it, but {verdict}: the SHA-256 of the first "
                f"{place:,} of the {len(raw):,} bytes read is {digest.hexdigest()}, not {expected}; {_GET_IT}"
            )
        done = place


def _content(path: Path, limit: int) -> bytes:
    """Return up to `limit` bytes of a file, unpacked if it is compressed."""
    try:
        with _unpacked(path) as stream:
            return stream.read(limit)
    except (zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(f"{path} must be a whole archive, but cannot be unpacked ({error}); {_GET_IT}") from error
    except OSError as error:
        raise no_text_file(path, error) from error


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file whose first bytes tell whether it is compressed."""
    with path.open("rb") as file:
        head = file.read(6)
        file.seek(0)
        if head.startswith(b"PK"):
            with zipfile.ZipFile(file) as archive, archive.open(_member(path, archive)) as stream:
                yield stream
        elif head.startswith(b"\x1f\x8b"):
            with gzip.open(file) as stream:
                yield stream
        elif head == b"\xfd7zXZ\x00":
            with lzma.open(file) as stream:
                yield stream
        else:
            yield file


def _member(path: Path, archive: zipfile.ZipFile) -> str:
    """Return the name of the only file of an archive."""
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if len(names) != 1:
        raise InputError(f"{path} must hold one file, enwik8, but holds {len(names)}; {_GET_IT}")
    return names[0]
