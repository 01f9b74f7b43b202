"""Atomic writes: files that appear whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from tangentlens.errors import InputError, StorageError

# The file that processes lock to change a manifest, one after the other.
LOCK = ".lock"


def make_directory(path: Path) -> None:
    """Create a directory with its parents, or raise an error that says why it cannot be created."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} must be a folder that can be written to, but: {error.strerror}; choose another"
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A context in which no other process that asks for it changes what is known of a folder."""
    guard = FileLock(folder / LOCK)
    try:
        guard.acquire()
    except OSError as error:
        raise _not_written(folder / LOCK, error) from error
    try:
        yield
    finally:
        guard.release()


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically: readers see the old file or the new one, even after a crash or a full disk."""
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
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"could not write {path}: {error.strerror}; what was there before is untouched, make room or choose another "
        "folder and run again"
    )


def _sync_directory(path: Path) -> None:
    """Flush a directory to disk, without which a rename in it does not survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
