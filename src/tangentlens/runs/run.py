"""The run directory: its manifest, records and tensors, and how it is created, opened and continued."""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import safetensors.torch
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.notebook import as_html
from tangentlens.runs import tensors as tensor_files
from tangentlens.runs.concepts import concept_table
from tangentlens.runs.files import (
    LOCK,
    Place,
    as_place,
    entries,
    file_name,
    files_in,
    locked,
    make_directory,
    move,
    readable,
    remove,
    write_whole,
)
from tangentlens.runs.formats import FORMAT, upgraded_manifest, upgraded_records
from tangentlens.runs.journal import JOURNAL, MARKS, forget_parts, note_abandoned, note_written, parts_written
from tangentlens.runs.records import SCHEMA, Record, as_frame

# What holds the parts of the records, and the tensors.
FOLDERS = ("records", "tensors")
_PACKAGES = ("tangentlens", "torch", "transformers", "tokenizers", "numpy", "scipy", "polars")


class Run:
    """A run directory, or a run at a URL. `open_run` opens one; `create_run` creates or continues one.

    >>> import tempfile
    >>> run = create_run(tempfile.mkdtemp() + "/my-run", {"rank": 16})
    >>> run.write("step-0", [Record(model="tiny", quantity="activation", metric="anisotropy", value=0.25)])
    >>> run.records["value"].to_list()
    [0.25]
    """

    def __init__(self, path: Place) -> None:
        # An absolute path stays valid if the process changes its working directory.
        self.path = path.absolute()

    @property
    def name(self) -> str:
        """Return the name of the directory."""
        return self.path.resolve().name if isinstance(self.path, Path) else self.path.name

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the manifest: configuration, versions, and facts about the run's models and data."""
        return _read_manifest(self.path)

    @property
    def records(self) -> pl.DataFrame:
        """Return every number of the run as a table; the column `run` is the present name of the directory.

        A warning names the parts that were written once and are gone.
        """
        self._warn_of_missing()
        parts = files_in(self.path / "records", ".parquet")
        read = (_read_part(part, source, len(parts)) for part, source in zip(parts, readable(parts), strict=True))
        table = pl.concat([SCHEMA.to_frame(), *read])
        return table.with_columns(run=pl.lit(self.name))

    def concepts(self, site: str, step: int | None = None, model: str | None = None) -> pl.DataFrame:
        """Return the concepts of a site at a step in words, those with the most gradient first.

        A run has them if its lens was asked for `concepts`, or if it is of a tangent test of a finished model.

        Args:
            site: The site, such as `resid.3`.
            step: The measured step; the last one by default.
            model: The model; not needed if the run has one model only.

        Returns:
            A table with a row per concept: `concept`, its number in the fit; `lineage`, the same number for what is
            taken for the same concept at different steps, and `born`, the first step of that lineage;
            `variance_share` and `energy_share`, of the variance and of the gradients along it, each with the ends of
            its 95% interval over sequences, and `chance` for both; `usage`, its part of all contributions to tokens;
            `frequency` of its tokens per million; `found_again` and `kept`, cosines with its match in a fit to
            other sequences and at the last due step; and `tokens` and `contexts`, what uses it most.
        """
        return concept_table(self.records, site, step, model)

    def records_of(self, part: str) -> pl.DataFrame:
        """Return the numbers of one part, as `records` has them."""
        file = self._part(part)
        (source,) = readable([file])
        return _read_part(file, source, len(self.parts)).with_columns(run=pl.lit(self.name))

    @property
    def parts(self) -> set[str]:
        """Return the names of all parts of the records, which takes one look, however many there are."""
        return {unquote(file.stem) for file in files_in(self.path / "records", ".parquet")}

    def has(self, part: str) -> bool:
        """Return whether the part of this name has been written."""
        return self._part(part).exists()

    def complete(self, part: str, make: Callable[[], Iterable[Record]]) -> None:
        """Make and write a part unless it exists, so that an interrupted run continues where it stopped.

        Args:
            part: The name of the part.
            make: Returns its records; called only if they are needed.
        """
        if not self.has(part):
            self.write(part, make())

    def write(self, part: str, records: Iterable[Record]) -> None:
        """Write a part of the records, in place of any part of the same name; on return it is stored."""
        buffer = io.BytesIO()
        as_frame(self.name, records).write_parquet(buffer)
        write_whole(self._part(part), buffer.getvalue())
        note_written(self.path, part)

    def abandon(self, parts: Sequence[str]) -> Place:
        """Move parts of the records, with tensors of the same names, out of the run; return the folder they are in."""
        numbered = (self.path / "abandoned" / f"{number:03d}" for number in count(1))
        folder = next(folder for folder in numbered if not folder.exists())
        # Before they are moved: if the process is killed in between, they are still in the run, and none is missed.
        note_abandoned(self.path, parts)
        for path in (place for part in parts for place in (self._part(part), self._tensors(part)) if place.exists()):
            move(path, folder / path.parent.name / path.name)
        return folder

    @property
    def names(self) -> list[str]:
        """Return the names of all parts of the records and files of tensors."""
        return sorted({unquote(file.stem) for folder in FOLDERS for file in files_in(self.path / folder)})

    def describe(self, section: str, facts: Mapping[str, Any]) -> None:
        """Add facts to a section of the manifest."""
        with locked(self.path):
            manifest = self.manifest
            manifest[section] = manifest.get(section, {}) | dict(facts)
            _write_manifest(self.path, manifest)

    def redescribe(self, section: str, facts: Mapping[str, Any]) -> None:
        """Write a section of the manifest in place of what it held."""
        with locked(self.path):
            _write_manifest(self.path, self.manifest | {section: dict(facts)})

    def claim_data(self, text: str | None, facts: Mapping[str, Any]) -> None:
        """Write facts about the text to the manifest, or raise if the run was made from another text.

        Args:
            text: The name of the text, for the error.
            facts: What identifies the text.
        """
        known = self.manifest.get("data", facts)
        if any(known.get(name) != value for name, value in facts.items()):
            raise InputError(f"{self.path} was made from another text than {text} is now; choose another folder")
        self.describe("data", facts)

    def claim_model(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write facts about a model to the manifest, or raise if the run was begun with other weights.

        Args:
            name: The name of the model in the run.
            facts: What is known of it, `weights_sha256` among it.
        """
        known = self.manifest.get("models", {}).get(name, facts)
        if known["weights_sha256"] != facts["weights_sha256"]:
            raise InputError(f"{name} has other weights than when {self.path} was begun; choose another folder")
        self.describe("models", {name: facts})

    def save_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        """Write a file of named tensors with text about them.

        Args:
            name: The name of the file.
            tensors: The tensors by name.
            metadata: Text about them, by name.
        """
        data = safetensors.torch.save({key: tensor.contiguous() for key, tensor in tensors.items()}, metadata)
        write_whole(self._tensors(name), data)

    def load_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """Return the tensors of a file and the text about them, or None if they were never written."""
        return tensor_files.load_tensors(self._tensors(name))

    def remove_tensors(self, name: str) -> None:
        """Remove a file of tensors, if it is there."""
        remove(self._tensors(name))

    def about_tensors(self, name: str) -> dict[str, str] | None:
        """Return the text about the tensors of a file, or None if they were never written or cannot be read."""
        return tensor_files.about_tensors(self._tensors(name))

    def _warn_of_missing(self) -> None:
        # In this order: what is written in between is not missed.
        listed = parts_written(self.path)
        there = self.parts if listed else set()
        missing = [part for part in listed if part not in there]
        if missing:
            named = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            warnings.warn(
                f"{self.path} must hold every part that was written, but these are gone from its records: {named}; "
                f"restore them, or repeat the run, or delete its {JOURNAL} and {MARKS}/ if they were removed on "
                "purpose",
                stacklevel=3,
            )

    def _part(self, name: str) -> Place:
        return self.path / "records" / f"{file_name(name)}.parquet"

    def _tensors(self, name: str) -> Place:
        return self.path / "tensors" / f"{file_name(name)}.safetensors"

    def show(self) -> None:
        """Show key figures, main figure and findings in a notebook; elsewhere, write the report and open it."""
        # The one import from a room below: a run is what people hold, and what shows it needs everything there is.
        from tangentlens.studies.functions import show

        show(self)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what the run is. Its numbers are not read, which could take long."""
        try:
            manifest, n_parts = self.manifest, len(self.parts)
        except InputError as error:
            return as_html(repr(self), [str(error)])
        models = ", ".join(manifest.get("models", {})) or "not named in the manifest"
        created = str(manifest.get("created", "")) or "not known"
        facts = {"made by": manifest["made_by"], "created": created, "models": models, "parts of the records": n_parts}
        headline = f"Run {self.name}"
        told = ["show() shows its key figures and findings; records is every number."]
        return as_html(headline, told, ("", ""), [*facts.items(), ("where", self.path)])


def _read_part(part: Place, source: Path | io.BytesIO, n_parts: int) -> pl.DataFrame:
    """Return the records of one file, upgraded to the present format."""
    try:
        frame = upgraded_records(pl.read_parquet(source, glob=False))
        return frame.select(SCHEMA.names()).cast(SCHEMA)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise InputError(
            f"{part} must be a Parquet part of the records, but cannot be read (truncated?); the other "
            f"{n_parts - 1} parts are untouched: move this one away to read them; if its records are needed, "
            "repeat the run in another folder"
        ) from error


def is_run(path: str | Place) -> bool:
    """Return whether there is a run at `path`, readable or not."""
    return (as_place(path) / "manifest.json").exists()


def open_run(path: str | Place) -> Run:
    """Return the run of an existing run directory, or of a URL such as `s3://bucket/run`."""
    place = as_place(path)
    _read_manifest(place)
    return Run(place)


def runs_in(path: str | Place) -> list[Run]:
    """Return the run at `path`, or the runs in the folders of `path`, as a study leaves them."""
    place = as_place(path)
    inside = [] if is_run(place) else [folder for folder in entries(place) if is_run(folder)]
    return [open_run(folder) for folder in inside] if inside else [open_run(place)]


def create_run(path: str | Place, config: Mapping[str, Any], made_by: str = "lens") -> Run:
    """Create a run directory, or continue an existing one that has the same configuration.

    Args:
        path: The directory, or a URL such as `s3://bucket/run`.
        config: All settings that determine the numbers. A run with another configuration is an error.
        made_by: The command or study that makes the run.

    Returns:
        The run, with its manifest stored.
    """
    path = as_place(path)
    if not str(path).isprintable():
        raise InputError(
            f"a run's folder must have a printable name, but {str(path)!r} is not printable; choose another"
        )
    make_directory(path)
    others = [entry for entry in entries(path) if entry.suffix != ".tmp" and entry.name not in (*FOLDERS, LOCK)]
    # Asked last, because another process may be creating it.
    if others and not is_run(path):
        raise InputError(
            f"{path} must be a new or empty folder, or a run, but holds other files; choose another folder"
        )
    with locked(path):
        return _create(path, json.loads(json.dumps(config)), made_by)


def _create(path: Place, config: dict[str, Any], made_by: str) -> Run:
    """Create a run in a folder that nobody else changes, or return the one that is there."""
    if is_run(path):
        manifest = _read_manifest(path)
        known, wanted = (
            {**of, "made_by": by} for by, of in ((manifest["made_by"], manifest["config"]), (made_by, config))
        )
        # A run in which nothing was measured yet, as after a mistyped option, may be overwritten.
        if known == wanted or any(files_in(path / folder) for folder in FOLDERS):
            check_same(path, known, wanted)
            return Run(path)
    for folder in FOLDERS:
        make_directory(path / folder)
    # What a run held that is overwritten is not missed.
    forget_parts(path)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    _write_manifest(
        path, {"format": FORMAT, "created": now, "made_by": made_by, "config": config, "versions": _versions()}
    )
    return Run(path)


def check_same(path: Place, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise if a run would be continued with other settings.

    Args:
        path: The run directory, for the error.
        old: The settings that the run was made with.
        new: The settings that it would be continued with.
    """
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if changed:
        listed = ", ".join(f"{key} was {old.get(key)!r} and is now {new.get(key)!r}" for key in changed)
        raise InputError(
            f"{path} holds a run with another configuration ({listed}); use the same configuration to continue it, or "
            "choose another folder"
        )


def _read_manifest(path: Place) -> dict[str, Any]:
    """Return the manifest of a run directory, upgraded to the present format."""
    try:
        data = (path / "manifest.json").read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} must be a run directory, but has no readable manifest.json ({error.strerror}); "
            "name a folder that a tangentlens command or a Lens has written"
        ) from error
    try:
        manifest = json.loads(data)
    except ValueError as error:
        raise InputError(f"{path / 'manifest.json'} must be JSON, but is not ({error}); restore it") from error
    sound = isinstance(manifest, dict) and isinstance(manifest.get("config"), dict)
    if not sound or manifest.get("format") not in range(1, FORMAT + 1):
        raise InputError(
            f"{path / 'manifest.json'} must be a run's manifest of format 1 to {FORMAT}, but is not; open it with the "
            "version of tangentlens that wrote it, or a newer one"
        )
    return upgraded_manifest(manifest)


def _write_manifest(path: Place, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a run directory."""
    write_whole(path / "manifest.json", json.dumps(manifest, indent=2).encode())


def _versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that determine the numbers."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "platform": platform.platform(), **packages}
