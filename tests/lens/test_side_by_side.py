"""Sites that a lens measures side by side: the same records in the same order, and the same training."""

import subprocess
import sys
from pathlib import Path

from loops import plain
from tangentlens import open_run
from tangentlens.engine import side_by_side

SETTINGS = {"sites": "resid", "every": 1, "concepts": lambda ids: " ".join(map(str, ids)), "moments_every": 1}


def test_records_are_those_of_one_site_after_the_other(tmp_path, monkeypatch):
    plain(tmp_path / "alone", predict=True, **SETTINGS)
    monkeypatch.setattr(side_by_side, "at_once", lambda device: 3)
    plain(tmp_path / "together", predict=True, **SETTINGS)
    alone, together = (open_run(tmp_path / name).records.drop("run") for name in ("alone", "together"))
    assert {"share", "concept_variance", "window_anisotropy"} <= {*alone["metric"]}
    assert "later_gradient" in {*alone["quantity"]}
    assert together.equals(alone)


def test_a_training_with_two_threads_is_bit_for_bit_the_same_with_and_without_it(tmp_path):
    # Threads belong to a process. PyTorch chooses their number, as for a user who never set it.
    here = Path(__file__).with_name("two_threads.py")
    environment = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "PATH": "", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = str(here.parents[1])
    command = [sys.executable, str(here), str(tmp_path / "run")]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.stdout == "the same", told.stderr
    assert open_run(tmp_path / "run").records.height > 0
