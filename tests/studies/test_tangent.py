"""The tangent test of a finished model: its numbers are those of rows taken by hand, and it continues."""

import pytest
import torch

from tangentlens import InputError, tangent_test
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.share import ORDERS
from tangentlens.alignment.tangent_test import CONTROLS
from tangentlens.capture.backward import gradients
from tangentlens.capture.sites import find_sites
from tangentlens.corpora.text import builtin_text
from tangentlens.report.page import write_report
from tangentlens.runs.progress import unwatched
from tangentlens.runs.run import open_run
from tangentlens.studies import SECTIONS, subjects
from tangentlens.studies.subjects import Backward, model_subject, subject_rows
from tangentlens.studies.tangent import TestPlan, run_test
from tiny import save_tiny

SMALL = {"rank": 4, "tokens": 512, "length": 16}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("tested") / "decoder"))


@pytest.fixture(scope="module")
def run(decoder, tmp_path_factory):
    return run_test(TestPlan(decoder, **SMALL, nulls=True), tmp_path_factory.mktemp("tested") / "run")


def test_its_numbers_are_those_of_rows_taken_by_hand(decoder, run):
    subject = model_subject(decoder, Backward.of(TestPlan(decoder, **SMALL)), unwatched)
    rows, loss = gradients(subject.model, subject.batches, find_sites(subject.model, "resid.2"), "causal", (0, 1))
    here = rows["resid.2"]
    expected = tangent_test(
        here.activations,
        here.gradients,
        here.sequences,
        here.tokens,
        here.targets,
        rank=4,
        orders=tuple(ORDERS),
        bins=FrequencyBins.of(torch.cat([batch["input_ids"].flatten() for batch in subject.batches]).bincount()),
    )
    records = run.records.filter(model="decoder", site="resid.2", metric="share")
    for row in records.iter_rows(named=True):
        share = expected.share(row["variant"], row["order"], row["freq_bin"])
        assert (row["value"], row["ci_low"]) == pytest.approx((share.value, share.ci_low), rel=1e-4)
    assert set(CONTROLS) < set(records["variant"])
    assert {"all", "input.0", "target.3"} <= set(records["freq_bin"])
    assert run.records.filter(model="decoder", metric="loss")["value"].item() == pytest.approx(loss)


def test_all_residual_sites_and_the_nulls_are_there(run):
    shares = run.records.filter(metric="share", variant="semi_nmf", order=1.0, freq_bin="all")
    models = ["decoder", "decoder (untrained)", "decoder (shuffled labels)"]
    assert set(shares["model"]) == set(models)
    for model in models:
        assert shares.filter(model=model)["site"].to_list() == [f"resid.{n}" for n in range(4)] + ["mean"]
    assert {"anisotropy", "massive_rows", "intrinsic_dimension"} <= set(run.records["metric"])


def test_concepts_of_the_model_are_in_words_and_those_of_its_nulls_are_not(decoder, run):
    table = run.concepts("resid.2")
    text = builtin_text()
    assert table.height == 4
    assert all(
        context.replace(f"[{token}]", token, 1).strip() in text
        for row in table.iter_rows(named=True)
        for token, context in zip(row["tokens"], row["contexts"], strict=True)
    )


def test_sites_that_do_not_fit_into_memory_have_passes_of_their_own(decoder, run, tmp_path, monkeypatch):
    monkeypatch.setattr(subjects, "_HELD", 1)
    again = run_test(TestPlan(decoder, **SMALL, nulls=True), tmp_path / "run")
    assert again.records.drop("run").equals(run.records.drop("run"))


def test_it_goes_on_where_it_stopped_and_tests_no_site_again(decoder, run, tmp_path, monkeypatch):
    """Stopped among the sites of the model, and once more between the model and its nulls."""

    def stop(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    def stop_later(progress):
        if progress.task.endswith("(untrained)"):
            raise KeyboardInterrupt

    plan = TestPlan(decoder, **SMALL, nulls=True)
    with pytest.raises(KeyboardInterrupt):
        run_test(plan, tmp_path / "run", stop)
    half = open_run(tmp_path / "run").records
    assert set(half["site"]) == {"", "resid.0", "resid.1"}
    asked = []

    def rows(subject, which, sites, seed):
        asked.append((which, [site.name for site in sites]))
        return subject_rows(subject, which, sites, seed)

    monkeypatch.setattr(subjects, "subject_rows", rows)
    with pytest.raises(KeyboardInterrupt):
        run_test(plan, tmp_path / "run", stop_later)
    assert asked == [("", ["resid.2", "resid.3"])]
    tasks = set()
    again = run_test(plan, tmp_path / "run", lambda progress: tasks.add(progress.task))
    assert tasks == {"decoder (untrained)", "decoder (shuffled labels)"}
    assert len(asked) == 3
    assert again.records.drop("run").equals(run.records.drop("run"))


def test_the_report_tabulates_every_control_at_every_site(run, tmp_path):
    page = write_report([run], tmp_path / "report.html", SECTIONS)
    table = next(table.frame for table in page.tables if "energy share by site" in table.title)
    assert table.height == 3 * 4
    assert set(CONTROLS) < set(table.columns)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rank": 0}, "rank must be a whole number of at least 1"),
        ({"tokens": 10}, "tokens must be a whole number of at least 256"),
        ({"proxy": "nonsense"}, "proxy must be one of"),
    ],
)
def test_settings_that_make_no_sense_are_refused(decoder, wrong, says):
    with pytest.raises(InputError, match=says):
        TestPlan(decoder, **wrong)
