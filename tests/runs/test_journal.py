"""Parts that were written and are gone are told; a journal that is cut off, or not there, does no harm."""

import shutil
import warnings

import pytest

from tangentlens import open_run
from tangentlens.runs.journal import JOURNAL, parts_written
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path / "run", {})
    for step in range(3):
        run.write(f"m/{step}", [Record(model="m", metric="loss", step=step, value=1.0)])
    return run


def steps(run):
    return sorted(open_run(run.path).records["step"])


def test_a_part_that_is_gone_is_named_and_the_others_are_read(run):
    next(run.path.glob("records/*1.parquet")).unlink()
    with pytest.warns(UserWarning, match=r"these are gone from its records: m/1; restore them, or .* parts.jsonl"):
        assert steps(run) == [0, 2]


def test_a_part_that_is_written_again_is_no_longer_gone(run):
    next(run.path.glob("records/*1.parquet")).unlink()
    run.write("m/1", [Record(model="m", metric="loss", step=1, value=1.0)])
    assert steps(run) == [0, 1, 2]


def test_what_is_abandoned_is_not_missed_until_it_is_written_again(run):
    run.abandon(["m/1", "m/2"])
    assert steps(run) == [0]
    run.write("m/2", [Record(model="m", metric="loss", step=2, value=1.0)])
    assert steps(run) == [0, 2]
    assert parts_written(run.path) == ["m/0", "m/2"]


def test_a_part_without_a_line_is_read_as_any_other(run):
    """As after a kill between the part and its line, and in runs of earlier versions."""
    journal = run.path / JOURNAL
    journal.write_text(journal.read_text().rpartition("\n")[0])
    assert steps(run) == [0, 1, 2]
    journal.unlink()
    assert steps(run) == [0, 1, 2]


@pytest.mark.parametrize("left", range(1, 16))
def test_a_line_that_was_cut_off_is_ignored_and_the_next_one_is_whole(run, left):
    journal = run.path / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-left])
    run.write("m/3", [Record(model="m", metric="loss", step=3, value=1.0)])
    assert steps(run) == [0, 1, 2, 3]
    assert parts_written(run.path) == ["m/0", "m/1", "m/3"]


def test_deleting_the_journal_accepts_what_is_gone(run):
    shutil.rmtree(run.path / "records")
    with pytest.warns(UserWarning, match="m/0, m/1, m/2"):
        assert steps(run) == []
    (run.path / JOURNAL).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps(run) == []


def test_a_run_that_is_overwritten_misses_nothing(run):
    shutil.rmtree(run.path / "records")
    assert steps(create_run(run.path, {"rank": 3})) == []
