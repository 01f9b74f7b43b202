import json

import pytest
import torch

from tangentlens import InputError, open_run
from tangentlens.models.device import find_device
from tangentlens.models.memory import free_memory
from tangentlens.studies.profile import Profile, run_profile
from tiny import save_tiny

SMALL = {"sites": ("resid.1",), "batches": 2, "batch_tokens": 128, "length": 16}


def test_auto_is_the_accelerator_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert find_device() == torch.device("cpu")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    # A device that every machine has, in the place of a GPU.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    assert find_device() == torch.device("meta")
    assert find_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="device must be auto or one that PyTorch can compute on here, but 'abacus'"):
        find_device("abacus")


def test_free_memory_of_auto_is_known():
    assert free_memory("auto") > 2**20


def test_the_plan_says_auto_and_the_model_where_it_was(tmp_path):
    plan = Profile(models=(str(save_tiny(tmp_path / "tiny")),), **SMALL)
    manifest = run_profile(plan, tmp_path / "run").manifest
    assert (manifest["config"]["device"], manifest["config"]["dtype"]) == ("auto", "auto")
    where = str(find_device())
    assert manifest["models"]["tiny"] | {"device": where, "dtype": "float32"} == manifest["models"]["tiny"]
    # On a machine with another device, the same command continues the run.
    run_profile(plan, tmp_path / "run")


@pytest.mark.parametrize("made_by", ["test", "audit", "visibility"])
def test_runs_from_before_there_was_a_choice_of_dtype_were_in_float32(made_by, tmp_path):
    manifest = {"format": 3, "made_by": made_by, "config": {"model": "m"}, "versions": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert open_run(tmp_path).manifest["config"] == {"dtype": "float32", "model": "m"}
