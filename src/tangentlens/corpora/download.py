"""The download of enwik8 from its public home, verified before a file appears."""

from __future__ import annotations

import hashlib
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from tangentlens.errors import InputError
from tangentlens.runs.files import make_directory, write_whole
from tangentlens.runs.progress import Progress, Watch, unwatched

URL = "https://mattmahoney.net/dc/enwik8.zip"
# The size and SHA-256 hash of enwik8.zip.
SIZE = 36_445_475
SHA256 = "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc"

_CHUNK = 2**18
# Seconds without a byte after which a download has failed.
_PATIENCE = 60


def download(path: Path, url: str = URL, size: int = SIZE, sha256: str = SHA256, watch: Watch = unwatched) -> None:
    """Download enwik8.zip; if `path` already holds it, nothing is done, and another file there is never replaced.

    The file appears whole, with the right hash, or not at all.

    Args:
        path: The file to write.
        url: Where it comes from.
        size: The size that the file must have, in bytes.
        sha256: The SHA-256 hash that it must have.
        watch: Called with the number of bytes that have come.
    """
    if path.exists():
        _check_kept(path, sha256)
        return
    make_directory(path.parent)
    data = _fetch(url, size, Progress(path.name, 0, size), watch)
    found = hashlib.sha256(data).hexdigest()
    if (len(data), found) != (size, sha256):
        raise InputError(
            f"{url} must give {size:,} bytes with the SHA-256 {sha256}, but gave {len(data):,} with {found}; "
            "nothing was written, try again or get the file in another way"
        )
    write_whole(path, data)


def _check_kept(path: Path, sha256: str) -> None:
    """Raise if a file is not the one to be downloaded."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} must be a file, but: {error.strerror}; choose another path") from error
    if found != sha256:
        raise InputError(
            f"{path} must be free for the download, but is a file with the SHA-256 {found}, not {sha256}; "
            "move it away or choose another path"
        )


def _fetch(url: str, size: int, progress: Progress, watch: Watch) -> bytes:
    """Return what an address gives, up to a little more than `size` bytes."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"url must begin with http:// or https://, but is {url!r}")
    data = bytearray()
    try:
        with urlopen(url, timeout=_PATIENCE) as answer:
            while len(data) <= size and (chunk := answer.read(_CHUNK)):
                data += chunk
                watch(progress._replace(done=min(len(data), size)))
    except (OSError, HTTPException) as error:
        raise InputError(
            f"{url} must give {size:,} bytes, but failed after {len(data):,} ({error}); check the network, or get the "
            "file in another way"
        ) from error
    return bytes(data)
