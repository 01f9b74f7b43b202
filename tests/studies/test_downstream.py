"""Geometry beside probes and beside the end of a training: what is told of planted networks."""

import numpy as np
import pytest

from cells import cell
from tangentlens.report.reading import read_runs
from tangentlens.runs.run import create_run
from tangentlens.statistics.interval import Interval
from tangentlens.studies.claims.downstream import DOWNSTREAM
from tangentlens.studies.downstream_section import across_networks, at_the_end, correlation_table, probes_and_geometry
from tangentlens.studies.warning_section import foretold, since, warning_figure, warning_table

STEPS = (0, 2, 4, 8, 16, 32)
NETWORKS = 14


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Skill follows the loss, and anisotropy follows both but for noise: given the loss, it tells nothing.

    The dimension at step 2 tells of the end what the loss at step 2 does not. The loss at step 16 tells all of the end.
    """
    make = np.random.default_rng(0)
    run = create_run(tmp_path_factory.mktemp("planted") / "run", {}, "train")
    for number in range(NETWORKS):
        name, end = f"decoder-{number}", make.normal()
        facts = {"kind": "decoder", "family": "decoder, one", "trained_seed": number, "weights_sha256": name}
        run.describe("models", {name: facts})
        told = []
        for place, step in enumerate(STEPS):
            known = min(place / 4, 1.0)
            loss = 6 - place + known * end + (1 - known) * make.normal()
            at = {"site": "resid.1", "quantity": "activation", "step": step}
            beside = {**at, "model": f"{name} (held-out text)"}
            skill = -loss + 0.3 * make.normal()
            told += [
                cell("loss", loss, model=name, step=step, quantity="loss", site="", variant="held_out"),
                cell("intrinsic_dimension", 10 - end + 0.05 * make.normal(), model=name, **at),
                cell("anisotropy", make.normal(), model=name, **at),
                cell("probe_skill", skill, variant="token class", **beside),
                cell("anisotropy", loss + 0.3 * make.normal(), **beside),
            ]
        run.write(name, told)
    return read_runs([run])


def test_what_follows_the_loss_tells_nothing_given_the_loss(records):
    ends = at_the_end(records)
    assert ends.height == NETWORKS
    plain, given = (across_networks(ends, "anisotropy", third) for third in (None, "loss"))
    assert plain.ci_high < -0.3
    assert given.ci_low < 0 < given.ci_high


def test_claims_are_judged_by_the_correlation_in_each_training(records):
    plain, given = (claim.of(records)["effect"] for claim in DOWNSTREAM)
    assert len(plain) == NETWORKS
    assert plain.max() < -0.5
    # What is left of both is noise; where nothing is left there is no correlation.
    assert NETWORKS / 2 < len(given) <= NETWORKS
    assert abs(given.mean()) < 2.5 * given.std() / NETWORKS**0.5


def test_figure_and_table_tell_the_correlations(records):
    ends = at_the_end(records)
    assert repr(across_networks(ends, "anisotropy")) in probes_and_geometry(records).title
    (table,) = correlation_table(records)
    assert table.frame["number"].to_list()[0] == "anisotropy"
    assert table.frame["across networks, given the loss"][0] == repr(across_networks(ends, "anisotropy", "loss"))


def test_what_tells_more_than_the_loss_is_an_early_warning(records):
    found = foretold(records)
    assert min(found["intrinsic dimension"]) == 2, "before the first update, nothing is learned"
    assert since(found["intrinsic dimension"]) == 2
    assert since(found["anisotropy"]) is None
    # The loss itself tells the end only when it is near.
    assert since(found["loss itself"]) not in (None, 2)
    assert max(found["loss itself"]) == 16, "only the first half of the training counts"
    title = warning_figure(records).title
    assert "intrinsic dimension from step 2" in title
    assert "anisotropy" not in title
    (table,) = warning_table(records)
    told = {row["number"]: row["foretells from step"] for row in table.frame.to_dicts()}
    assert told["intrinsic dimension"] == "2"
    assert told["anisotropy"] == ""


def test_without_probes_and_losses_nothing_is_told(records):
    none = records.filter(~records["metric"].is_in(["probe_skill", "loss"]))
    assert probes_and_geometry(none) is None
    assert list(correlation_table(none)) == []
    assert warning_figure(none) is None
    assert list(warning_table(none)) == []


def test_a_correlation_that_changes_its_sign_begins_anew():
    high, low, none = Interval(0.5, 0.2, 0.8), Interval(-0.5, -0.8, -0.2), Interval(0.2, -0.1, 0.5)
    assert since({0: high, 1: high, 2: high}) == 0
    assert since({0: high, 1: low, 2: low}) == 1
    assert since({0: high, 1: none, 2: high}) == 2
    assert since({0: high, 1: none}) is None
