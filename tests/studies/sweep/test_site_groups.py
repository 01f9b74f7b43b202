"""Sites of one checkpoint in several tasks: the same numbers, whatever the number of groups and whatever is killed."""

import json
import shutil
from unittest import mock

import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import tangentlens as tl
from checkpoints import assert_same, change_weights, sweep_plan
from tangentlens.cli import app, sweep_command
from tangentlens.engine import Machines
from tangentlens.errors import InputError
from tangentlens.studies.sweep import measuring, run_sweep, sweeping
from tangentlens.studies.sweep.estimate import estimate_sweep

SITES = ["resid.1", "resid.2", "resid.3"]
FEW = {"sites": tuple(SITES), "measures": ("anisotropy",), "controls": ("random", "pca"), "proxy": "covariance"}


def few_sites(folder, steps, **changed):
    """A sweep over some checkpoints of a folder, with little to measure."""
    few = {**FEW, "tokens": 256, "length": 16, **changed}
    return sweep_plan(folder, models=tuple(str(folder / f"checkpoint-{step}") for step in steps), **few)


def groups_of(n):
    return Machines(site_groups=n)


@pytest.fixture(scope="module")
def plan(trained):
    return few_sites(trained, (0, 4, 8))


@pytest.fixture(scope="module")
def whole(plan, tmp_path_factory):
    """The sweep with one task for each checkpoint."""
    return run_sweep(plan, tmp_path_factory.mktemp("whole") / "sweep")


@pytest.fixture
def captured(monkeypatch):
    """The sites of each pass through a model, as sweeps capture them."""
    passes, capture = [], measuring.rows_of_sites

    def noted(subject, which, sites, seed):
        passes.append([site.name for site in sites])
        return capture(subject, which, sites, seed)

    monkeypatch.setattr(measuring, "rows_of_sites", noted)
    return passes


def measuring_fails(monkeypatch, sites, steps):
    """From now on, some sites of some checkpoints cannot be measured."""
    measure = measuring._measured

    def failing(look, subject, site, *others):
        if look.checkpoint.step in steps and site.name in sites:
            raise RuntimeError(f"no memory for {site.name}")
        return measure(look, subject, site, *others)

    monkeypatch.setattr(measuring, "_measured", failing)


def facts(run):
    return [json.loads(run.about_tensors(f"model checkpoint-{step}")["facts"]) for step in (0, 4, 8)]


def test_groups_capture_their_own_sites_and_give_the_same_numbers(plan, whole, captured, tmp_path):
    told = []
    run = run_sweep(plan, tmp_path / "sweep", told.append, groups_of(3))
    assert captured == [["resid.1"], ["resid.2"], ["resid.3"]] * 3
    assert_same(run.records, whole.records)
    assert {"mean", *SITES} <= set(run.records["site"])
    assert facts(run) == facts(whole)
    for step in (0, 4, 8):
        kept, expected = (one.load_tensors(f"model checkpoint-{step}")[0] for one in (run, whole))
        assert len(kept) == 3 * len(SITES)
        torch.testing.assert_close(kept, expected)
    # Progress counts checkpoints.
    assert {one.total for one in told} == {3}
    assert [one.done for one in told] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert told[2].note.startswith("checkpoint-0 resid.2 done")


@pytest.mark.parametrize(("first", "then"), [(3, 1), (3, 2), (1, 3)])
def test_a_killed_sweep_is_continued_with_another_number_of_groups(
    trained, whole, captured, tmp_path, monkeypatch, first, then
):
    plan, out, keep, kept = few_sites(trained, (0, 4)), tmp_path / "sweep", measuring.keep_site, []

    def killed(run, name, site):
        if len(kept) == len(SITES) + 1:
            raise KeyboardInterrupt
        kept.append(name)
        keep(run, name, site)

    with monkeypatch.context() as broken:
        broken.setattr(measuring, "keep_site", killed)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(plan, out, machines=groups_of(first))
    # Nobody sees a checkpoint with a part of its sites.
    assert tl.open_run(out).records["step"].unique().to_list() == [0]
    captured.clear()
    run = run_sweep(plan, out, machines=groups_of(then))
    assert captured == ([["resid.2", "resid.3"]] if then == 1 else [["resid.2"], ["resid.3"]])
    assert_same(run.records, whole.records.filter(pl.col("step") < 8))


def test_what_was_measured_but_not_completed_is_completed_without_the_model(trained, whole, tmp_path, monkeypatch):
    plan, out, audited = few_sites(trained, (0,), audit=True), tmp_path / "sweep", []
    with monkeypatch.context() as broken:
        broken.setattr(measuring, "_complete", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_sweep(plan, out, machines=groups_of(2))
    monkeypatch.setattr(measuring, "model_subject", mock.Mock(side_effect=AssertionError("it was loaded")))
    monkeypatch.setattr(sweeping, "audit_checkpoint", audited.append)
    run = run_sweep(plan, out, machines=groups_of(3))
    assert_same(run.records, whole.records.filter(step=0))
    assert [look.checkpoint.label for look in audited] == ["checkpoint-0"]


def test_a_group_that_failed_is_named_and_alone_tried_again(plan, whole, captured, tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        measuring_fails(broken, ["resid.1"], steps=[4])
        run = run_sweep(plan, tmp_path / "sweep", machines=groups_of(2))
    of_failed = run.records.filter(step=4)
    assert of_failed["metric"].to_list() == ["unmeasured"]
    assert of_failed["detail"].item().startswith("resid.1: RuntimeError: no memory for resid.1")
    # The next one is compared with the last that was measured at all sites.
    assert run.records.filter(metric="earlier_step").select("step", "value").rows() == [(8, 0.0)]
    assert estimate_sweep(plan, tmp_path / "sweep")[0].done == 2
    captured.clear()
    run = run_sweep(plan, tmp_path / "sweep", machines=groups_of(1))
    assert captured == [["resid.1"], SITES], "the missing site, then the comparison of the third"
    assert_same(run.records, whole.records)


def test_sites_that_were_compared_with_different_checkpoints_are_compared_again(plan, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        measuring_fails(broken, ["resid.2"], steps=[4, 8])
        run_sweep(plan, tmp_path / "sweep", machines=groups_of(2))
    # Of the third checkpoint, one site was compared with the first one, and two are with the second.
    run = run_sweep(plan, tmp_path / "sweep", machines=groups_of(1))
    assert_same(run.records, whole.records)


def test_what_all_groups_fail_of_is_told_once(trained, tmp_path):
    shutil.copy(trained.parent / "text.txt", tmp_path / "text.txt")
    shutil.copytree(trained / "checkpoint-0", tmp_path / "model" / "checkpoint-0")
    change_weights(tmp_path / "model" / "checkpoint-0", lambda of: {name: one * torch.nan for name, one in of.items()})
    with pytest.raises(InputError) as error:
        run_sweep(few_sites(tmp_path / "model", (0,)), tmp_path / "sweep", machines=groups_of(2))
    assert "resid.1 and resid.2 to resid.3: all weights must be finite" in str(error.value)
    assert str(error.value).count("must be finite") == 1


def test_a_run_of_an_earlier_version_is_continued(plan, whole, captured, tmp_path):
    """It knew the sites of each checkpoint that was measured, and kept no site on its own."""
    run = tl.open_run(shutil.copytree(whole.path, tmp_path / "sweep"))
    known = run.manifest["models"]["model"]
    run.describe("models", {"model": {name: fact for name, fact in known.items() if name != "sites"}})
    for file in {*run.path.glob("*/*%20at%20*"), *run.path.glob("*/model%20checkpoint-8*")}:
        file.unlink()
    run = run_sweep(plan, run.path, machines=groups_of(2))
    assert captured == [SITES[:1], SITES[1:]]
    assert_same(run.records, whole.records)


def test_the_number_of_groups_must_be_positive():
    with pytest.raises(InputError, match="site_groups must be a whole number of at least 1"):
        groups_of(0)


def test_the_command_takes_it_and_the_plan_does_not_know_it(unchecked):
    with mock.patch.object(sweep_command, "run_and_report") as called:
        done = CliRunner().invoke(app, ["sweep", "somewhere", "--site-groups", "3"])
    assert done.exit_code == 0
    _, plan, *_, machines = called.call_args.args
    assert machines.site_groups == 3
    assert not hasattr(plan, "site_groups"), "it does not determine the numbers"
