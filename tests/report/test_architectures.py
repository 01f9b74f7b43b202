"""Variations beside the plain network: what is told of planted ones."""

import pytest

from cells import cell
from tangentlens.report.reading import read_runs
from tangentlens.report.sections.architectures import anisotropy_of_variations, differences, variation_table
from tangentlens.runs.run import create_run


@pytest.fixture
def records(tmp_path):
    """Seeds differ much, and a variation from the plain network of the same seed little: by 0.1 in the middle."""
    run = create_run(tmp_path / "run", {}, "train")
    for seed in range(3):
        heights = {
            "plain decoder": 0.0,
            "post-norm": 0.3 + 0.01 * seed,
            "LSTM": 0.001 * seed,
            "masked decoder": 0.5,
            "encoder": 0.1 + 0.01 * seed,
        }
        for kind, height in heights.items():
            name = f"{kind}-{seed}"
            facts = {"kind": kind, "family": f"{kind}, one", "trained_seed": seed, "weights_sha256": name}
            run.describe("models", {name: facts})
            about = {"model": name, "step": 8, "quantity": "activation"}
            places = {"resid.0": 0.0, "resid.1": 0.5, "resid.2": 1.0}
            values = [0.2 * seed + height * (depth == 0.5) for depth in places.values()]
            run.write(
                name,
                [
                    cell("anisotropy", value, site=site, depth=depth, **about)
                    for (site, depth), value in zip(places.items(), values, strict=True)
                ],
            )
    return read_runs([run])


def test_differences_are_from_the_network_of_the_same_seed(records):
    found = differences(records)
    assert list(found) == ["post-norm", "LSTM", "masked decoder", "encoder"]
    bell = found["post-norm"]["height of the bell"]
    assert bell.value == pytest.approx(0.31)
    # Three differences with a standard deviation of 0.01, and the quantile 4.303 of Student's law.
    assert bell.ci_high - bell.value == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)
    assert found["post-norm"]["anisotropy"].value == pytest.approx(0.31 / 3)


def test_an_encoder_is_compared_with_the_same_network_with_a_causal_mask(records):
    found = differences(records)
    assert found["encoder"]["height of the bell"].value == pytest.approx(0.11 - 0.5)
    assert found["masked decoder"]["height of the bell"].value == pytest.approx(0.5)
    (table,) = variation_table(records)
    assert "encoder (against masked decoder)" in table.frame["variation"].to_list()


def test_each_cell_says_what_its_interval_allows(records):
    (table,) = variation_table(records)
    told = {row["variation"]: row["height of the bell"] for row in table.frame.to_dicts()}
    assert told["post-norm"].endswith("higher")
    assert told["LSTM"].endswith("no difference that matters")


def test_the_title_tells_what_is_decided(records):
    title = anisotropy_of_variations(records).title
    assert "higher: post-norm 0.103 [" in title
    assert "lower: encoder (against masked decoder) -0.13" in title
    assert title.endswith("no difference that matters: 1")


def test_profiles_are_means_over_seeds(records):
    plot = anisotropy_of_variations(records).plot
    lines = {trace.name: trace for trace in plot.data}
    assert list(lines) == ["plain decoder", "post-norm", "LSTM", "masked decoder", "encoder"]
    assert list(lines["post-norm"].y) == pytest.approx([0.2, 0.51, 0.2])


def test_one_kind_alone_is_compared_with_nothing(records):
    plain = records.filter(records["kind"] == "plain decoder")
    assert anisotropy_of_variations(plain) is None
    assert list(variation_table(plain)) == []
