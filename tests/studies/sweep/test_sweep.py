"""Sweeps in one process: they agree with a lens, continue, and name what failed or is suspicious."""

import math
import shutil

import polars as pl
import pytest
import torch

import tangentlens as tl
from checkpoints import STEPS, assert_same, change_weights, sweep_plan
from tangentlens.errors import InputError, StorageError
from tangentlens.report.contents import find, tabulate
from tangentlens.report.reading import read_runs, undoubted
from tangentlens.runs.records import KEY
from tangentlens.runs.run import runs_in
from tangentlens.studies import SECTIONS
from tangentlens.studies.claims.ledger import FINISHED, ledger
from tangentlens.studies.sweep import measuring, run_sweep, sweeping


@pytest.fixture
def copied(trained, tmp_path):
    shutil.copy(trained.parent / "text.txt", tmp_path / "text.txt")
    return shutil.copytree(trained, tmp_path / "model")


def test_it_agrees_with_a_lens_on_the_same_tokens(trained, swept):
    """The lens measured the same weights inside a training, on the same tokens."""
    sweep = swept.records.filter(pl.col("quantity").is_in(["activation", "gradient", "loss"]))
    compared = 0
    for step in STEPS:
        lens = tl.open_run(trained.parent / "lens" / str(step)).records
        both = lens.join(sweep, on=[name for name in KEY if name != "revision"], how="inner", nulls_equal=True)
        assert both.height > 0.9 * lens.height
        for column in ("value", "ci_low", "ci_high"):
            one, other = both[column].to_numpy(), both[f"{column}_right"].to_numpy()
            torch.testing.assert_close(
                torch.tensor(one),
                torch.tensor(other),
                rtol=1e-5,
                atol=1e-5,
                equal_nan=True,
            )
        compared += both.height
    assert compared > 500


def test_every_checkpoint_is_there_once_with_what_happened_in_between(swept):
    records = swept.records
    assert sorted(records["step"].unique()) == list(STEPS)
    assert not records.select(KEY).is_duplicated().any()
    assert records.filter(metric="flagged").is_empty()
    earlier = records.filter(metric="earlier_step").sort("step")
    assert earlier.select("step", "value").rows() == [(4, 0.0), (8, 4.0), (12, 8.0)]
    overlap = records.filter(metric="overlap", variant="semi_nmf", site="resid.1")["value"]
    assert len(overlap) == 3
    assert overlap.is_between(0, 1).all()
    later = records.filter(quantity="later_gradient", metric="share", site="mean", order=1.0)
    assert set(later["variant"]) == {"semi_nmf", "random", "pca", "gradients_then", "gradients_now"}
    assert set(later["step"]) == {4, 8, 12}


def test_the_overlap_is_that_of_the_kept_subspaces(swept):
    then, now = (swept.load_tensors(f"model checkpoint-{step}")[0]["resid.2/semi_nmf"].double() for step in (4, 8))
    naive = torch.linalg.svdvals(then.T @ now).square().mean()
    stored = swept.records.filter(metric="overlap", variant="semi_nmf", site="resid.2", step=8)["value"].item()
    assert math.isclose(stored, float(naive), rel_tol=1e-5)


def test_an_interrupted_sweep_continues_to_the_same_numbers(trained, swept, tmp_path, monkeypatch):
    measured = []

    def interrupted(look, earlier):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(look.checkpoint.label)
        measuring.measure_checkpoint(look, earlier)

    monkeypatch.setattr(sweeping, "measure_checkpoint", interrupted)
    plan = sweep_plan(trained)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, tmp_path / "sweep")
    assert len(tl.open_run(tmp_path / "sweep").records["step"].unique()) == 2
    monkeypatch.undo()
    again = []
    monkeypatch.setattr(
        sweeping,
        "measure_checkpoint",
        lambda look, earlier: (again.append(look), measuring.measure_checkpoint(look, earlier)),
    )
    run = run_sweep(plan, tmp_path / "sweep")
    assert [look.checkpoint.label for look in again] == ["checkpoint-8", "checkpoint-12"]
    assert_same(run.records, swept.records)
    again.clear()
    run_sweep(plan, tmp_path / "sweep")
    assert not again


def test_a_checkpoint_that_cannot_load_is_named_and_tried_again(copied, swept, tmp_path):
    broken = copied / "checkpoint-8" / "model.safetensors"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    run = run_sweep(sweep_plan(copied), tmp_path / "sweep")
    failed = run.records.filter(metric="unmeasured")
    assert failed.select("revision", "step").rows() == [("checkpoint-8", 8)]
    assert "checkpoint-8" in failed["detail"].item()
    # The next one is compared with the last that could be measured.
    earlier = run.records.filter(metric="earlier_step").sort("step")
    assert earlier.select("step", "value").rows() == [(4, 0.0), (12, 4.0)]
    broken.write_bytes(whole)
    run = run_sweep(sweep_plan(copied), tmp_path / "sweep")
    assert run.records.filter(metric="unmeasured").is_empty()
    assert_same(run.records, swept.records)


def test_weights_that_are_not_finite_are_named(copied, tmp_path):
    def spoil(weights):
        return {**weights, "model.norm.weight": weights["model.norm.weight"] * torch.nan}

    change_weights(copied / "checkpoint-4", spoil)
    run = run_sweep(sweep_plan(copied), tmp_path / "sweep")
    failed = run.records.filter(metric="unmeasured")
    assert failed["step"].to_list() == [4]
    assert "must be finite" in failed["detail"].item()


def _flags(run):
    return run.records.filter(metric="flagged").select("step", "variant", "detail").rows()


def test_equal_weights_and_losses_that_rise_are_flagged(copied, tmp_path):
    shutil.copy(copied / "checkpoint-12" / "model.safetensors", copied / "checkpoint-4" / "model.safetensors")
    run = run_sweep(sweep_plan(copied), tmp_path / "sweep")
    flagged = {(step, kind): why for step, kind, why in _flags(run)}
    assert set(flagged) == {(4, "weights"), (12, "weights"), (4, "loss"), (8, "loss")}
    assert "the same weights as step 12" in flagged[4, "weights"]
    assert "the same weights as step 4" in flagged[12, "weights"]
    assert "the loss rises" in flagged[8, "loss"]
    # Weights of another step are no measurement of this one; a loss that rises is a warning.
    records = read_runs([run])
    assert undoubted(records).filter(metric="share")["step"].unique().to_list() == [0, 8]
    told = " ".join(finding.text for finding in find(SECTIONS, records))
    assert "4 checkpoints were measured. 2 of them are not what their names say" in told
    assert "1 of them may not be what their names say" in told
    assert "At step 8 the" in told
    assert "At step 12 the" not in told
    table = next(one.frame for one in tabulate(SECTIONS, records) if "suspicious" in one.title)
    assert table.select("step", "state").unique(maintain_order=True).rows() == [
        (4, "left out"),
        (4, "suspicious"),
        (8, "suspicious"),
        (12, "left out"),
    ]


def test_claims_are_judged_by_the_models_of_a_sweep(swept):
    entries = {entry.claim.id: entry for entry in ledger(read_runs([swept]))}
    ratio = swept.records.filter(metric="log_ratio", variant="normal", order=1.0, freq_bin="all", site="mean", step=12)
    effects = entries["2"].effects
    assert effects["population"].to_list() == [FINISHED]
    assert effects["effect"].to_list() == ratio.filter(rows="all")["value"].to_list()
    # Emergence needs more than one step, which a finished model alone does not have.
    assert entries["4a"].effects.height == 1


def test_a_full_disk_ends_the_sweep_and_what_was_measured_stays(trained, swept, tmp_path, monkeypatch):
    def full(look, earlier):
        if look.checkpoint.step == 8:
            raise StorageError("could not write: no space left on device")
        measuring.measure_checkpoint(look, earlier)

    monkeypatch.setattr(sweeping, "measure_checkpoint", full)
    with pytest.raises(StorageError, match="no space"):
        run_sweep(sweep_plan(trained), tmp_path / "sweep")
    monkeypatch.undo()
    run = run_sweep(sweep_plan(trained), tmp_path / "sweep")
    assert_same(run.records, swept.records)


def test_what_can_never_work_is_told_before_there_is_a_folder(copied, tmp_path):
    other = copied / "checkpoint-16"
    shutil.copytree(copied / "checkpoint-12", other)
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(config.replace('"hidden_size": 32', '"hidden_size": 64'))
    with pytest.raises(InputError, match="checkpoint-16 3 of width 64"):
        run_sweep(sweep_plan(copied), tmp_path / "sweep")
    shutil.rmtree(other)
    with pytest.raises(InputError, match=r"resid\.9"):
        run_sweep(sweep_plan(copied, sites=("resid.9",)), tmp_path / "sweep")
    with pytest.raises(InputError, match="rank"):
        run_sweep(sweep_plan(copied, rank=17), tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_a_tokenizer_beside_the_checkpoints_will_do(copied, swept, tmp_path):
    for folder in copied.iterdir():
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            if (folder / name).exists():
                shutil.copy(folder / name, copied / name)
                (folder / name).unlink()
    run = run_sweep(sweep_plan(copied), tmp_path / "sweep")
    assert_same(run.records, swept.records)


def test_checkpoints_are_audited_if_asked_and_once(copied, tmp_path, monkeypatch):
    for step in (4, 8):
        shutil.rmtree(copied / f"checkpoint-{step}")
    plan = sweep_plan(copied, audit=True)
    run_sweep(plan, tmp_path / "sweep")
    audits = runs_in(tmp_path / "sweep" / "audits")
    assert [run.name for run in audits] == ["model checkpoint-0", "model checkpoint-12"]
    assert all(run.records.filter(metric="audit/verdict").height == 1 for run in audits)
    monkeypatch.setattr(sweeping, "audit_checkpoint", lambda look: pytest.fail("it was audited before"))
    run_sweep(plan, tmp_path / "sweep")
