"""A place on storage that is reached by URL, such as s3://bucket/run: it stands where a `Path` stands for local files.

fsspec and its drivers (s3fs, gcsfs, adlfs, ...) do the work. Each object is put whole under its key, which object
stores do atomically. Nothing is appended to, renamed or locked, which they cannot do.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

from tangentlens.errors import StorageError

# File systems on which an object that is being put can be seen half-written.
_NOT_WHOLE = ("arrow_hdfs", "dbfs", "ftp", "hdfs", "jlab", "jupyter", "root", "sftp", "smb", "ssh", "webhdfs")
_CHECK = "check that the bucket is there, that this machine can reach it, and that its credentials may"


@dataclass(frozen=True)
class Remote:
    """An object or folder at a URL. It has those methods of a `Path` that a run needs.

    Attributes:
        url: The URL, without a slash at its end.

    >>> place = Remote("memory://runs") / "my-run" / "manifest.json"
    >>> place.put(b"{}")
    >>> place.exists(), place.parent.name, place.read_bytes()
    (True, 'my-run', b'{}')
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}") if name else self

    @property
    def name(self) -> str:
        """The last word of the URL."""
        return PurePosixPath(self.url).name

    @property
    def stem(self) -> str:
        """The name without its ending."""
        return PurePosixPath(self.url).stem

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return PurePosixPath(self.url).suffix

    @property
    def parent(self) -> Remote:
        """The folder that it is in."""
        return Remote(self.url.rpartition("/")[0])

    @property
    def parents(self) -> tuple[Remote, ...]:
        """Nothing: folders of a store come and go with what they hold."""
        return ()

    def with_name(self, name: str) -> Remote:
        """Return the place of another name in the same folder."""
        return self.parent / name

    def absolute(self) -> Remote:
        """Return the place itself."""
        return self

    def exists(self) -> bool:
        """Return whether there is an object, or a folder that holds one."""
        # `exists` of some drivers also says no if the store cannot be reached.
        try:
            with self._reached("read") as (store, key):
                store.info(key)
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self, start: int | None = None, end: int | None = None) -> bytes:
        """Return what an object holds, or its bytes from `start` to `end`; raise `FileNotFoundError` without one."""
        with self._reached("read") as (store, key):
            return bytes(store.cat_file(key, start=start, end=end))

    def put(self, data: bytes) -> None:
        """Write an object whole: whoever reads it gets the old one or the new one, even if this process dies."""
        protocol = self.url.partition("://")[0]
        if protocol in _NOT_WHOLE:
            raise StorageError(
                f"a run must be written to a folder or an object store, but {self} is on {protocol}, where a file can "
                "be seen half-written; mount it, and name the folder"
            )
        with self._changed("write") as (store, key):
            store.pipe_file(key, data)

    def children(self) -> list[Remote]:
        """Return the objects and folders in a folder; none if there is no such folder."""
        return list(self.described())

    def described(self) -> dict[Remote, dict[str, Any]]:
        """Return the objects and folders in a folder, by name, each with what the store says about it."""
        try:
            with self._reached("list") as (store, key):
                listed = {str(one["name"]): dict(one) for one in store.ls(key, detail=True)}
        except FileNotFoundError:
            return {}
        # A console may leave an object that stands for the folder itself.
        inside = {PurePosixPath(one).name: about for one, about in listed.items() if one.strip("/") != key.strip("/")}
        return {self / name: inside[name] for name in sorted(inside)}

    def copy(self, to: Remote) -> None:
        """Copy an object, inside the store."""
        with self._changed("copy") as (store, key):
            store.cp_file(key, _opened(to.url)[1])

    def remove(self) -> None:
        """Remove an object, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._reached("remove") as (store, key):
            store.rm_file(key)

    def remove_tree(self) -> None:
        """Remove every object in a folder."""
        with contextlib.suppress(FileNotFoundError), self._reached("remove") as (store, key):
            for one in store.find(key):
                store.rm_file(one)

    def check_writable(self) -> None:
        """Raise if nothing can be written here, by writing and removing a small object."""
        trial = self / f".{uuid4().hex}.tmp"
        trial.put(b"tangentlens")
        trial.remove()

    @contextlib.contextmanager
    def _changed(self, doing: str) -> Iterator[tuple[Any, str]]:
        """Yield the store and the key; nothing to be found means that the bucket is not there."""
        try:
            with self._reached(doing) as found:
                yield found
        except FileNotFoundError as error:
            raise self._failed(doing, error.__cause__ or error) from error

    @contextlib.contextmanager
    def _reached(self, doing: str) -> Iterator[tuple[Any, str]]:
        """Yield the store and the key; its errors are told as those of this package."""
        try:
            yield _opened(self.url)
        except StorageError:
            raise
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url) from error
        # Drivers raise errors of their own, which have no class in common.
        except Exception as error:
            raise self._failed(doing, error) from error

    def _failed(self, doing: str, error: BaseException) -> StorageError:
        reason = " ".join(str(error).split())
        return StorageError(f"could not {doing} {self}: {type(error).__name__}: {reason}; {_CHECK} {doing} there")


def _opened(url: str) -> tuple[Any, str]:
    """Return the store of a URL and the key there; whatever is needed to reach it is asked of its driver."""
    from fsspec.core import url_to_fs
    from fsspec.registry import available_protocols, known_implementations

    protocol = url.partition("://")[0]
    if protocol not in available_protocols():
        raise StorageError(
            f"a URL must begin with a protocol that fsspec knows, such as s3:// or gs://, but {url} begins with "
            f"{protocol}://; correct it, or name a folder"
        )
    try:
        # Others write there too, so that no list may be remembered.
        store, key = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        package = known_implementations.get(protocol, {}).get("class", protocol).partition(".")[0]
        todo = f"{error}" if package == "fsspec" else f"pip install {package}, on every machine that takes part"
        raise StorageError(
            f"{protocol}:// must have its driver to be reached, but that is not installed; {todo}"
        ) from error
    return store, str(key)
