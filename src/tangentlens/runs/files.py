"""Where files are, and how they are written: each appears whole or not at all, in a folder or at a URL."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock

from tangentlens.errors import InputError, StorageError
from tangentlens.runs.remote import Remote

Place = Path | Remote

# The file that processes lock to change a manifest, one after the other.
LOCK = ".lock"
# Objects that are read at the same time: each of them takes long to begin.
_AT_ONCE = 16


def as_place(path: str | Place) -> Place:
    """Return where a path or a URL points to.

    >>> as_place("s3://bucket/runs/"), as_place("file:///runs/demo"), as_place("runs/demo")
    (Remote(url='s3://bucket/runs'), PosixPath('/runs/demo'), PosixPath('runs/demo'))
    """
    if isinstance(path, Remote):
        return path
    if isinstance(path, Path):
        _check_no_url(path)
        return path
    protocol, is_url, rest = path.partition("://")
    if not is_url:
        return Path(path)
    if protocol in ("http", "https"):
        raise InputError(
            f"a run or a model must be in a folder, at the URL of an object store such as s3://bucket/run, or on the "
            f"hub by its id, but {path} is a web page; name one of these"
        )
    if not rest.strip("/"):
        raise InputError(f"a URL must name a bucket or folder, but {path} names none; write {path}NAME")
    return Path(rest) if protocol in ("file", "local") else Remote(path.rstrip("/"))


def _check_no_url(path: Path) -> None:
    """Raise if a path was a URL, of which a `Path` has removed a slash."""
    first = path.parts[0] if path.parts else ""
    if first.endswith(":"):
        from fsspec.registry import available_protocols

        if first[:-1] in available_protocols():
            url = f"{first}//{'/'.join(path.parts[1:])}"
            raise InputError(f"a URL must be given as text, but {path} came as a Path; write {url!r} instead")


def file_name(name: str) -> str:
    """Return a name as that of a plain file: percent-encoded, without slashes, and not hidden."""
    return quote(name, safe="@=").replace(".", "%2E", name.startswith("."))


def make_directory(path: Place) -> None:
    """Create a directory with its parents, or raise an error that says why it cannot be created."""
    if isinstance(path, Remote):
        # Folders of a store are there as soon as they hold something.
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} must be a folder that can be written to, but: {error.strerror}; choose another"
        ) from error


def entries(folder: Place) -> Sequence[Place]:
    """Return what is in a folder, by name; nothing if it is none."""
    if isinstance(folder, Remote):
        return folder.children()
    return sorted(folder.iterdir()) if folder.is_dir() else []


def files_in(folder: Place, suffix: str = "") -> list[Place]:
    """Return the files in a folder that are not hidden and end in `suffix`."""
    return [path for path in entries(folder) if not path.name.startswith(".") and path.name.endswith(suffix)]


def readable(paths: Sequence[Place]) -> Iterator[Path | BytesIO]:
    """Yield what a reader of files takes for each path: itself, or what the object holds."""
    objects = [path for path in paths if isinstance(path, Remote)]
    if objects:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(_content, objects)
    else:
        yield from (path for path in paths if isinstance(path, Path))


def _content(path: Remote) -> BytesIO:
    try:
        return BytesIO(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"{path} must stay where it is while it is read, but is gone; read it again") from error


@contextlib.contextmanager
def locked(folder: Place) -> Iterator[None]:
    """A context in which no other process that asks for it changes what is known of a folder; at a URL, any may."""
    if isinstance(folder, Remote):
        yield
        return
    guard = FileLock(folder / LOCK)
    try:
        guard.acquire()
    except OSError as error:
        raise _not_written(folder / LOCK, error) from error
    try:
        yield
    finally:
        guard.release()


def write_whole(path: Place, data: bytes) -> None:
    """Write `data` to `path` atomically: readers see the old file or the new one, even after a crash or a full disk."""
    if isinstance(path, Remote):
        path.put(data)
        return
    # Processes of several machines may write the same file at once, and their numbers may be equal.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
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


def move(path: Place, to: Place) -> None:
    """Move a file inside its run. At a URL it is copied and then removed: if that is interrupted, both are there."""
    make_directory(to.parent)
    if isinstance(path, Remote) and isinstance(to, Remote):
        path.copy(to)
        path.remove()
    elif isinstance(path, Path) and isinstance(to, Path):
        path.replace(to)


def remove(path: Place) -> None:
    """Remove a file, if it is there."""
    if isinstance(path, Remote):
        path.remove()
    else:
        path.unlink(missing_ok=True)


def remove_tree(folder: Place) -> None:
    """Remove a folder with all that is in it."""
    if isinstance(folder, Remote):
        folder.remove_tree()
    else:
        shutil.rmtree(folder)


def check_reachable(place: Place) -> None:
    """Raise if a place at a URL cannot be written to. A folder is asked when it is made."""
    if isinstance(place, Remote):
        place.check_writable()


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
