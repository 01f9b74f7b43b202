"""Shapes over depth, judged over networks, of planted profiles."""

from dataclasses import replace

import pytest

from tangentlens.report.reading import read_runs
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run
from tangentlens.studies.claims.ledger import ledger
from tangentlens.studies.claims.page import write_page
from tangentlens.studies.claims.shapes import depth_shapes

DEPTHS = [i / 6 for i in range(7)]
PROFILES = {
    "bell": [0.1, 0.3, 0.5, 0.6, 0.5, 0.3, 0.1],
    "valley": [0.6, 0.4, 0.2, 0.1, 0.2, 0.4, 0.6],
    "monotone": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
    "flat": [0.3] * 7,
}


def trained(folder, profile, noise, sites=range(7)):
    """A run of three seeds whose last step has the profile, and whose first has another."""
    run = create_run(folder, {})
    for seed in range(3):
        name = f"decoder-{seed}"
        records = [
            Record(
                model=name,
                step=step,
                site=f"resid.{i}",
                depth=DEPTHS[i],
                quantity="activation",
                metric="anisotropy",
                value=(profile[i] if step else 0.2 + 0.1 * i) + noise * ((seed * 7 + i) % 3 - 1),
            )
            for step in (0, 8)
            for i in sites
        ]
        run.write(name, records)
        facts = {"kind": "decoder", "family": "a decoder", "trained_seed": seed, "weights_sha256": name}
        run.describe("models", {name: facts})
    return run


@pytest.mark.parametrize("kind", PROFILES)
def test_the_shape_of_the_last_step_is_found(kind, tmp_path):
    found = depth_shapes(read_runs([trained(tmp_path / "run", PROFILES[kind], 0.002)]))
    assert found.select("stratum", "measure", "networks", "shape").rows() == [("a decoder", "anisotropy", 3, kind)]
    if kind == "bell":
        assert found["difference"].item().startswith("resid.3 − resid.")


def test_seeds_that_disagree_do_not_decide(tmp_path):
    found = depth_shapes(read_runs([trained(tmp_path / "run", PROFILES["bell"], 0.4)]))
    assert found["shape"].to_list() == ["undecided"]


def test_a_network_that_is_in_two_runs_counts_once(tmp_path):
    runs = [trained(tmp_path / name, PROFILES["bell"], 0.002) for name in "ab"]
    assert depth_shapes(read_runs(runs))["networks"].to_list() == [3]


def test_a_network_that_was_measured_at_other_sites_is_not_set_beside_the_others(tmp_path):
    run = trained(tmp_path / "run", PROFILES["bell"], 0.002)
    about = Record(model="decoder-9", step=8, quantity="activation", metric="anisotropy", value=0.5)
    run.write("another", [replace(about, site=f"resid.{i}", depth=DEPTHS[i]) for i in (0, 3, 6)])
    facts = {"kind": "decoder", "family": "a decoder", "trained_seed": 9, "weights_sha256": "another"}
    run.describe("models", {"decoder-9": facts})
    found = depth_shapes(read_runs([run]))
    assert found.select("networks", "shape").rows() == [(3, "bell")]


def test_part_of_a_network_has_no_shape(tmp_path):
    runs = [trained(tmp_path / "run", PROFILES["bell"], 0.002, sites=(2, 3, 4))]
    assert depth_shapes(read_runs(runs)).is_empty()


def test_the_page_has_them(tmp_path):
    records = read_runs([trained(tmp_path / "run", PROFILES["bell"], 0.002)])
    write_page(tmp_path / "page.md", ledger(records), records)
    text = (tmp_path / "page.md").read_text()
    assert "| A | a decoder |" in text
    assert "| A | anisotropy | 3 | bell | resid.3 − " in text
