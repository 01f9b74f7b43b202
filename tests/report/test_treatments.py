"""Changes of a training side by side: what is drawn of planted networks."""

import pytest

from cells import cell
from tangentlens.report.reading import read_runs
from tangentlens.report.sections.treatments import treatment_fronts, treatment_table
from tangentlens.runs.run import create_run
from tangentlens.studies.claims.phases import phases

SEEDS = range(3)


def planted(folder, treatment, loss, anisotropy, steps=(0, 4, 8)):
    """Three seeds of a network, each a little above or below these numbers."""
    run = create_run(folder / (treatment or "plain"), {}, "train")
    for seed in SEEDS:
        name, off = f"decoder-{seed}", 0.01 * (seed - 1)
        facts = {"kind": "decoder", "family": f"decoder {treatment}, one", "treatment": treatment, "trained_seed": seed}
        run.describe("models", {name: facts | {"weights_sha256": f"{treatment}{seed}", "epoch": 4}})
        records = []
        for step in steps:
            about = {"model": name, "step": step}
            # A peak half-way, where nothing counts but for the turns of training.
            early = 5.0 * (step == steps[1])
            records.append(
                cell(
                    "loss",
                    loss + off + early,
                    variant="held_out",
                    detail="held-out text",
                    quantity="loss",
                    site="",
                    **about,
                )
            )
            for site in ("resid.0", "resid.1"):
                at = {"site": site, "quantity": "activation", **about}
                records.append(cell("anisotropy", anisotropy + off + 0.1 * (site == "resid.1") + early, **at))
        run.write(f"planted-{seed}", records)
    return run


@pytest.fixture
def records(tmp_path):
    runs = [
        planted(tmp_path, "", 4.0, 0.5),
        planted(tmp_path, "cosine 0.3", 3.9, 0.3),
        planted(tmp_path, "cosine 3", 4.5, 0.2),
    ]
    return read_runs(runs)


def test_each_strength_is_a_point_with_its_interval_over_seeds(records):
    plot = treatment_fronts(records).plot
    lines = {trace.name: trace for trace in plot.data}
    assert list(lines) == ["none", "cosine"]
    assert list(lines["cosine"].x) == pytest.approx([3.9, 4.5])
    assert list(lines["cosine"].y) == pytest.approx([0.35, 0.25]), "the mean over sites at the last step"
    # Three seeds with a standard deviation of 0.01, and the quantile 4.303 of Student's law.
    assert lines["none"].error_y.array[0] == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)
    assert "cosine 0.3, 3.90" in treatment_fronts(records).title


def test_the_table_has_a_line_for_each_change(records):
    (table,) = treatment_table(records)
    assert table.frame["change"].to_list() == ["none", "cosine 0.3", "cosine 3"]
    assert table.frame["anisotropy"][1].startswith("0.350 [0.325, 0.375]")


def test_without_untreated_twins_there_is_nothing_to_compare(records):
    assert treatment_fronts(records.filter(records["treatment"] != "")) is None
    assert treatment_fronts(records.filter(records["treatment"] == "")) is None


def test_turns_of_training_are_those_of_untreated_networks(records):
    assert phases(records)["networks"].to_list() == [len(SEEDS)]
