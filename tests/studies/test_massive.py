"""Massive rows in finished models: profiles and audits with and without them, and what a report says."""

import re

import polars as pl
import pytest
import torch
from transformers import AutoTokenizer

from tangentlens import InputError
from tangentlens.models.load import load_model
from tangentlens.report.page import write_report
from tangentlens.studies import SECTIONS
from tangentlens.studies.audit import AuditPlan, run_audit
from tangentlens.studies.profile import Profile, run_profile
from tiny import save_sunk, save_tiny

SMALL = {"batches": 3, "batch_tokens": 256, "length": 16}


@pytest.fixture(scope="module")
def sunk(tmp_path_factory):
    """A model one of whose tokens is massive, and the name of that token."""
    folder, sink = save_sunk(tmp_path_factory.mktemp("sunk") / "tiny")
    return folder, AutoTokenizer.from_pretrained(folder).decode([sink])


@pytest.fixture(scope="module")
def profiled(sunk, tmp_path_factory):
    return run_profile(Profile(models=(str(sunk[0]),), **SMALL), tmp_path_factory.mktemp("runs") / "profile")


def test_a_profile_has_every_measure_with_and_without_them(sunk, profiled, tmp_path):
    clean = save_tiny(tmp_path / "tiny")
    expected = run_profile(Profile(models=(str(clean),), **SMALL), tmp_path / "run").records
    assert expected["rows"].unique().to_list() == ["all"]
    spread = profiled.records.filter(metric="anisotropy", site="resid.0")
    value = dict(spread.select("rows", "value").iter_rows())
    assert value["all"] > 0.9
    # The embedding of all other tokens is that of the clean model.
    clean_value = expected.filter(metric="anisotropy", site="resid.0")["value"].item()
    assert value["without_massive"] == pytest.approx(clean_value, rel=0.05)
    count = profiled.records.filter(metric="massive_rows", site="resid.0", rows="all").row(0, named=True)
    assert 1 <= count["value"] <= 10
    assert f"tokens {sunk[1]!r} (" in count["detail"]
    assert profiled.records.filter(metric="massive_rows", site="resid.0", rows="without_massive")["value"].item() == 0


def test_a_profile_goes_on_with_what_it_knew_of_them(sunk, profiled, tmp_path):
    def stop(progress):
        if progress.done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_profile(Profile(models=(str(sunk[0]),), **SMALL), tmp_path / "run", stop)
    again = run_profile(Profile(models=(str(sunk[0]),), **SMALL), tmp_path / "run")
    assert again.records.drop("run").equals(profiled.records.drop("run"))


def test_a_report_says_what_decides_a_number(profiled, tmp_path):
    page = write_report([profiled], tmp_path / "report.html", SECTIONS)
    told = next(finding.text for finding in page.findings if finding.text.startswith("Massive rows"))
    assert "are at 4 of 4 sites" in told
    assert "† with them and" in told
    assert page.legend.startswith("† The top 1% of the rows")
    table = next(table.frame for table in page.tables if table.title.startswith("Massive rows"))
    assert table["site"].to_list() == ["resid.0", "resid.1", "resid.2", "resid.3"]
    assert all(text.endswith("†") for text in table["anisotropy"])
    assert not any("†" in text for text in table["anisotropy without"])
    text = page.path.read_text()
    assert re.search(r"up to (0\.9\d+|1\.00) with its massive rows and 0\.\d+ without", text)
    assert page.legend in text


def test_a_clean_report_has_no_marks(tmp_path):
    clean = run_profile(Profile(models=(str(save_tiny(tmp_path / "tiny")),), **SMALL), tmp_path / "run")
    page = write_report([clean], tmp_path / "report.html", SECTIONS)
    assert page.legend == ""
    assert not any("assive" in finding.text for finding in page.findings)


def test_an_audit_reads_the_rows_both_ways(sunk, tmp_path):
    run = run_audit(AuditPlan(str(sunk[0]), rank=4, tokens=1024, length=16), tmp_path / "audit")
    assert list(run.manifest["audits"]) == ["tiny at resid.2", "tiny at resid.2, without massive rows"]
    verdicts = run.records.filter(metric="audit/verdict")
    assert verdicts["rows"].to_list() == ["all", "without_massive"]
    shares = run.records.filter(metric="share", variant="semi_nmf", order=1.0, freq_bin="all")
    assert shares["rows"].to_list() == ["all", "without_massive"]
    page = write_report([run], tmp_path / "report.html", SECTIONS)
    assert sum("without massive rows: every number" in table.title for table in page.tables) == 1


def test_positions_can_be_skipped_and_windows_can_begin_with_a_special_token(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with pytest.raises(InputError, match="begin-of-sequence"):
        load_model(str(folder)).beginning_with_bos()
    tokenizer.bos_token = "[MASK]"
    tokenizer.save_pretrained(folder)
    loaded = load_model(str(folder)).beginning_with_bos()
    assert loaded.framed(torch.tensor([[5, 6]])).tolist() == [[tokenizer.bos_token_id, 5, 6]]
    assert loaded.beginning_with_bos() is loaded
    plain, skipped, begun = (
        run_profile(Profile(models=(str(folder),), **SMALL, **options), tmp_path / name).records
        for name, options in (("plain", {}), ("skipped", {"skip_first": 8}), ("begun", {"bos": True}))
    )
    values = [table.filter(metric="anisotropy", site="resid.2")["value"].item() for table in (plain, skipped, begun)]
    assert len(set(values)) == 3
    with pytest.raises(InputError, match="skip_first must leave tokens in windows of 16, but is 17"):
        run_profile(Profile(models=(str(folder),), **SMALL, skip_first=17), tmp_path / "none")
    with pytest.raises(InputError, match="skip_first must be a whole number of at least 0"):
        Profile(models=(str(folder),), skip_first=-1)


def test_the_birth_of_massive_activations_is_a_finding(tmp_path):
    from tangentlens import Lens
    from tiny import tiny_batch, tiny_model

    model = tiny_model()
    with Lens(model, rank=4, every=1, run=tmp_path / "run") as lens:
        for step in range(3):
            if step == 2:
                with torch.no_grad():
                    model.get_input_embeddings().weight[63] *= 1000
            loss = model(**tiny_batch(0, batch=32)).loss
            loss.backward()
            model.zero_grad()
            lens.step(loss)
    page = write_report([lens.run], tmp_path / "report.html", SECTIONS)
    born = [finding.text for finding in page.findings if "appeared" in finding.text]
    assert len(born) == 1
    assert born[0].startswith("Massive activations appeared at step 2, first at resid.0")
    assert born[0].endswith("and were not there at step 1.")
    assert lens.run.records.filter(pl.col("rows") == "without_massive")["step"].unique().to_list() == [2]
