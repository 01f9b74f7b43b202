"""Two ranks, as people run them, against one process on the same data."""

import subprocess
import sys
from pathlib import Path

import pytest

from loops import MOVED, PROBE, assert_same_numbers, plain
from tangentlens import open_run

SHARES = ("share", "token_share", "anisotropy", "rms_norm", "loss")
METRICS = (*SHARES, *MOVED, "window_share", "window_anisotropy", "window_rms_norm")


# Each of them comes to its end, so two processes are enough for all.
TRAININGS = ["ddp", "fsdp", "ddp-resumes-2", "ddp-drops-2", "ddp-overflows-2", "ddp-skips-2"]


def start(folder, *trainings):
    script = Path(__file__).with_name("ranks.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), folder, *trainings],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [(*rank.communicate(timeout=300), rank.returncode) for rank in ranks]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return folder, start(folder, *TRAININGS)


def run_of(training, trained):
    """The run of a training in which both ranks had the losses that they have without the lens, bit for bit."""
    folder, ranks = trained
    for out, err, _ in ranks:
        assert f"{training} True" in out.splitlines(), err
    return folder / training / "run"


def test_all_ranks_come_to_the_end(trained):
    assert [code for _, _, code in trained[1]] == [0, 0]


@pytest.mark.parametrize("training", ["ddp", "fsdp", "ddp-resumes-2"])
def test_two_ranks_give_the_numbers_of_one_process(training, trained, tmp_path):
    plain(tmp_path / "plain", moments_every=1, probe=PROBE, **({"updates": ()} if training == "fsdp" else {}))
    run = run_of(training, trained)
    moved = open_run(run).records.filter(quantity="movement", metric="share")
    assert set(moved["step"]) == {2, 4}
    assert_same_numbers(tmp_path / "plain", run, rel=1e-5, metrics=METRICS)
    tokens = [open_run(path).records.filter(step=4)["tokens_seen"].unique() for path in (tmp_path / "plain", run)]
    assert tokens[0].equals(tokens[1])


def test_a_block_dropped_on_one_rank_leaves_the_rows_of_the_other(trained):
    found = open_run(run_of("ddp-drops-2", trained)).records.filter(
        quantity="gradient", metric="share", variant="semi_nmf", order=1.0, freq_bin="all"
    )
    rows = {(step, site): n for step, site, n in found.select("step", "site", "n").rows()}
    # The last of the 12 tokens of each of the 8 sequences has nothing to predict, and no gradient.
    assert rows[2, "resid.0"] == rows[4, "resid.2"] == 8 * 11
    assert rows[2, "resid.2"] == 4 * 11


def test_a_rank_whose_steps_all_overflowed_adds_nothing_to_the_window(trained):
    window = open_run(run_of("ddp-overflows-2", trained)).records.filter(
        metric="window_rms_norm", step=2, site="resid.2"
    )
    assert window["n"].to_list() == [2 * 48]


def test_a_rank_that_dies_does_not_harm_the_run(tmp_path):
    (_, _, first), (_, _, second) = start(tmp_path, "ddp-dies-3")
    assert second == 1
    assert first != 0
    run = open_run(tmp_path / "ddp-dies-3" / "run")
    assert run.records["step"].unique().sort().to_list() == [0, 2]
    assert run.load_tensors("model-step-00000002") is not None


def test_a_step_that_all_ranks_skip_counts_the_tokens_of_all(trained):
    expected, found = (
        open_run(run_of(training, trained)).records.filter(step=2) for training in ("ddp", "ddp-skips-2")
    )
    assert found["metric"].to_list() == ["unmeasured"]
    assert found["tokens_seen"].unique().to_list() == expected["tokens_seen"].unique().to_list()
