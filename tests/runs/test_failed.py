"""A block that fails before anything was measured leaves no new folder."""

import pytest
import torch

from tangentlens.runs.failed import leaving_no_empty_run
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run, is_run


def interrupted(path, make):
    with leaving_no_empty_run(path, inputs=["counts"]):
        make(path)
        raise KeyboardInterrupt


def fail(path, measure):
    with pytest.raises(KeyboardInterrupt):
        interrupted(path, lambda path: measure(create_run(path, {})))


def test_a_new_folder_is_gone_with_the_parents_that_are_new(tmp_path):
    fail(tmp_path / "a" / "b" / "run", lambda run: run.save_tensors("counts", {"counts": torch.ones(2)}))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays(tmp_path):
    create_run(tmp_path / "a" / "run", {})
    fail(tmp_path / "a" / "run", lambda run: None)
    assert is_run(tmp_path / "a" / "run")
    (tmp_path / "empty").mkdir()
    fail(tmp_path / "empty", lambda run: None)
    assert (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    "measure",
    [
        lambda run: run.write("part", [Record(model="m", metric="loss", value=1.0)]),
        lambda run: run.save_tensors("batch", {"rows": torch.ones(2)}),
    ],
    ids=["records", "tensors"],
)
def test_what_was_measured_stays(measure, tmp_path):
    fail(tmp_path / "a" / "run", measure)
    assert is_run(tmp_path / "a" / "run")


def test_other_files_in_a_new_folder_are_never_removed(tmp_path):
    def make(path):
        path.mkdir(parents=True)
        (path / "thesis.tex").touch()

    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a" / "run", make)
    assert (tmp_path / "a" / "run" / "thesis.tex").exists()
