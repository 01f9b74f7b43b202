"""Checkpoints on the hub: how large they are, one that is downloaded ahead, and how they are removed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tqdm.auto import tqdm

from tangentlens.models.source import Source, hub_answers
from tangentlens.studies.sweep.series import Checkpoint

# What a model is loaded from. Many repositories hold the same weights in other formats too.
_FILES = ("*.safetensors", "*.json", "*.model", "*.txt", "*.py")


class _NoBar(tqdm):  # type: ignore[misc]
    """A progress bar that is not shown, beside that of the sweep."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


class Ahead:
    """Downloads one checkpoint while another is measured."""

    def __init__(self) -> None:
        self._pool, self._coming = ThreadPoolExecutor(1), Future[None]()
        self._coming.set_result(None)

    def begin(self, checkpoint: Checkpoint) -> None:
        """Begin to download a checkpoint, unless it is here."""
        if not is_here(checkpoint) and hub_answers():
            self._coming = self._pool.submit(download, checkpoint)

    def wait(self) -> None:
        """Wait for what is on its way; if its download fails, the reason is told when it is loaded."""
        self._coming.exception()

    def close(self) -> None:
        """Begin no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def is_here(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint need not be downloaded: it is a directory, or in the hub's cache."""
    source = Source.of(checkpoint.spec)
    if source.is_directory:
        return True
    return source.has("model.safetensors") or source.has("model.safetensors.index.json")


def download(checkpoint: Checkpoint) -> None:
    """Download what a checkpoint on the hub is loaded from."""
    from huggingface_hub import snapshot_download

    source = Source.of(checkpoint.spec)
    snapshot_download(source.place, revision=source.revision or "main", allow_patterns=list(_FILES), tqdm_class=_NoBar)


def size_on_hub(checkpoint: Checkpoint) -> int | None:
    """Return the bytes of the weights of a checkpoint on the hub; None where the hub does not say."""
    from huggingface_hub import HfApi, constants

    source = Source.of(checkpoint.spec)
    if source.is_directory or not hub_answers():
        return None
    try:
        about = HfApi(endpoint=constants.ENDPOINT).model_info(
            source.place, revision=source.revision or "main", files_metadata=True
        )
    # What is raised depends on the version of the hub's client, and on what is in the way.
    except Exception:
        return None
    files = about.siblings or []
    return sum(file.size or 0 for file in files if file.rfilename.endswith(".safetensors")) or None


def forget(checkpoint: Checkpoint) -> None:
    """Remove a checkpoint from the hub's cache; files that other revisions share stay."""
    from huggingface_hub import scan_cache_dir

    source = Source.of(checkpoint.spec)
    commit = source.commit
    if commit:
        scan_cache_dir().delete_revisions(commit).execute()
