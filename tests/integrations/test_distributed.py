"""Two ranks, as people run them, against one process on the same data."""

import subprocess
import sys
from pathlib import Path

import pytest

from loops import assert_same_numbers, plain
from tangentlens import open_run

SHARES = ("share", "token_share", "anisotropy", "rms_norm", "loss")
METRICS = (*SHARES, "window_share", "window_anisotropy", "window_rms_norm")


def start(folder, how, *rest):
    script = Path(__file__).with_name("ranks.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), folder, how, *rest],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [(*rank.communicate(timeout=300), rank.returncode) for rank in ranks]


def check(ranks):
    """All ranks came to the end, with the losses that they have without the lens, bit for bit."""
    for out, err, code in ranks:
        assert code == 0, err
        assert out.strip() == "True"


@pytest.mark.parametrize(("how", "rest"), [("ddp", ()), ("fsdp", ()), ("ddp", ("resumes", "2"))])
def test_two_ranks_give_the_numbers_of_one_process(how, rest, tmp_path):
    plain(tmp_path / "plain", moments_every=1, **({} if how == "ddp" else {"updates": ()}))
    check(start(tmp_path, how, *rest))
    assert_same_numbers(tmp_path / "plain", tmp_path / "run", rel=1e-5, metrics=METRICS)
    tokens = [open_run(tmp_path / name).records.filter(step=4)["tokens_seen"].unique() for name in ("plain", "run")]
    assert tokens[0].equals(tokens[1])


def test_a_block_dropped_on_one_rank_leaves_the_rows_of_the_other(tmp_path):
    check(start(tmp_path, "ddp", "drops", "2"))
    found = open_run(tmp_path / "run").records.filter(metric="share", variant="semi_nmf", order=1.0, freq_bin="all")
    rows = {(step, site): n for step, site, n in found.select("step", "site", "n").rows()}
    assert rows[2, "resid.1"] == rows[4, "resid.2"] == 96
    assert rows[2, "resid.2"] == 48


def test_a_rank_whose_steps_all_overflowed_adds_nothing_to_the_window(tmp_path):
    check(start(tmp_path, "ddp", "overflows", "2"))
    window = open_run(tmp_path / "run").records.filter(metric="window_rms_norm", step=2, site="resid.1")
    assert window["n"].to_list() == [2 * 48]


def test_a_rank_that_dies_does_not_harm_the_run(tmp_path):
    (_, _, first), (_, _, second) = start(tmp_path, "ddp", "dies", "3")
    assert second == 1
    assert first != 0
    run = open_run(tmp_path / "run")
    assert run.records["step"].unique().sort().to_list() == [0, 2]
    assert run.load_tensors("model-step-00000002") is not None


def test_a_step_that_all_ranks_skip_counts_the_tokens_of_all(tmp_path):
    plain(tmp_path / "plain")
    check(start(tmp_path, "ddp", "skips", "2"))
    expected, found = (open_run(tmp_path / name).records.filter(step=2) for name in ("plain", "run"))
    assert found["metric"].to_list() == ["unmeasured"]
    assert found["tokens_seen"].unique().to_list() == expected["tokens_seen"].unique().to_list()
