"""A run that a training continues: tokens are counted on, and steps that it overtakes are moved aside."""

import math

import pytest

from tangentlens import Alarm, Lens, open_run
from tangentlens.runs.records import KEY
from tangentlens.runs.run import Run, create_run
from tiny import tiny_batch, tiny_model

SETTINGS = {"sites": "resid.1", "rank": 4, "every": 1}
STEP = 8 * 12


def steps_of(run):
    return open_run(run).records.select("step", "tokens_seen").unique().sort("step").rows()


def train(model, steps, lens):
    for step in range(steps):
        model(**tiny_batch(step)).loss.backward()
        lens.step()


def trained(run, steps, **settings):
    model = tiny_model()
    with Lens(model, run=run, **SETTINGS | settings) as lens:
        train(model, steps=steps, lens=lens)
    return lens


def test_tokens_are_counted_on_from_the_step_before(tmp_path):
    trained(tmp_path / "run", 2)
    trained(tmp_path / "run", 2, step=2)
    assert steps_of(tmp_path / "run") == [(step, (step + 1) * STEP) for step in range(4)]


def test_a_number_of_tokens_that_is_passed_or_loaded_counts(tmp_path):
    state = trained(tmp_path / "run", 1).state_dict()
    trained(tmp_path / "run", 1, step=1, tokens_seen=0)
    model = tiny_model()
    lens = Lens(model, run=tmp_path / "run", step=2, **SETTINGS)
    lens.load_state_dict(state)
    with lens:
        train(model, steps=1, lens=lens)
    assert steps_of(tmp_path / "run") == [(0, STEP), (1, STEP), (2, 2 * STEP)]


def test_an_alarm_goes_on_from_its_highest_value(tmp_path):
    first, again, other = (
        Alarm("anisotropy", falls_to=0.1),
        Alarm("anisotropy", falls_to=0.1),
        Alarm("intrinsic_dimension", above=99),
    )
    state = trained(tmp_path / "run", 2, alarms=[first]).state_dict()
    Lens(tiny_model(), run=tmp_path / "run", step=2, alarms=[again, other], **SETTINGS).load_state_dict(state)
    assert again.highest == first.highest > 0
    assert other.highest == -math.inf


@pytest.mark.parametrize(("steps", "holds"), [(1, False), (3, True), (4, False)])
def test_a_state_holds_rows_only_if_the_next_step_is_due_and_fits_on_them(tmp_path, steps, holds):
    state = trained(tmp_path / "run", steps, every=3).state_dict()
    assert any(name.startswith("fit_on/") for name in state) == holds


def test_tokens_that_the_run_does_not_know_of_are_told(tmp_path):
    with pytest.warns(UserWarning, match=r"at step 3, but the run has no step before it.*pass tokens_seen="):
        trained(tmp_path / "new", 1, step=3)
    trained(tmp_path / "gap", 4, every=3)
    with pytest.warns(UserWarning, match="tokens are counted on from step 3, without those of the steps in between"):
        trained(tmp_path / "gap", 1, every=3, step=6)
    assert steps_of(tmp_path / "gap")[-1] == (6, 5 * STEP)


def test_steps_that_are_overtaken_are_moved_aside_and_told(tmp_path):
    trained(tmp_path / "run", 4)
    before = open_run(tmp_path / "run").records
    with pytest.warns(UserWarning, match=r"continues at step 2, but the run goes up to step 3.*from 2 on \(2\)"):
        trained(tmp_path / "run", 1, step=2)
    run = open_run(tmp_path / "run")
    assert [step for step, _ in steps_of(run.path)] == [0, 1, 2]
    assert not run.records.select(KEY).is_duplicated().any()
    assert run.load_tensors("model-step-00000003") is None
    aside = Run(run.path / "abandoned" / "001")
    assert aside.records.drop("run").equals(before.filter(before["step"] >= 2).drop("run")), "nothing is lost"
    assert aside.load_tensors("model-step-00000003") is not None
    with pytest.warns(UserWarning, match="abandoned/002 now"):
        trained(run.path, 1, step=2)
    assert Run(run.path / "abandoned" / "002").records["step"].unique().to_list() == [2]


def test_other_models_of_the_run_are_left_alone(tmp_path):
    run = create_run(tmp_path / "run", {})
    for name in ("a", "a-step-1", "b"):
        trained(run, 2, name=name)
    with pytest.warns(UserWarning, match="the training of a continues at step 1") as told:
        trained(run, 1, name="a", step=1)
    assert len(told) == 1
    assert sorted(run.records.select("model", "step").unique().rows()) == [
        (name, step) for name in ("a", "a-step-1", "b") for step in (0, 1)
    ]


def test_a_lens_that_was_made_and_not_opened_moves_nothing(tmp_path):
    trained(tmp_path / "run", 2)
    Lens(tiny_model(), run=tmp_path / "run", step=1, **SETTINGS)
    assert len(steps_of(tmp_path / "run")) == 2
    assert not (tmp_path / "run" / "abandoned").exists()


def test_tokens_of_an_evaluation_do_not_count(tmp_path):
    model = tiny_model()
    with Lens(model, run=tmp_path / "run", tokens_seen=1000, **SETTINGS) as lens:
        train(model, steps=1, lens=lens)
        model.eval()(**tiny_batch())
        assert lens.tokens_seen == 1000 + STEP
