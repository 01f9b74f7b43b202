"""Networks on flatter token frequencies beside their twins: what is told of planted ones."""

import pytest

from cells import cell
from tangentlens.report.reading import read_runs
from tangentlens.runs.run import create_run
from tangentlens.studies.frequency_section import differences, frequency_effects, frequency_table

# Anisotropy falls by 0.1 for each nat of loss in every network, and is lower on flatter frequencies besides.
LOWER = {"": 0.0, "resampled 0.5": 0.0, "reweighted 0.5": 0.3, "relabelled 0.5": 0.1, "relabelled 0": 0.2}
# These reach a higher loss at their last step.
WORSE = {"reweighted 0.5": 1.0}


@pytest.fixture
def records(tmp_path):
    runs = []
    for treatment, lower in LOWER.items():
        run = create_run(tmp_path / (treatment or "plain"), {}, "train")
        for seed in range(3):
            name = f"decoder-{seed}"
            facts = {"kind": "decoder", "family": f"decoder {treatment}, one", "treatment": treatment}
            facts |= {"trained_seed": seed, "weights_sha256": f"{treatment}{seed}", "token_entropy": 6 + lower}
            run.describe("models", {name: facts})
            planted = []
            for step, loss in ((0, 6.0), (4, 5.0), (8, 4.0 + WORSE.get(treatment, 0.0))):
                about = {"step": step, "site": "resid.1", "quantity": "activation"}
                # The network on its own text is not what is compared.
                value = 0.1 * loss - lower + 0.01 * seed * lower
                planted += [
                    cell("loss", loss, model=name, variant="held_out", quantity="loss", site="", step=step),
                    cell("anisotropy", 7.0, model=name, **about),
                    cell("anisotropy", value, model=f"{name} (held-out text)", **about),
                ]
            run.write(f"planted-{seed}", planted)
        runs.append(run)
    return read_runs(runs)


def test_at_equal_loss_a_higher_loss_is_made_up_for(records):
    steps, loss = (differences(records, when, "anisotropy") for when in ("equal steps", "equal loss"))
    assert steps["equal steps", "reweighted", 0.5].value == pytest.approx(0.1 - 0.3 + 0.003)
    assert loss["equal loss", "reweighted", 0.5].value == pytest.approx(-0.3 + 0.003)
    for found, when in ((steps, "equal steps"), (loss, "equal loss")):
        assert found[when, "resampled", 0.5].value == pytest.approx(0.0)
        assert found[when, "relabelled", 0.5].value == pytest.approx(-0.1 + 0.001)


def test_the_title_says_whether_the_ways_agree(records):
    title = frequency_effects(records).title
    assert "anisotropy resampled 0.00 [0.00, 0.00] (no difference that matters)" in title
    assert title.count("(lower)") == 2
    of_two = records.filter(records["treatment"] != "resampled 0.5")
    assert frequency_effects(of_two).title.endswith("(all agree: lower)")


def test_the_table_tells_the_dose_and_what_may_be_said(records):
    (table,) = frequency_table(records)
    rows = {row["tokens"]: row for row in table.frame.to_dicts()}
    assert list(rows) == ["as they are", "resampled 0.5", "reweighted 0.5", "relabelled 0.5", "relabelled 0"]
    assert rows["relabelled 0"]["entropy of the distribution (nats)"] == "6.200"
    assert rows["reweighted 0.5"]["anisotropy, equal loss"].endswith("lower")
    assert rows["reweighted 0.5"]["loss on held-out text, equal steps"].endswith("higher")
    assert rows["as they are"]["anisotropy, equal loss"] == ""


def test_without_tempered_networks_nothing_is_told(records):
    plain = records.filter(records["treatment"] == "")
    assert frequency_effects(plain) is None
    assert list(frequency_table(plain)) == []
