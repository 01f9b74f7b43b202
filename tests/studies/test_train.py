"""The demo, end to end, at a tiny size: records, resume, report."""

from dataclasses import replace

import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM

from tangentlens import InputError, open_run
from tangentlens.corpora.tokens import in_sequences
from tangentlens.models.device import find_device
from tangentlens.report.page import write_report
from tangentlens.report.reading import read_runs
from tangentlens.runs.progress import unwatched
from tangentlens.runs.records import KEY
from tangentlens.studies import SECTIONS
from tangentlens.studies.subjects import Backward
from tangentlens.studies.sweep import SweepPlan, run_sweep
from tangentlens.studies.tangent import TestPlan
from tangentlens.studies.train import run_train
from tangentlens.studies.train_plan import TrainPlan
from tangentlens.studies.trained import subjects_of
from tangentlens.training.objectives import draw
from tangentlens.training.tempering import WAYS
from tiny import TINY


class Interrupted(Exception):
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_train(TINY, tmp_path_factory.mktemp("study") / "whole")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The decoder alone, once more, with its checkpoints kept."""
    plan = replace(TINY, models=("decoder",), keep=True)
    return run_train(plan, tmp_path_factory.mktemp("study") / "kept")


def test_every_site_step_and_control_of_both_models_is_there(whole):
    records = whole.records
    shares = records.filter(pl.col("metric") == "share", pl.col("freq_bin") == "all")
    counts = shares.group_by("model", "step", "site").len()
    assert counts.height == 2 * len(TINY.schedule()) * (len(TINY.sites) + 1)
    assert counts["len"].unique().to_list() == [6 * 2]
    for metric in ("anisotropy", "intrinsic_dimension"):
        found = records.filter(metric=metric, quantity="activation", variant="").filter(pl.col("site") != "mean")
        assert found.height == 2 * len(TINY.schedule()) * len(TINY.sites)
    for model in ("decoder", "encoder"):
        bins = records.filter(model=model, metric="share")["freq_bin"].unique()
        assert {"input.0", "input.3", "target.0", "target.3"} <= set(bins)
    assert not records.select(KEY).is_duplicated().any()
    assert records.filter(metric="unmeasured").is_empty()


def test_the_manifest_holds_configuration_data_hash_and_weight_hashes(whole):
    manifest = open_run(whole.path).manifest
    assert manifest["config"]["rank"] == TINY.rank
    # The same plan may be continued on a machine with another device.
    assert manifest["config"]["device"] == "auto"
    assert {facts["device"] for facts in manifest["models"].values()} == {str(find_device())}
    assert len(manifest["data"]["sha256"]) == 64
    assert {len(manifest["models"][name]["initial_weights_sha256"]) for name in ("decoder", "encoder")} == {64}


def test_same_seed_same_numbers_another_seed_others(whole, kept, tmp_path):
    another = replace(TINY, models=("decoder",), seed=1, steps=2, sites=("resid.1",))
    other = run_train(another, tmp_path / "other").records
    expected = whole.records.filter(model="decoder")
    assert kept.records.drop("run").equals(expected.drop("run"))
    assert other.filter(metric="loss", step=0)["value"][0] != expected.filter(metric="loss", step=0)["value"][0]


# A step may have been measured after the last checkpoint; it is abandoned and measured again.
def test_stopped_anywhere_it_is_readable_and_goes_on_to_the_same_numbers(whole, tmp_path):
    before = 0
    # After the last step of one network, and in the middle of the other.
    for moment in (("decoder", 5), ("encoder", 4)):

        def stop(progress, moment=moment):
            if (progress.task, progress.done) == moment and progress.note:
                raise Interrupted

        with pytest.raises(Interrupted):
            run_train(TINY, tmp_path / "parts", stop)
        half = open_run(tmp_path / "parts")
        assert before < half.records.height < whole.records.height
        before = half.records.height
        assert write_report([half], tmp_path / "half.html", SECTIONS).path.stat().st_size > 0
    resumed = run_train(TINY, tmp_path / "parts").records
    assert resumed.drop("run").equals(whole.records.drop("run"))


def test_a_network_that_is_not_trained_to_its_end_is_of_another_family(whole, tmp_path):
    def stop(progress):
        if progress.done == TINY.steps - 1 and progress.note:
            raise Interrupted

    # What is looked at is no part of a family.
    with pytest.raises(Interrupted):
        run_train(replace(TINY, models=("decoder",), sites=("resid.1",)), tmp_path / "half", stop)
    families = [
        next(subjects_of(str(path), Backward.of(TestPlan(str(path))), unwatched)).facts["family"]
        for path in (whole.path, tmp_path / "half")
    ]
    assert families == [families[0], f"{families[0]}, stopped at 3"]


def test_a_finished_study_is_not_trained_again(whole):
    told = []
    run_train(TINY, whole.path, lambda progress: told.append((progress.task, progress.done)))
    assert told == [("decoder", TINY.steps), ("encoder", TINY.steps)]


def test_a_run_of_another_text_is_not_mixed_in(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and looked at the moon. " * 400)
    study = replace(TINY, text=str(path), steps=2, models=("decoder",), sites=("resid.1",))
    run_train(study, tmp_path / "run")
    path.write_text("a dog ran over the hill and far away in the rain. " * 400)
    with pytest.raises(InputError, match="was made from another text"):
        run_train(study, tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sites": ("resd.1",)}, "the nearest are resid.1"),
        ({"length": 30_000}, "at least 16 sequences of 30000 tokens"),
        # Some types occur once among 100,000 tokens.
        (
            {"models": ("decoder",), "tempering": "reweighted", "alpha": -5.0},
            r"tempering must leave at least 256 tokens in effect, those of one step, but alpha -5 leaves",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(change, says, tmp_path):
    with pytest.raises(InputError, match=says):
        run_train(replace(TINY, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_networks_of_one_family_differ_in_their_seed_alone():
    text, other_text = (in_sequences(torch.arange(64) % n, 9, 16) for n in (7, 8))

    def family(tokens=text, which=0, **change):
        plan = replace(TINY, seeds=2, **change)
        return plan.family(plan.networks()[which], tokens)

    assert family() == family(which=1) == family(seed=7, rank=2, dense=3)
    others = [{"learning_rate": 1e-4}, {"batch": 3}, {"held_out": 0.2}, {"steps": 99}, {"tokens": other_text}]
    assert family() not in [family(**other) for other in others]


def test_a_rank_above_half_the_width_is_refused():
    with pytest.raises(InputError, match="half the width, 64, but is 65"):
        TrainPlan(rank=65)


def test_checkpoints_that_a_training_keeps_can_be_swept(kept, tmp_path):
    """The weights that a step of the training began with give the loss that the training had, on its tokens."""
    folder = kept.path / "checkpoints" / "decoder"
    steps = sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))
    assert steps == TINY.schedule()
    small = {"sites": "resid.1", "rank": 4, "tokens": 256, "length": 16, "controls": ("random",)}
    swept = run_sweep(SweepPlan((str(folder),), **small), tmp_path / "swept")
    assert sorted(swept.records["step"].unique()) == steps
    assert swept.records.filter(metric="unmeasured").is_empty()
    model = AutoModelForCausalLM.from_pretrained(folder / f"checkpoint-{steps[-1]}")
    sequences, _ = TINY.split(TINY.tokens())
    chosen, _ = draw(sequences, TINY.batch, 0, steps[-1])
    told = kept.records.filter(metric="loss", model="decoder", step=steps[-1])["value"].item()
    with torch.no_grad():
        assert float(model(input_ids=chosen, labels=chosen).loss) == pytest.approx(told, rel=1e-5)


PENALISED = replace(
    TINY, models=("decoder",), sites=("resid.1",), steps=4, held_out=0.2, evaluate=True, by_frequency=False
)


def test_a_penalty_changes_the_training_and_the_loss_is_told_without_it(tmp_path):
    alone, penalised = (
        run_train(plan, tmp_path / str(number))
        for number, plan in enumerate((PENALISED, replace(PENALISED, penalty="isoscore", strength=1.0)))
    )
    # Before the first update, the networks are the same; a penalty of at most 1 would show in a loss that held it.
    first, second = (run.records.filter(metric="loss", step=0).sort("variant") for run in (alone, penalised))
    assert first["variant"].to_list() == ["", "held_out"]
    assert first["value"].to_list() == second["value"].to_list()
    last, other = (
        run.records.filter(metric="loss", step=3, variant="held_out")["value"].item() for run in (alone, penalised)
    )
    assert last != other
    facts = penalised.manifest["models"]["decoder"]
    assert facts["treatment"] == "isoscore 1"
    assert facts["family"].startswith("decoder with isoscore 1, 2 blocks")
    assert facts["family"].partition(", ")[2] == alone.manifest["models"]["decoder"]["family"].partition(", ")[2]


def whole_and_resumed(plan, folder, stop_at):
    """A training without a break, and one that was stopped; their records are the same."""

    def stop(progress):
        if progress.done == stop_at:
            raise Interrupted

    whole = run_train(plan, folder / "whole")
    with pytest.raises(Interrupted):
        run_train(plan, folder / "parts", stop)
    resumed = run_train(plan, folder / "parts")
    assert resumed.records.drop("run").sort(KEY).equals(whole.records.drop("run").sort(KEY), null_equal=True)
    return whole, resumed


def test_a_penalised_training_that_was_stopped_goes_on_to_the_same_numbers(tmp_path):
    """What the penalty remembers, and which tokens it draws, are kept with the weights."""
    plan = replace(PENALISED, penalty="isoscore", strength=1.0, steps=6, batch=48)
    whole, resumed = whole_and_resumed(plan, tmp_path, stop_at=4)
    weights = [run.manifest["models"]["decoder"]["weights_sha256"] for run in (whole, resumed)]
    assert weights[0] == weights[1]


def test_a_variation_is_trained_and_goes_on_to_the_same_numbers(tmp_path):
    """One in which some weights are frozen, and so have no state of the optimizer."""
    model = "frozen attention"
    plan = replace(TINY, models=(model,), sites=("resid.1",), steps=3)
    whole, resumed = whole_and_resumed(plan, tmp_path, stop_at=2)
    assert resumed.manifest["models"][model]["kind"] == model
    assert whole.records.filter(metric="unmeasured").is_empty()


def test_a_look_at_held_out_text_is_told_apart_and_changes_nothing(tmp_path):
    plan = replace(PENALISED, look="every")
    alone, looked = run_train(PENALISED, tmp_path / "alone"), run_train(plan, tmp_path / "looked")
    beside = looked.records.filter(model="decoder (held-out text)")
    own = looked.records.filter(model="decoder")
    assert own.drop("run").sort(KEY).equals(alone.records.drop("run").sort(KEY), null_equal=True)
    facts = [run.manifest["models"]["decoder"]["weights_sha256"] for run in (alone, looked)]
    assert facts[0] == facts[1]
    assert beside["step"].unique().sort().to_list() == plan.schedule()
    assert {"anisotropy", "log_ratio", "probe_skill"} <= set(beside["metric"])
    # Its tokens are not those that the network was trained on.
    assert beside.filter(step=3)["tokens_seen"].unique().to_list() == [3 * plan.batch * plan.length]
    shown = read_runs([looked])
    assert set(shown.filter(pl.col("null") == "held-out text")["network"]) == {"decoder"}
    # On the same text, the same weights give the same loss.
    losses = [
        run_loss(looked, model, variant) for model, variant in (("decoder", "held_out"), (beside["model"][0], ""))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def run_loss(run, model, variant):
    return run.records.filter(model=model, metric="loss", variant=variant, step=0)["value"].item()


@pytest.mark.parametrize("way", WAYS)
def test_a_tempered_training_that_was_stopped_goes_on_to_the_same_numbers(way, tmp_path):
    plan = replace(PENALISED, tempering=way, alpha=0.5, look="every" if way == "relabelled" else "")
    whole, resumed = whole_and_resumed(plan, tmp_path, stop_at=2)
    facts = [run.manifest["models"]["decoder"] for run in (whole, resumed)]
    assert facts[0]["weights_sha256"] == facts[1]["weights_sha256"]
    assert facts[0]["treatment"] == f"{way} 0.5"
    assert facts[0]["family"].startswith(f"decoder with {way} 0.5, 2 blocks")


def test_targets_are_weighted_in_training_and_not_in_the_loss_that_is_told(tmp_path):
    alone, weighted = (
        run_train(plan, tmp_path / str(number))
        for number, plan in enumerate((PENALISED, replace(PENALISED, tempering="reweighted", alpha=0.0)))
    )
    first, second = (run.records.filter(metric="loss", step=0).sort("variant") for run in (alone, weighted))
    assert first["value"].to_list() == second["value"].to_list()
    hashes = [run.manifest["models"]["decoder"]["weights_sha256"] for run in (alone, weighted)]
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"models": ("LTSM",)}, "did you mean LSTM"),
        ({"penalty": "cosin", "strength": 0.1}, "did you mean cosine"),
        ({"strength": 0.1}, "a strength needs a penalty, but is 0.1 without one"),
        ({"evaluate": True, "held_out": 0.0}, "evaluation needs held-out text"),
        ({"look": "last", "held_out": 0.0}, "evaluation needs held-out text"),
        ({"alpha": 0.5}, "an alpha needs a tempering, but is 0.5 without one"),
        ({"models": ("decoder",), "tempering": "relabeled", "alpha": 0.5}, "did you mean relabelled"),
        ({"models": ("encoder",), "tempering": "relabelled", "alpha": 0.5}, "predict each next token"),
    ],
)
def test_changes_that_cannot_work_are_refused(settings, says):
    with pytest.raises(InputError, match=says):
        replace(TINY, **settings)
