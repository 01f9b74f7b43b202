"""Two ranks, as people run them, against one process on the same data."""

import subprocess
import sys
from pathlib import Path

import pytest

from loops import assert_same_numbers, plain
from tangentlens import open_run

METRICS = ("share", "token_share", "anisotropy", "rms_norm", "window_share", "window_anisotropy", "window_rms_norm")


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


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_ranks_give_the_numbers_of_one_process(how, tmp_path):
    plain(tmp_path / "plain", moments_every=1)
    for out, err, code in start(tmp_path, how):
        assert code == 0, err
        # The losses with the lens and without it are the same, bit for bit.
        assert out.strip() == "True"
    assert_same_numbers(tmp_path / "plain", tmp_path / "run", rel=1e-5, metrics=METRICS)


def test_a_rank_that_dies_does_not_harm_the_run(tmp_path):
    (_, _, first), (_, _, second) = start(tmp_path, "ddp", "dies", "3")
    assert second == 1
    assert first != 0
    run = open_run(tmp_path / "run")
    assert run.records["step"].unique().sort().to_list() == [0, 2]
    assert run.load_tensors("model-step-00000002") is not None


def test_a_step_that_all_ranks_skip_counts_the_tokens_of_all(tmp_path):
    plain(tmp_path / "plain")
    for _, err, code in start(tmp_path, "ddp", "skips", "2"):
        assert code == 0, err
    expected, found = (open_run(tmp_path / name).records.filter(step=2) for name in ("plain", "run"))
    assert found["metric"].to_list() == ["unmeasured"]
    assert found["tokens_seen"].unique().to_list() == expected["tokens_seen"].unique().to_list()
