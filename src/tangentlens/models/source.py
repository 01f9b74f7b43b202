"""Where a model comes from: a directory, or a repository on the hub."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tangentlens.errors import InputError

# Commands that write safetensors; both were run with transformers 5.
_CONVERT = (
    'python -c "from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained('{folder}').save_pretrained('{folder}')\""
)
_CONVERT_GGUF = (
    "pip install gguf, then "
    'python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T, GgufConfig as G; '
    "a = '{folder}'; f = '{file}'; "
    "M.from_pretrained(a, gguf_file=f, quantization_config=G(dequantize=True)).save_pretrained('{folder}-converted'); "
    "T.from_pretrained(a, gguf_file=f).save_pretrained('{folder}-converted')\""
)


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        place: The directory or the hub id.
        revision: The revision on the hub; empty if none was given.
    """

    place: str
    revision: str = ""

    @classmethod
    def of(cls, spec: str) -> Source:
        """Return the source of a model, given as a directory, a hub id or `id@revision`."""
        path = Path(spec)
        if path.is_dir():
            return cls(spec)
        if path.suffix == ".gguf":
            raise _gguf(path.parent, path.name)
        if spec.startswith((".", "/", "~")) or spec.count("/") > 1:
            raise InputError(f"MODEL must be a directory that exists or a hub id, but there is no directory {spec!r}")
        place, _, revision = spec.partition("@")
        return cls(place, revision)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return Path(self.place).is_dir()

    def options(self, trust_remote_code: bool) -> dict[str, Any]:
        """Return what every loader of transformers is told. Without the hub, it tries only what was downloaded."""
        cached = not self.is_directory and not hub_answers()
        return {"revision": self.revision or "main", "trust_remote_code": trust_remote_code, "local_files_only": cached}

    def has(self, name: str) -> bool:
        """Return whether a file is in the directory, or was downloaded from the hub."""
        return (Path(self.place) / name).is_file() if self.is_directory else self._downloaded(name) is not None

    @property
    def commit(self) -> str:
        """The commit that the revision was when it was downloaded; empty for a directory."""
        found = None if self.is_directory else self._downloaded("config.json")
        # The hub's cache has a folder for each commit.
        return "" if found is None else Path(found).parent.name

    def _downloaded(self, name: str) -> str | None:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.place, name, revision=self.revision or "main")
        return found if isinstance(found, str) else None

    def check_weights(self) -> None:
        """Raise if a directory has weights in another format than safetensors; say how to convert them."""
        folder = Path(self.place)
        if not self.is_directory or any(folder.glob("*.safetensors")):
            return
        gguf = next(iter(sorted(folder.glob("*.gguf"))), None)
        if gguf is not None:
            raise _gguf(folder, gguf.name)
        pickled = next((path.name for path in sorted(folder.glob("pytorch_model*.bin"))), None)
        if pickled is not None:
            raise InputError(
                f"{self.place} must hold its weights as safetensors, but holds {pickled}, a pickle, which can run any "
                "code when it is read and is therefore not read here; if you trust it, convert it: "
                f"{_CONVERT.format(folder=self.place)} (for an encoder, with AutoModelForMaskedLM)"
            )


def _gguf(folder: Path, file: str) -> InputError:
    return InputError(
        f"MODEL must be a directory with safetensors weights, but {folder / file} is a GGUF file; convert it: "
        f"{_CONVERT_GGUF.format(folder=folder, file=file)}, and name {folder}-converted"
    )


@cache
def hub_answers() -> bool:
    """Return whether the hub can be reached; it is asked once, because each file would be tried several times."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    # What is raised depends on the version of the hub's client, and on what is in the way.
    except Exception:
        return False
    return True
