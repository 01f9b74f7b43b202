"""ALBERT, one layer of which runs many times, through the commands for finished models."""

import pytest
import torch
from transformers import AlbertForMaskedLM

from tangentlens.capture.sites import find_sites
from tangentlens.studies import JOBS
from tangentlens.studies.audit import AuditPlan
from tangentlens.studies.profile import Profile
from tangentlens.studies.subjects import Backward, model_subject, subject_rows
from tangentlens.studies.tangent import TestPlan
from tiny import save_albert

SITES = [f"resid.{i}" for i in range(4)]
GRADIENTS = {"tokens": 256, "length": 16, "rank": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_albert(tmp_path_factory.mktemp("models") / "albert"))


def test_profile_has_every_time_the_layer_runs(folder, tmp_path):
    run = JOBS["profile"].run(Profile(models=(folder,), batches=2, batch_tokens=128, length=16), tmp_path / "run")
    rows = run.records.filter(metric="anisotropy", variant="", rows="all")
    assert rows["site"].to_list() == SITES
    assert rows["value"].n_unique() == 4
    places = run.manifest["models"]["albert"]["sites"]
    assert places["resid.0"] == "input of AlbertLayerGroup, time 1 of 3"
    assert places["resid.3"] == "output of AlbertLayerGroup, time 3 of 3"


def test_the_tangent_test_has_every_time_the_layer_runs(folder, tmp_path):
    run = JOBS["test"].run(TestPlan(model=folder, **GRADIENTS), tmp_path / "run")
    rows = run.records.filter(metric="share", detail="proxy", order=1.0, freq_bin="all", rows="all")
    assert sorted(set(rows["site"].to_list()) - {"mean"}) == SITES
    assert run.records.filter(metric="unmeasured").is_empty()


def test_the_audit_takes_the_last_time_the_layer_runs(folder, tmp_path):
    run = JOBS["audit"].run(AuditPlan(target=folder, sites=("resid.3",), **GRADIENTS), tmp_path / "run")
    assert {place.split()[-1] for place in run.manifest["audits"]} == {"resid.3"}


def test_the_rows_of_test_and_audit_are_those_of_the_librarys_own_hidden_states(folder):
    plan = TestPlan(model=folder, **GRADIENTS)
    subject = model_subject(folder, Backward.of(plan), lambda progress: None)
    rows, _ = subject_rows(subject, "", find_sites(subject.model, "resid"), 0)
    model = AlbertForMaskedLM.from_pretrained(folder).eval()
    states = [[] for _ in SITES]
    for batch in subject.batches:
        with torch.no_grad():
            hidden = model(input_ids=batch["input_ids"], output_hidden_states=True).hidden_states
        keep = ~torch.isin(batch["input_ids"], torch.tensor(subject.exclude))
        for kept, state in zip(states, hidden, strict=True):
            kept.append(state[keep])
    for site, state in zip(SITES, states, strict=True):
        torch.testing.assert_close(rows[site].activations, torch.cat(state))
        assert rows[site].gradients.any()
