"""Every claim's rule on planted records in which the claim holds, fails, and cannot be decided; and the ledger."""

import math
from dataclasses import replace

import polars as pl
import pytest

from tangentlens.report.reading import read_runs
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run
from tangentlens.studies import SECTIONS, STUDIES
from tangentlens.studies.claims import CLAIMS
from tangentlens.studies.claims.estimands import Select
from tangentlens.studies.claims.ledger import FINISHED, TRAINED, ledger
from tangentlens.studies.claims.page import write_page
from tangentlens.studies.claims.section import ledger_figure
from tangentlens.studies.claims.twins import at_equal_steps
from tangentlens.training.tempering import WAYS

BY_ID = {claim.id: claim for claim in CLAIMS}
SITES = {"resid.0": 0.0, "resid.1": 0.25, "resid.2": 0.5, "resid.3": 0.75, "resid.4": 1.0}
STEPS = (0, 1, 2, 4, 8, 16, 32, 64)


def kind_of(claim):
    special = {"1": "encoder", "12b": "encoder", "16a": "LSTM", "16b": "state space"}
    return special.get(claim.id, "decoder")


def at_sites(about, values):
    return [
        replace(about, site=site, depth=SITES[site], value=value) for site, value in zip(SITES, values, strict=True)
    ]


def bell(about, height, base=0.3):
    """A profile whose middle third, resid.2, is so much above the ends."""
    return at_sites(replace(about, quantity="activation", metric="anisotropy"), (base, base, base + height, base, base))


def at_losses(claim, about, course):
    """The loss on held-out text at some steps, and the number that the claim compares."""
    loss = replace(about, quantity="loss", metric="loss", variant="held_out", detail="held-out text")
    number = replace(about, quantity="activation", metric="anisotropy")
    if claim.id[0] == "8":
        number = replace(number, model=f"{about.model} (held-out text)")
    if claim.id in ("8d", "8e", "8f"):
        number = replace(number, quantity="gradient", metric="log_ratio", variant="random", order=1.0)
    records = [replace(loss, step=step, value=value) for step, (value, _) in course.items()]
    for step, (_, value) in course.items():
        records += at_sites(replace(number, step=step), [value] * len(SITES))
    return records


def treatment_of(claim):
    """What a claim says that was done to the training, as its estimand looks for it."""
    if claim.id[0] == "8":
        return next(way for way in WAYS if way in claim.effect) + " 0.5"
    return claim.effect.split("`")[1] + " 0.3"


def planted(claim, effect, network):
    """Return records of a network in which the effect of the claim is `effect`, as nearly as it can be."""
    about = Record(model=network, step=STEPS[-1])
    mean = replace(about, site="mean", quantity="gradient", metric="log_ratio", order=1.0)
    key = claim.id
    if key in ("1", "2", "16a", "16b"):
        return [replace(mean, variant="normal", value=effect)]
    if key == "3a":
        return [replace(mean, variant="normal", order=2.0, value=effect)]
    if key == "3b":
        return [replace(mean, variant="random", order=order, value=effect * (order - 1) + 0.7) for order in (1.0, 2.0)]
    if key == "4a":
        since = 2**effect * (STEPS[-1] + 1) - 1
        return [replace(mean, step=s, variant="normal", value=0.0, ci_low=0.1 if s >= since else -0.1) for s in STEPS]
    if key == "4b":
        held = round(effect * len(STEPS))
        return [
            replace(mean, step=s, variant="normal", value=0.0, ci_low=0.1 if i < held else -0.1)
            for i, s in enumerate(STEPS)
        ]
    if key in ("5a", "5b"):
        kind = {"5a": "target", "5b": "input"}[key]
        return [
            replace(mean, metric="frequency_log_ratio", variant="semi_nmf", detail="proxy", freq_bin=kind, value=effect)
        ]
    if key == "6":
        share = replace(about, quantity="update", metric="share", order=1.0, site="embed")
        proxy = replace(share, variant="semi_nmf", detail="proxy", value=0.1 * math.exp(effect))
        return [proxy, replace(share, variant="random", value=0.1)]
    if key in ("9a", "9b"):
        return [replace(mean, variant={"9a": "pca", "9b": "covariance"}[key], value=effect)]
    if key in ("10", "11"):
        check = {"10": "charts", "11": "proxy and tangents"}[key]
        return [
            replace(
                about, quantity="gradient", metric=f"audit/{check}", variant="log_ratio", site="resid.2", value=effect
            )
        ]
    if key == "12a":
        return bell(about, effect)
    if key == "12b":
        return bell(about, effect * 0.5, base=0.5 - effect * 0.1)
    if key == "13":
        return bell(about, effect)
    if key in ("14a", "14b", "14c"):
        one = replace(about, quantity="activation", metric="intrinsic_dimension", site="resid.2", depth=0.5)
        one = replace(one, variant={"14b": "one_per_type"}.get(key, ""))
        # The first epoch has 17 steps; what comes later does not count for it.
        steps = (*range(17), 32, 64) if key == "14c" else STEPS
        late = 9.0 if key == "14c" else 5.0
        return [replace(one, step=s, value=5 * math.exp(effect) if s == 8 else 5.0 if s < 17 else late) for s in steps]
    if key == "15":
        one = replace(about, quantity="activation", metric="local_anisotropy", site="resid.2", value=0.2)
        return [one, replace(one, variant="matched", value=0.2 * math.exp(effect))]
    if key in ("18a", "18b"):
        control = {"18a": "random", "18b": "gradients_then"}[key]
        return [replace(mean, quantity="later_gradient", variant=control, step=s, value=effect) for s in STEPS[1:]]
    if key == "20":
        signs = {-1.0: -1, 1.0: 1}
        falling = [signs.get(effect, (-1) ** i) * i for i in range(len(STEPS))]
        one = replace(about, quantity="activation", site="resid.2")
        return [replace(one, step=s, metric="anisotropy", value=0.1 * i) for i, s in enumerate(STEPS)] + [
            replace(one, step=s, metric="manifold_entropy", value=float(v)) for s, v in zip(STEPS, falling, strict=True)
        ]
    if key in ("21", "22"):
        null = {"21": "untrained", "22": "shuffled labels"}[key]
        one = replace(mean, variant="random", value=0.7)
        return [one, replace(one, model=f"{network} ({null})", value=0.7 - effect)]
    if key in ("23", "24"):
        metric, variant = {"23": ("active_log_ratio", "concepts"), "24": ("active_advantage", "")}[key]
        one = replace(about, quantity="gradient", metric=metric, variant=variant, order=1.0)
        return at_sites(one, [effect] * len(SITES))
    if key == "25":
        return [*bell(about, 0.6), *bell(replace(about, rows="without_massive"), effect)]
    if key == "26":
        one = replace(mean, variant="random", value=2.0)
        return [one, replace(one, rows="without_massive", value=effect)]
    if key.startswith("27"):
        control = {"27a": "random", "27b": "pca", "27c": "covariance"}[key]
        return [replace(mean, quantity="movement", variant=control, step=s, value=effect) for s in STEPS[1:]]
    if claim.of_treated:
        return at_losses(claim, about, {8: (3.0, 0.5), 64: (2.0, 0.5 + effect)})
    if key in ("19a", "19b"):
        # Levels that only rise or fall, and changes that agree with those of the skill and not with those of the loss.
        changes, of_loss = (1, 3, 2, 5, 4, 7, 6), (-2, -1, -3, -7, -5, -4, -6)
        one = replace(about, model=f"{network} (held-out text)", quantity="activation", site="resid.2")
        loss = replace(about, quantity="loss", metric="loss", variant="held_out")
        courses = (
            (replace(one, metric="anisotropy"), 1, changes),
            (replace(one, metric="probe_skill", variant="token class"), effect, changes),
            (loss, 1, of_loss),
        )
        return [
            replace(record, step=step, value=float(sign * sum(course[:place])))
            for record, sign, course in courses
            for place, step in enumerate(STEPS)
        ]
    early = key == "28a"
    growth = replace(
        mean, quantity="movement", metric="growth_log_ratio", variant="semi_nmf", detail="proxy", order=None
    )
    return [replace(growth, step=s, value=effect if (s <= 6) == early else 9.0) for s in STEPS[1:]]


def effects_of(claim, outcome):
    """Return effects of four networks far on one side of the margin, far on the other, or around it."""
    if claim.id in ("19a", "19b", "20"):
        return {"supported": [-1.0] * 4, "refuted": [1.0] * 4, "inconclusive": [-1.0, 1.0, -1.0, 1.0]}[outcome]
    if claim.id == "4a":
        return {"supported": [-6.0] * 4, "refuted": [-1.0] * 4, "inconclusive": [-6.0, -1.0, -6.0, -1.0]}[outcome]
    if claim.id == "4b":
        return {"supported": [1.0] * 4, "refuted": [0.25] * 4, "inconclusive": [1.0, 0.75, 1.0, 0.75]}[outcome]
    far = {"supported": 1, "refuted": -1, "inconclusive": 0}[outcome] * (-1 if claim.below else 1)
    width = 0.3 * claim.margin if claim.id == "12b" else abs(claim.margin)
    spread = 0.1 * width if far else 0.5 * width
    return [claim.margin + 2 * far * width + spread * offset for offset in (-1, 1, -0.7, 0.7)]


def write_run(path, claim, effects):
    run = create_run(path, {})
    kind, models = kind_of(claim), {}
    records = []
    for seed, effect in enumerate(effects):
        name = f"{kind}-{seed}"
        models[name] = {
            "kind": kind,
            "family": f"a {kind}",
            "trained_seed": seed,
            "weights_sha256": f"{path}{seed}",
            "epoch": 17,
        }
        records += planted(claim, effect, name)
        if claim.id == "13":
            # The twin without the mask has no bell.
            models[name] |= {"kind": "masked decoder"}
            twin = f"twin-{seed}"
            models[twin] = {
                "kind": "encoder",
                "family": "a twin",
                "trained_seed": seed,
                "weights_sha256": f"twin{seed}",
            }
            records += bell(Record(model=twin, step=STEPS[-1]), 0.0)
        if claim.of_treated:
            models[name] |= {"family": f"{kind} treated, a recipe", "treatment": treatment_of(claim)}
            twin = f"twin-{seed}"
            models[twin] = models[name] | {
                "family": f"{kind}, a recipe",
                "treatment": "",
                "weights_sha256": f"twin{seed}",
            }
            # It comes to a lower loss, and goes through that of the treated network where the number is 0.5.
            records += at_losses(claim, Record(model=twin), {8: (3.0, 0.9), 32: (2.5, 0.7), 64: (1.5, 0.3)})
    run.write("planted", records)
    run.describe("models", models)
    return run


@pytest.mark.parametrize("outcome", ["supported", "refuted", "inconclusive"])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_rule_of_each_claim_on_planted_records(tmp_path, claim, outcome):
    run = write_run(tmp_path / "run", claim, effects_of(claim, outcome))
    (entry,) = ledger(read_runs([run]), [claim])
    assert entry.verdict == outcome
    assert sum(entry.n_networks.values()) == 4
    if outcome == "inconclusive":
        assert "would decide" in entry.why


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_effect_is_the_planted_one(tmp_path, claim):
    effects = effects_of(claim, "supported")
    (entry,) = ledger(read_runs([write_run(tmp_path / "run", claim, effects)]), [claim])
    found = entry.effects["effect"].to_list()
    assert found == pytest.approx(effects, abs=1.0 if claim.id == "4a" else 1e-6)


def one_effect(run, claim):
    """The effect of the one claim on each network of the run."""
    (entry,) = ledger(read_runs([run]), [claim])
    return entry.effects["effect"].to_list()


def test_treated_networks_count_in_claims_about_treatments_alone(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["17a"], [0.1] * 4)
    run.write("shares", [one for seed in range(4) for one in planted(BY_ID["2"], 0.7, f"decoder-{seed}")])
    assert one_effect(run, BY_ID["2"]) == []
    assert one_effect(run, BY_ID["17a"]) == pytest.approx([0.1] * 4)
    assert one_effect(run, BY_ID["17b"]) == [], "another treatment"


@pytest.mark.parametrize(("with_mask", "without", "effect"), [(-0.1, -0.3, -0.1), (0.3, 0.25, 0.05), (0.3, -0.1, 0.3)])
def test_the_mask_makes_a_bell_only_if_there_is_one_with_it(tmp_path, with_mask, without, effect):
    run = write_run(tmp_path / "run", BY_ID["13"], [with_mask])
    run.write("twin", bell(Record(model="twin-0", step=STEPS[-1] + 1), without, base=0.4))
    assert one_effect(run, BY_ID["13"]) == pytest.approx([effect])


def test_massive_rows_make_no_bell_where_there_is_none_with_them(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["25"], [-0.1, -0.1])
    run.write("flat", bell(Record(model="decoder-0", step=STEPS[-1] + 1), 0.0))
    run.write("less", bell(Record(model="decoder-0", step=STEPS[-1] + 1, rows="without_massive"), -0.1))
    assert one_effect(run, BY_ID["25"]) == pytest.approx([-0.1])


@pytest.mark.parametrize("claim", ["25", "26"])
@pytest.mark.parametrize("where", [{"model": "decoder-0 (untrained)"}, {"quantity": "movement"}, {"step": 0}])
def test_only_massive_rows_of_the_network_itself_at_its_last_step_count(tmp_path, claim, where):
    run = write_run(tmp_path / "run", BY_ID[claim], [-0.1, -0.2])
    own = [record for record in planted(BY_ID[claim], -0.1, "decoder-0") if record.rows != "without_massive"]
    elsewhere = [replace(r, **where) for r in planted(BY_ID[claim], -0.1, "decoder-0") if r.rows == "without_massive"]
    run.write("planted", [*own, *elsewhere, *planted(BY_ID[claim], -0.2, "decoder-1")])
    assert one_effect(run, BY_ID[claim]) == pytest.approx([-0.2])


def test_enrichment_of_all_rows_does_not_stand_for_that_without_massive_ones(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["26"], [1.0, 1.1])
    # Without massive rows, one of the sites of this network could not be measured, so there is no mean over sites.
    own, without = planted(BY_ID["26"], 1.0, "decoder-0")
    run.write("planted", [own, replace(without, site="resid.1"), *planted(BY_ID["26"], 1.1, "decoder-1")])
    assert one_effect(run, BY_ID["26"]) == pytest.approx([1.1])


def test_variance_grows_throughout_training_only_if_it_does_early_and_late(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["28b"], [2.0])
    early = [r for r in planted(BY_ID["28a"], -1.0, "decoder-0") if r.step <= 6]
    late = [r for r in planted(BY_ID["28b"], 2.0, "decoder-0") if r.step > 6]
    run.write("planted", [*early, *late])
    assert one_effect(run, BY_ID["28b"]) == pytest.approx([-1.0])


def test_what_never_emerged_does_not_tell_whether_it_persists(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["4b"], [1.0, 0.0, 0.5])
    assert one_effect(run, BY_ID["4b"]) == [1.0, 0.5]


def test_emergence_is_in_doublings_before_the_end_and_at_the_end_if_it_never_comes(tmp_path):
    at_step_8 = math.log2((8 + 1) / (STEPS[-1] + 1))
    run = write_run(tmp_path / "run", BY_ID["4a"], [at_step_8, 1.0])
    assert one_effect(run, BY_ID["4a"]) == pytest.approx([at_step_8, 0.0])


def test_at_equal_steps_the_last_number_of_the_twin_is_subtracted(tmp_path):
    claim = BY_ID["17a"]
    records = read_runs([write_run(tmp_path / "run", claim, [0.1, 0.2])])
    found = at_equal_steps(Select("anisotropy", quantity="activation", site=None), treatment_of(claim))(records)
    # They end at 0.5 plus the effect, and their twins at 0.3.
    assert found["effect"].to_list() == pytest.approx([0.3, 0.4])


def test_a_dimension_of_zero_is_left_out(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["14a"], [0.1, 0.2, 0.3])
    rows = run.records.drop("run").with_columns(
        value=pl.when(pl.col("model") == "decoder-0").then(0.0).otherwise("value")
    )
    run.write("planted", [Record(**row) for row in rows.iter_rows(named=True)])
    assert one_effect(run, BY_ID["14a"]) == pytest.approx([0.2, 0.3])


def test_without_its_records_a_claim_says_what_is_missing_and_which_command_makes_it(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["2"], [1.0, 1.1])
    by_id = {entry.claim.id: entry for entry in ledger(read_runs([run]))}
    assert by_id["2"].judgement is not None
    assert by_id["10"].verdict == "not judged"
    assert "an audit" in by_id["10"].why
    assert "tangentlens study learning-dynamics" in by_id["10"].why


def test_one_network_is_not_judged(tmp_path):
    (entry,) = ledger(read_runs([write_run(tmp_path / "run", BY_ID["2"], [1.0])]), [BY_ID["2"]])
    assert (entry.verdict, entry.n_networks) == ("not judged", {"a decoder": 1})
    assert "but only one of a stratum has them" in entry.why


def test_a_stratum_of_one_is_left_out_beside_others(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["2"], [1.0, 1.1])
    run.write("alone", planted(BY_ID["2"], 9.0, "alone"))
    run.describe("models", {"alone": {"kind": "decoder", "family": "another", "weights_sha256": "alone"}})
    (entry,) = ledger(read_runs([run]), [BY_ID["2"]])
    assert entry.n_networks == {"a decoder": 2}


def test_a_network_that_is_in_two_runs_counts_once(tmp_path):
    claim = BY_ID["2"]
    runs = [write_run(tmp_path / "same", claim, [1.0, 1.2])]
    twice = create_run(tmp_path / "again", {})
    rows = runs[0].records.drop("run").with_columns(pl.col("value") + 1)
    twice.write("planted", [Record(**row) for row in rows.iter_rows(named=True)])
    twice.describe("models", runs[0].manifest["models"])
    for order in ([*runs, twice], [twice, *runs]):
        (entry,) = ledger(read_runs(order), [claim])
        assert entry.n_networks == {"a decoder": 2}
        assert entry.effects["effect"].to_list() == pytest.approx([1.5, 1.7])


def test_a_training_that_was_repeated_elsewhere_adds_no_networks(tmp_path):
    # Another machine gives other last digits, and with them other weights.
    first, again = (write_run(tmp_path / name, BY_ID["2"], [1.0, 1.2, 1.1]) for name in ("first", "again"))
    (alone,) = ledger(read_runs([first]), [BY_ID["2"]])
    (both,) = ledger(read_runs([first, again]), [BY_ID["2"]])
    assert both.n_networks == {"a decoder": 3}
    assert repr(both.judgement) == repr(alone.judgement)


def test_an_interval_of_a_ratio_may_be_wider_than_floats_reach(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["2"], [0.0, 300.0])
    (entry,) = ledger(read_runs([run]), [BY_ID["2"]])
    assert entry.effect.endswith("1.80e+308]")
    assert entry.as_dict()["effect"]["ci_low"] == 0


def test_an_effect_that_is_not_a_number_is_left_out(tmp_path):
    claim = BY_ID["12b"]
    run = write_run(tmp_path / "run", claim, effects_of(claim, "supported"))
    run.write("level", bell(Record(model="encoder-0", step=STEPS[-1] + 1), 0.0, base=0.0))
    (entry,) = ledger(read_runs([run]), [claim])
    assert (entry.verdict, entry.n_networks) == ("supported", {"a encoder": 3})


def test_a_finished_model_with_and_without_its_head_counts_once(tmp_path):
    runs = []
    for place, weights in (("a", "with"), ("b", "without")):
        runs.append(create_run(tmp_path / place, {}))
        runs[-1].write("planted", planted(BY_ID["2"], 1.0, "gpt") + planted(BY_ID["2"], 1.0, f"other-{place}"))
        facts = {"kind": "decoder", "weights_sha256": weights}
        runs[-1].describe("models", {"gpt": facts, f"other-{place}": {**facts, "weights_sha256": place}})
    (entry,) = ledger(read_runs(runs), [BY_ID["2"]])
    assert entry.n_networks == {FINISHED: 3}


@pytest.mark.parametrize("names", [("gpt", "copy"), ("copy", "gpt")])
def test_a_finished_model_under_two_names_counts_once(tmp_path, names):
    # The first run holds a model without its head; the second holds it under another name, with its head and without.
    parts = [(names[0], "body"), (names[1], "whole"), (names[1], "body"), ("other", "other")]
    runs = []
    for place, (name, weights) in enumerate(parts):
        runs.append(create_run(tmp_path / str(place), {}))
        runs[-1].write("planted", planted(BY_ID["2"], 1.0, name))
        runs[-1].describe("models", {name: {"kind": "decoder", "weights_sha256": weights}})
    (entry,) = ledger(read_runs(runs), [BY_ID["2"]])
    assert entry.n_networks == {FINISHED: 2}


def test_more_claims_make_intervals_wider(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["2"], [1.0, 1.2, 1.1])
    run.write("more", [record for seed in range(3) for record in planted(BY_ID["9a"], seed - 1.0, f"decoder-{seed}")])
    alone, together = (
        {entry.claim.id: entry for entry in ledger(read_runs([run]), claims)}["2"].judgement.effect
        for claims in ([BY_ID["2"]], [BY_ID["2"], BY_ID["9a"]])
    )
    assert together.ci_low < alone.ci_low < alone.value == together.value


def test_finished_models_are_a_stratum(tmp_path):
    run = create_run(tmp_path / "run", {})
    run.write("planted", [record for name in "ab" for record in planted(BY_ID["2"], 1.0, name)])
    run.describe("models", {name: {"kind": "decoder", "weights_sha256": name} for name in "ab"})
    (entry,) = ledger(read_runs([run]), [BY_ID["2"]])
    assert entry.n_networks == {FINISHED: 2}


def test_networks_trained_here_and_finished_models_are_judged_apart(tmp_path):
    seeds = write_run(tmp_path / "seeds", BY_ID["2"], [1.0, 1.01, 1.02])
    others = create_run(tmp_path / "others", {})
    for name, effect in {"a": -8.0, "b": 0.0, "c": 9.0}.items():
        others.write(name, planted(BY_ID["2"], effect, name))
    others.describe("models", {name: {"kind": "decoder", "weights_sha256": name} for name in "abc"})
    (alone,) = ledger(read_runs([seeds]), [BY_ID["2"]])
    trained, finished = ledger(read_runs([seeds, others]), [BY_ID["2"]])
    assert (trained.population, trained.verdict) == (TRAINED, "supported")
    assert (finished.population, finished.verdict) == (FINISHED, "inconclusive")
    assert repr(trained.judgement) == repr(alone.judgement), "models of others do not change the verdict on seeds"
    assert finished.strata == {FINISHED: pytest.approx(math.exp(1 / 3))}


def test_a_page_shows_how_far_strata_and_finished_models_are_apart(tmp_path):
    claim, run = BY_ID["2"], create_run(tmp_path / "run", {})
    families = {"small-0": "small", "small-1": "small", "large-0": "large", "large-1": "large", "a": "", "b": ""}
    ratios = dict(zip(families, (2, 2, 8, 8, 3, 5), strict=True))
    run.write("planted", [record for name, x in ratios.items() for record in planted(claim, math.log(x), name)])
    run.describe(
        "models", {name: {"kind": "decoder", "family": of, "weights_sha256": name} for name, of in families.items()}
    )
    records = read_runs([run])
    write_page(tmp_path / "page.md", ledger(records), records)
    text = (tmp_path / "page.md").read_text()
    assert "| 2 to 8 | above 1.05 |" in text
    assert "| 3 to 5 | above 1.05 |" in text


def test_ids_are_unique_and_studies_name_known_claims():
    assert len(BY_ID) == len(CLAIMS)
    for study in STUDIES.values():
        assert set(study.claims) <= set(BY_ID)
    assert set(BY_ID) == {claim for study in STUDIES.values() for claim in study.claims}


@pytest.mark.parametrize("ratio", [0.01, 1.0, 900.0])
def test_the_figure_shows_every_effect(tmp_path, ratio):
    run = write_run(tmp_path / "run", BY_ID["2"], [math.log(ratio) + noise for noise in (-0.1, 0.0, 0.1)])
    plot = ledger_figure(read_runs([run])).plot
    (trace,) = [trace for trace in plot.data if trace.name != "margin" and trace.x]
    assert min(*trace.error_x.array, *trace.error_x.arrayminus) >= 0
    low, high = plot.layout.xaxis.range
    assert low - 1e-9 <= math.log10(ratio) <= high + 1e-9


def test_each_claim_has_a_line_of_the_figure(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["2"], [1.0, 1.1, 1.2])
    one = ledger_figure(read_runs([run])).plot.layout.height
    run.write("more", [record for seed in range(3) for record in planted(BY_ID["9a"], 1.0, f"decoder-{seed}")])
    assert ledger_figure(read_runs([run])).plot.layout.height >= one + 20


def test_no_effect_is_a_tick_of_the_figure(tmp_path):
    run = write_run(tmp_path / "run", BY_ID["2"], [1.0, 1.1, 1.2])
    ticks = ledger_figure(read_runs([run])).plot.layout.xaxis.tickvals
    assert 1 in ticks
    assert list(ticks) == sorted(set(ticks))


def test_the_report_has_the_ledger(tmp_path):
    from tangentlens.report.page import write_report

    run = write_run(tmp_path / "run", BY_ID["2"], [1.0, 1.1, 1.2])
    tables = write_report([run], tmp_path / "report.html", SECTIONS).tables
    (table,) = [table for table in tables if table.title.startswith("Claims")]
    assert table.frame["verdict"].to_list() == ["supported"]
    assert isinstance(table.frame, pl.DataFrame)
