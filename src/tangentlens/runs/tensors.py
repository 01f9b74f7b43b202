"""Files of named tensors with text about them, in safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.runs.files import Place
from tangentlens.runs.remote import Remote

# A file begins with the length of its header in so many bytes, then the header in JSON, with the text in one entry.
_LENGTH, _TEXT = 8, "__metadata__"
# Bytes of an object that are read first; most headers are shorter.
_FIRST = 2**16


def load_tensors(path: Place) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Return the tensors of a file and the text about them, or None if there is no such file."""
    try:
        return _load_object(path) if isinstance(path, Remote) else _load_file(path)
    except FileNotFoundError:
        return None
    except safetensors.SafetensorError as error:
        raise InputError(
            f"{path} must be a safetensors file, but cannot be read ({error}); "
            "delete it and run the same command again, which recreates it (a checkpoint by training again)"
        ) from error


def about_tensors(path: Place) -> dict[str, str] | None:
    """Return the text about the tensors of a file, or None if there is none or it cannot be read."""
    try:
        if isinstance(path, Remote):
            return _text(_header(path))
        with safetensors.safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError, safetensors.SafetensorError):
        return None


def _load_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safetensors.safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _load_object(path: Remote) -> tuple[dict[str, Tensor], dict[str, str]]:
    data = path.read_bytes()
    return safetensors.torch.load(data), _text(data[_LENGTH : _end(data)])


def _header(path: Remote) -> bytes:
    """Return the header of an object, without its tensors."""
    first = path.read_bytes(0, _FIRST)
    end = _end(first)
    # What has fewer bytes than were asked for was read whole.
    return first[_LENGTH:end] if end <= len(first) or len(first) < _FIRST else path.read_bytes(_LENGTH, end)


def _end(data: bytes) -> int:
    return _LENGTH + int.from_bytes(data[:_LENGTH], "little")


def _text(header: bytes) -> dict[str, str]:
    entries: dict[str, Any] = json.loads(header)
    return dict(entries.get(_TEXT, {}))
