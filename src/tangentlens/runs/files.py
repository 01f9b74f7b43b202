"""Files that appear whole or not at all."""

import contextlib
import os
from pathlib import Path

from tangentlens.errors import InputError


def make_directory(path: Path) -> None:
    """Create `path` with its parents, or say why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} must be a folder that can be written to, but: {error.strerror}; choose another"
        ) from error


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`: readers see the old file or the new one, also after a crash or on a full disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise InputError(
            f"could not write {path}: {error.strerror}; what was there before is untouched, "
            "make room or choose another folder and run again"
        ) from error


def _sync_directory(path: Path) -> None:
    """A rename survives a power cut only once its folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
