"""A glance at a run tells whether it has changed, wherever the run is, and reads none of its files."""

import os
import time

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from tangentlens.runs.files import as_place
from tangentlens.runs.glance import glance, glance_at_all
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run


def loss(value):
    return [Record(model="m", quantity="loss", metric="loss", value=value)]


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request, tmp_path):
    if request.param == "s3":
        return as_place(f"{request.getfixturevalue('bucket')}/glance/run")
    return as_place(f"memory://{tmp_path.name}/run") if request.param == "memory" else tmp_path / "run"


def test_whatever_a_report_is_made_from_makes_another_version(place):
    versions = [glance(place).version]
    run = create_run(place, {})
    versions.append(glance(place).version)
    assert glance(place).newest is None
    run.write("a", loss(1.0))
    versions.append(glance(place).version)
    run.write("b", loss(2.0))
    versions.append(glance(place).version)
    # A part of the same name and, most likely, the same size.
    run.write("b", loss(3.0))
    versions.append(glance(place).version)
    run.describe("models", {"m": {"kind": "decoder"}})
    versions.append(glance(place).version)
    run.abandon(["b"])
    versions.append(glance(place).version)
    assert len(set(versions)) == len(versions)
    assert glance(place).newest == place / "records" / "a.parquet"
    assert glance(place).changed == pytest.approx(time.time(), abs=120)


def test_nothing_else_makes_another_version(place):
    run = create_run(place, {})
    run.write("a", loss(1.0))
    before = glance(place)
    run.save_tensors("t", {"x": torch.zeros(2)})
    assert glance(place) == before


def test_the_newest_part_is_the_one_that_was_written_last(tmp_path):
    run = create_run(tmp_path / "run", {})
    for number, part in enumerate(("b", "c", "a")):
        run.write(part, loss(1.0))
        os.utime(run.path / "records" / f"{part}.parquet", (1000 + number, 1000 + number))
    assert glance(run.path).newest.name == "a.parquet"


def test_several_runs_change_when_one_does(tmp_path):
    runs = [create_run(tmp_path / name, {}) for name in ("a", "b")]
    before = glance_at_all(glance(run.path) for run in runs)
    runs[1].write("x", loss(1.0))
    after = glance_at_all(glance(run.path) for run in runs)
    assert after.version != before.version
    assert after.changed == glance(runs[1].path).changed


def test_what_cannot_be_reached_has_a_version_too():
    seen = glance(as_place("nonsense://bucket/run"))
    assert seen.version.startswith("unseen")
    assert (seen.changed, seen.newest) == (None, None)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("1970-01-02T00:00:01+00:00", 86401.0), (86401, 86401.0), ("Fri, 02 Jan 1970 00:00:01 GMT", None)],
)
def test_a_time_is_known_if_the_store_says_it_in_words_that_are_known(tmp_path, monkeypatch, told, seconds):
    run = create_run(as_place(f"memory://{tmp_path.name}/run"), {})
    before = MemoryFileSystem.ls
    told_so = lambda *path, **options: [{**one, "LastModified": told} for one in before(*path, **options)]  # noqa: E731
    monkeypatch.setattr(MemoryFileSystem, "ls", told_so)
    assert glance(run.path).changed == seconds


def test_one_part_is_read_as_all_are(place):
    run = create_run(place, {})
    run.write("a/1", loss(1.0))
    run.write("b", loss(2.0))
    assert run.records_of("a/1").equals(run.records.head(1))
