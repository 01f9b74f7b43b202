"""Runs of earlier formats open: their words are found where those of the present format are."""

import json

import polars as pl
import pytest

from tangentlens import InputError, open_run
from tangentlens.runs.formats import FORMAT
from tangentlens.runs.records import SCHEMA, Record
from tangentlens.runs.run import create_run

# Columns that format 1 did not have.
NEW = ("detail", "alpha", "rows")
CASES = [
    # metric, variant -> metric, variant, detail, alpha
    (("share", "semi_nmf"), ("share", "semi_nmf", "proxy", None)),
    (("share", "pca"), ("share", "pca", "", None)),
    (("p_value", "random"), ("p_value", "random", "", None)),
    (("unmeasured", "too few: 3"), ("unmeasured", "", "too few: 3", None)),
    (("audit", "says: tangent"), ("audit/verdict", "", "tangent", None)),
    (("audit", "local tangents: log_ratio to chance"), ("audit/local tangents", "log_ratio to chance", "", None)),
    (("shape_of_anisotropy", "bell"), ("shape/anisotropy", "", "bell", None)),
    (
        ("shape_of_intrinsic_dimension", "one_per_type:flat"),
        ("shape/intrinsic_dimension", "one_per_type", "flat", None),
    ),
    (("anisotropy_sd", ""), ("sd/anisotropy", "", "", None)),
    (("local_anisotropy_sd", "matched"), ("sd/local_anisotropy", "matched", "", None)),
    (("visible_curvature", "alpha=0.5"), ("visible_curvature", "", "", 0.5)),
    (("visible_curvature_analytic", "alpha=1"), ("analytic/visible_curvature", "", "", 1.0)),
    (("visible_curvature_ratio_dealt", "corpus alpha=1"), ("null/visible_curvature_ratio", "corpus", "", 1.0)),
    (("visible_curvature_ratio_p_value", "types alpha=0"), ("p_value/visible_curvature_ratio", "types", "", 0.0)),
    (
        ("frequency_distance_correlation_p_value", "corpus"),
        ("p_value/frequency_distance_correlation", "corpus", "", None),
    ),
    (("unmeasured", "dealt alpha=1: too few"), ("unmeasured", "permuted", "dealt alpha=1: too few", 1.0)),
    (("audit", "charts: log_ratio of dealt gradients"), ("audit/charts", "log_ratio of permuted gradients", "", None)),
    (("rms_curvature", "dealt alpha=0.25"), ("rms_curvature", "permuted", "", 0.25)),
]


DEMO = {"models": ["decoder"], "learning_rate": 0.1, "mask_rate": 0.3, "vocabulary": 300, "layers": 2}


def old_run(path, config, rows, lenses=None):
    """A run as format 1 wrote it."""
    create_run(path, config)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["made_by"]
    manifest |= {"format": 1} | ({"lenses": lenses} if lenses else {})
    (path / "manifest.json").write_text(json.dumps(manifest))
    schema = {name: kind for name, kind in SCHEMA.items() if name not in NEW}
    blank = {"run": "old", "model": "m", "freq_bin": "all", "step": 0, "seed": 0, "value": 1.0}
    frame = pl.DataFrame([{**blank, "metric": metric, "variant": variant} for metric, variant in rows], schema=schema)
    frame.write_parquet(path / "records" / "old.parquet")
    return path


def test_words_move_from_the_variant_to_their_own_columns(tmp_path):
    run = open_run(old_run(tmp_path / "old", {}, [old for old, _ in CASES]))
    assert run.records.select("metric", "variant", "detail", "alpha").rows() == [new for _, new in CASES]


@pytest.mark.parametrize(
    ("config", "made_by"),
    [({"command": "profile", "seed": 1}, "profile"), (DEMO, "demo"), ({"learning_rate": 0.1}, "lens"), ({}, "lens")],
)
def test_what_made_a_run_is_known(config, made_by, tmp_path):
    run = open_run(old_run(tmp_path / "old", config, []))
    assert run.manifest["made_by"] == made_by
    assert "command" not in run.manifest["config"]
    # An interrupted one is continued.
    assert create_run(run.path, run.manifest["config"], made_by).path == run.path


def test_a_lens_of_format_1_is_continued(tmp_path):
    run = open_run(old_run(tmp_path / "old", {}, [], lenses={"model": {"rank": 4}}))
    assert run.manifest["lenses"] == {"model": {"proxy": "semi_nmf", "skip_first": 0, "massive": 10.0, "rank": 4}}
    run.describe("data", {"bytes": 1})
    assert json.loads((run.path / "manifest.json").read_text())["format"] == FORMAT


def test_records_of_format_2_are_of_all_rows(tmp_path):
    now = {"seed": 1, "skip_first": 0, "bos": False, "massive": 10.0}
    run = create_run(tmp_path / "run", {"seed": 1}, "profile")
    run.write("old", [Record(model="m", metric="anisotropy", value=0.5)])
    part = next((run.path / "records").glob("*.parquet"))
    pl.read_parquet(part).drop("rows").write_parquet(part)
    manifest = json.loads((run.path / "manifest.json").read_text())
    lenses = {"m": {"proxy": "pca"}}
    (run.path / "manifest.json").write_text(json.dumps(manifest | {"format": 2, "lenses": lenses}))
    assert open_run(run.path).records["rows"].to_list() == ["all"]
    assert run.manifest["lenses"] == {"m": {"proxy": "pca", "skip_first": 0, "massive": 10.0}}
    assert create_run(run.path, now, "profile").path == run.path


def test_a_format_of_the_future_is_refused(tmp_path):
    path = old_run(tmp_path / "old", {}, [])
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": FORMAT + 1}))
    with pytest.raises(InputError, match="must be a run's manifest of format 1 to 3"):
        open_run(path)
