"""Whole studies at their smallest scale: runs, ledger, report; stopped and resumed; what is refused before training."""

from dataclasses import replace

import polars as pl
import pytest

from tangentlens import InputError
from tangentlens.engine import Machines
from tangentlens.report.page import write_report
from tangentlens.report.reading import read_runs
from tangentlens.runs.records import KEY
from tangentlens.runs.run import runs_in
from tangentlens.studies import SECTIONS, STUDIES, train
from tangentlens.studies.claims import CLAIMS
from tangentlens.studies.claims.ledger import ledger
from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.tangent import TEST, TestPlan
from tangentlens.studies.train import TRAIN
from tiny import TINY, save_tiny


class Interrupted(Exception):
    pass


def judged(study, runs):
    chosen = [claim for claim in CLAIMS if claim.id in study.claims]
    return {entry.claim.id: entry for entry in ledger(read_runs(runs), chosen)}


@pytest.mark.parametrize(
    "name", [pytest.param("learning-dynamics", marks=pytest.mark.calibration), "shape-of-learning"]
)
def test_a_study_of_trainings_judges_the_claims_it_names_and_no_others(name, tmp_path):
    study, out = STUDIES[name], tmp_path / name
    runs = study.run("smoke", Inputs(out))
    assert [run.path for run in runs_in(out)] == sorted(run.path for run in runs)
    entries = [entry for entry in ledger(read_runs(runs)) if entry.judgement is not None]
    assert {entry.claim.id for entry in entries} == set(study.claims)
    # Before the first step there are no activations to fit the embedding's proxy on.
    assert read_runs(runs).filter(pl.col("metric") == "unmeasured", pl.col("step") > 0).is_empty()
    report = write_report(runs, tmp_path / "report.html", SECTIONS)
    assert any(table.title.startswith("Claims") for table in report.tables)
    # A finished study has nothing left to do.
    told = []
    again = study.run("smoke", Inputs(out), told.append)
    assert read_runs(again).equals(read_runs(runs))
    assert all(progress.done == progress.total or progress.done == 0 for progress in told)


def test_regularisers_are_judged_beside_untreated_twins(tmp_path):
    study = STUDIES["regularisers"]
    runs = study.run("smoke", Inputs(tmp_path / "out"))
    assert {run.path.name for run in runs} == {"plain", "cosine-0.3", "spectral-0.3", "isoscore-0.3", "bending-0.3"}
    for number, entry in judged(study, runs).items():
        assert entry.judgement is not None, number
        assert sum(entry.n_networks.values()) == 2
        assert 0 < abs(entry.judgement.effect.value) < 0.1
    report = write_report(runs, tmp_path / "report.html", study.sections)
    assert set(report.tables[0].frame["change"]) == {
        "none",
        "cosine 0.3",
        "spectral 0.3",
        "isoscore 0.3",
        "bending 0.3",
    }


@pytest.mark.calibration
def test_architectures_are_compared_with_the_plain_decoder(tmp_path):
    study = STUDIES["architectures"]
    (run,) = study.run("smoke", Inputs(tmp_path / "out"))
    assert {entry.judgement is not None for entry in judged(study, [run]).values()} == {True}
    report = write_report([run], tmp_path / "report.html", study.sections)
    told = report.tables[0].frame["variation"].to_list()
    assert told == ["LSTM", "state space", "masked decoder", "encoder (against masked decoder)"]
    # A short held-out text may lack what a probe asks for.
    assert run.records.filter(pl.col("metric") == "unmeasured", ~pl.col("detail").str.contains("no probe")).is_empty()
    assert set(run.records.filter(metric="probe_skill")["step"]) == {1}


@pytest.mark.calibration
def test_flatter_frequencies_are_judged_beside_twins_on_the_text_as_it_is(tmp_path):
    study = STUDIES["frequency"]
    runs = study.run("smoke", Inputs(tmp_path / "out"))
    assert {run.path.name for run in runs} == {"plain", "resampled-0.5", "reweighted-0.5", "relabelled-0.5"}
    for number, entry in judged(study, runs).items():
        assert entry.judgement is not None, number
        assert sum(entry.n_networks.values()) == 2
    report = write_report(runs, tmp_path / "report.html", study.sections)
    told = {
        row["tokens"]: float(row["entropy of the distribution (nats)"]) for row in report.tables[0].frame.to_dicts()
    }
    assert told["as they are"] < told["relabelled 0.5"]
    assert told["as they are"] < told["reweighted 0.5"]


@pytest.mark.calibration
def test_geometry_is_held_against_probes_and_the_end_of_the_training(tmp_path):
    study = STUDIES["downstream"]
    runs = study.run("smoke", Inputs(tmp_path / "out"))
    entries = judged(study, runs)
    assert sum(entries["19a"].n_networks.values()) == 6
    report = write_report(runs, tmp_path / "report.html", study.sections)
    titles = [table.title for table in report.tables]
    assert titles[0].startswith("Rank correlation with the skill of probes, 6 networks")
    assert titles[1].startswith("Rank correlation with the loss at the end")


def test_finished_models_are_tested_beside_their_nulls(tmp_path):
    kinds = {f"a-{kind}": kind for kind in ("decoder", "encoder")}
    models = tuple(str(save_tiny(tmp_path / name, kind=kind)) for name, kind in kinds.items())
    study = STUDIES["finished-models"]
    told = []
    runs = study.run("smoke", Inputs(tmp_path / "out", models=models), told.append)
    assert {"test: a-decoder", "audit: a-encoder"} <= {progress.task for progress in told}
    assert {run.path.name for run in runs} == {f"{job}-{name}" for job in ("test", "audit") for name in kinds}
    entries = judged(study, runs)
    for name in ("3a", "9a", "10", "11", "21", "22", "23", "24"):
        assert sum(entries[name].n_networks.values()) == 2, name
    # There is one decoder, and there are no massive rows.
    assert entries["2"].verdict == entries["25"].verdict == "not judged"


def test_finished_models_may_have_their_tokenizer_elsewhere(tmp_path):
    given = Inputs(tmp_path / "out", models=(str(save_tiny(tmp_path / "model")),), tokenizer="elsewhere")
    assert [part.plan.tokenizer for part in STUDIES["finished-models"].parts("smoke", given)] == ["elsewhere"] * 2


def test_a_study_that_was_stopped_goes_on_to_the_same_numbers(tmp_path):
    study = STUDIES["demo"]
    whole = study.run("smoke", Inputs(tmp_path / "whole"))[0].records.drop("run")

    def stop(progress):
        if (progress.task, progress.done) == ("encoder", 2):
            raise Interrupted

    with pytest.raises(Interrupted):
        study.run("smoke", Inputs(tmp_path / "parts"), stop)
    (resumed,) = study.run("smoke", Inputs(tmp_path / "parts"))
    assert resumed.records.drop("run").equals(whole)
    facts = resumed.manifest["models"]["decoder"]
    assert facts["kind"] == "decoder"
    assert facts["family"].startswith("decoder, 2 blocks of width 32, 3 steps on ")
    assert len(facts["weights_sha256"]) == 64
    with pytest.raises(InputError, match="holds a run with another configuration"):
        study.run("small", Inputs(tmp_path / "parts"))


def test_models_of_a_study_that_are_made_apart_give_the_same_numbers(tmp_path):
    plan = replace(TINY, models=("decoder",), seeds=2, held_out=0.2, steps=3, sites=("resid.1",))

    def parts(scale, inputs):
        trained = str(inputs.out / "training")
        test = TestPlan(trained, sites="resid.1", rank=4, tokens=256)
        other = replace(plan, seed=2)
        return [Part("training", TRAIN, plan), Part("further", TRAIN, other), Part("test", TEST, test)]

    study = Study("toys", "Toys.", (), {"smoke": "seconds"}, parts)
    whole = study.run("smoke", Inputs(tmp_path / "whole"))
    told = []
    apart = study.run("smoke", Inputs(tmp_path / "apart"), told.append, Machines())
    # All trainings are handed out at once; what needs them comes after them.
    assert [(progress.task, progress.total) for progress in told if progress.done == 0] == [("train", 4), ("test", 2)]
    for one, other in zip(apart, whole, strict=True):
        assert one.records.drop("run").sort(KEY).equals(other.records.drop("run").sort(KEY), null_equal=True)
        assert one.manifest["models"].keys() == other.manifest["models"].keys()


def test_a_model_of_a_study_that_fails_is_named_after_the_others_were_made(tmp_path, monkeypatch):
    def broken(plan, network, *rest):
        if network.name == "decoder":
            raise InputError("its weights must be finite")
        made.append(network.name)

    made = []
    monkeypatch.setattr(train, "_train_one", broken)
    study = Study("toys", "Toys.", (), {"smoke": "seconds"}, lambda scale, inputs: [Part("training", TRAIN, TINY)])
    with pytest.raises(InputError, match=r"1 of 2 failed: training: decoder: its weights must be finite"):
        study.run("smoke", Inputs(tmp_path), machines=Machines())
    assert made == ["encoder"]


@pytest.mark.parametrize(
    ("name", "scale", "inputs", "says"),
    [
        ("demo", "smal", {}, "a scale must be one of smoke, small, but is 'smal'; did you mean small?"),
        ("finished-models", "smoke", {}, "must be given models, but got none"),
        ("finished-models", "smoke", {"models": ("a/last", "b/last")}, "several are called last"),
        ("finished-models", "smoke", {"models": ("good", "./missing")}, "there is no directory './missing'"),
        ("learning-dynamics", "smoke", {"models": ("good",)}, "must be given no models, .* but got good"),
        ("shape-of-learning", "small", {}, "must be given enwik8, but got no text"),
        ("shape-of-learning", "small", {"text": "not-enwik8"}, "must be enwik8, 100,000,000 bytes"),
        ("learning-dynamics", "smoke", {"text": "short.txt"}, "must give at least"),
    ],
)
def test_what_cannot_work_is_refused_before_any_training(name, scale, inputs, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "not-enwik8").write_bytes(b"something else. " * 100_000)
    (tmp_path / "short.txt").write_text("too short. " * 20)
    save_tiny(tmp_path / "good")
    with pytest.raises(InputError, match=says.replace("?", r"\?")):
        STUDIES[name].run(scale, Inputs(tmp_path / "out", **inputs))
    assert not (tmp_path / "out").exists()
