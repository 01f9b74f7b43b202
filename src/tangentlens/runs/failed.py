"""What is left of a command that fails before anything was measured: nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from tangentlens.runs.run import Run, is_run


@contextlib.contextmanager
def leaving_no_empty_run(path: Path, inputs: Collection[str] = ()) -> Iterator[None]:
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
        if created and is_run(path) and set(Run(path).names) <= set(inputs):
            shutil.rmtree(path)
            for folder in created[1:]:
                # Another process may have put something there in the meantime.
                with contextlib.suppress(OSError):
                    folder.rmdir()
        raise
