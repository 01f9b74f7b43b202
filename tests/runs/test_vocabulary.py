"""The words of the records: known everywhere, documented, and checked when they are written."""

import re
from pathlib import Path

import pytest

from tangentlens.runs.records import SCHEMA, Record, as_frame
from tangentlens.runs.vocabulary import METRICS, PROXY, VARIANTS, derived, known, proxy_style

PATH = Path(__file__).parents[2] / "docs" / "records.md"
PAGE = re.sub(r"^```.*?^```", "", PATH.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_every_metric_and_column_is_on_the_page_of_records():
    named = set(re.findall(r"`([^`]+)`", PAGE))
    assert {name.partition(":")[0] for name in METRICS} <= named
    assert set(SCHEMA.names()) <= named


def test_every_metric_has_a_label_and_what_its_axis_says_has_the_unit():
    assert all(metric.label for metric in METRICS.values())
    assert METRICS["manifold_entropy"].axis == "entropy (nats)"


def test_what_may_be_negative_is_not_drawn_on_a_logarithmic_axis():
    logarithms = {metric.name for metric in METRICS.values() if metric.label.startswith("ln(")}
    assert "log_ratio" in logarithms
    assert not logarithms & {metric.name for metric in METRICS.values() if metric.log}


def test_subspaces_are_told_apart_by_colour_and_line():
    styles = [*VARIANTS.values(), proxy_style("semi_nmf")]
    drawn = {(style.colour, style.dash) for name, style in VARIANTS.items() if name != "semi_nmf"}
    assert len(drawn) == len(VARIANTS) - 1
    assert (styles[-1].colour, styles[-1].dash) not in drawn
    assert proxy_style("mine").label == "tangent proxy (mine)"


def test_derived_metrics_are_known_by_what_they_are_derived_from():
    assert known(derived("sd", "anisotropy"))
    assert known("audit/anything")
    assert not known("sd/anisotropi")
    assert not known("nonsense/anisotropy")


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (
            [Record(model="m", metric="anisotropi", value=1.0)],
            "must be in the vocabulary, but these are not: anisotropi",
        ),
        ([Record(model="m", metric="loss", value=v, detail=str(v)) for v in (1.0, 2.0)], "must differ in their keys"),
    ],
)
def test_an_unknown_metric_and_two_records_under_one_key_are_bugs(records, says):
    with pytest.raises(ValueError, match=says):
        as_frame("run", records)


def test_the_same_number_of_another_order_or_alpha_is_another_record():
    about = {"model": "m", "metric": "share", "variant": "pca", "detail": PROXY}
    assert as_frame("run", [Record(**about, order=o, alpha=a) for o in (1.0, 2.0) for a in (None, 0.5)]).height == 4
