"""What is left of a command that fails before anything was measured: nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tangentlens.errors import StorageError
from tangentlens.runs.files import Place, remove_tree
from tangentlens.runs.run import Run, is_run


@contextlib.contextmanager
def leaving_no_empty_run(path: Place, inputs: Collection[str] = ()) -> Iterator[None]:
    """Remove the run directory that a block creates if the block fails before anything was measured.

    Args:
        path: The directory; one that was there before is not touched.
        inputs: Names of tensors that were not measured but given.
    """
    path = path.absolute()
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        # A store that has gone away must not hide why the block failed.
        with contextlib.suppress(StorageError):
            if created and is_run(path) and set(Run(path).names) <= set(inputs):
                remove_tree(path)
                _remove_empty(created[1:])
        raise


def _remove_empty(folders: Sequence[Place]) -> None:
    for folder in folders:
        # Another process may have put something there in the meantime.
        with contextlib.suppress(OSError):
            if isinstance(folder, Path):
                folder.rmdir()
