"""Runs that earlier versions wrote, as they wrote them: each format is read, reported on, and continued, for ever.

`kept/format-N` was written by the last version whose format was N: four steps of a small decoder, of which steps 0 and
2 were due. A new format adds a folder here, and none is ever changed.
"""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
import torch

from tangentlens import Lens, open_run
from tangentlens.report.page import write_report
from tangentlens.runs.formats import FORMAT
from tangentlens.runs.records import SCHEMA
from tangentlens.studies import SECTIONS
from tiny import tiny_batch, tiny_model

KEPT = Path(__file__).parent / "kept"
FORMATS = range(1, FORMAT + 1)


@pytest.fixture(params=FORMATS)
def run(request, tmp_path):
    """A copy of a run of each format."""
    path = shutil.copytree(KEPT / f"format-{request.param}", tmp_path / "run")
    assert json.loads((path / "manifest.json").read_text())["format"] == request.param
    return open_run(path)


def test_every_format_has_a_run():
    assert {folder.name for folder in KEPT.iterdir()} == {f"format-{number}" for number in FORMATS}


def test_all_numbers_are_read_as_they_were_written(run):
    kept = pl.concat([pl.read_parquet(part) for part in sorted((run.path / "records").glob("*.parquet"))])
    key = ["step", "site", "quantity", "metric", "variant", "order", "value"]
    read = run.records
    assert read.schema == SCHEMA
    assert read["step"].unique().sort().to_list() == [0, 2]
    assert read["rows"].unique().to_list() == ["all"]
    # What format 1 called otherwise is told by the tests of formats; these have the same names in all of them.
    same = kept.filter(pl.col("metric").is_in(["loss", "anisotropy", "share", "log_ratio", "p_value"])).select(key)
    assert same.height > 50
    assert set(same.rows()) <= set(read.select(key).rows())


def test_a_report_is_written(run):
    page = write_report([run], run.path / "report.html", SECTIONS)
    assert "Anisotropy" in Path(page.path).read_text()


def test_the_training_goes_on(run):
    model = tiny_model()
    with Lens(
        model, sites=["resid.0", "resid.1"], rank=4, every=2, run=run.path, exclude=[0], step=4, tokens_seen=384
    ) as lens:
        loss = model(**tiny_batch()).loss
        loss.backward()
        lens.step(loss)
    again = open_run(run.path)
    assert again.records["step"].unique().sort().to_list() == [0, 2, 4]
    assert again.manifest["format"] == FORMAT
    assert torch.isfinite(torch.tensor(again.records.filter(metric="anisotropy")["value"].to_list())).all()
