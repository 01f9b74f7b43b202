"""Which checkpoints a sweep looks at, and in which order."""

import json

import pytest

from tangentlens.errors import InputError
from tangentlens.studies.sweep.plan import SweepPlan
from tangentlens.studies.sweep.presets import FAMILIES
from tangentlens.studies.sweep.queue import Queue
from tangentlens.studies.sweep.revisions import tokens_of, wanted_revisions
from tangentlens.studies.sweep.series import Checkpoint, find_series

LISTED = ["main", "stage1-step0-tokens0B", "stage1-step300-tokens1B", "stage2-step300-tokens1B", "step10", "step20"]


def wanted(asked):
    return wanted_revisions(asked, lambda: LISTED)


def checkpoints(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
    return folder


def test_lists_ranges_patterns_and_all():
    assert wanted("step7, main") == ["step7", "main"]
    assert wanted("step0..step20:10") == ["step0", "step10", "step20"]
    assert wanted("step5..step100") == ["step10", "step20"]
    assert wanted("stage1-*") == LISTED[1:3]
    assert wanted("all") == LISTED[1:]
    assert wanted("step10,step*") == ["step10", "step20"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("", "must name revisions"),
        ("foo*", "gives none; there are main, stage1-step0"),
        ("step30..step40", "gives none"),
        ("step20..step10:5", "must go up"),
        ("step0..step10:0", "must go up"),
        ("step0..epoch10:5", "differ in one number only"),
    ],
)
def test_what_gives_no_revision_is_told(asked, says):
    with pytest.raises(InputError, match=says):
        wanted(asked)


def test_pythia_has_its_154_checkpoints_and_counts_their_tokens():
    model = next(model for model in FAMILIES["pythia"] if model.hub_id.endswith("-70m"))
    (series,) = find_series([], None, [model])
    assert len(series.checkpoints) == 154
    assert [one.step for one in series.checkpoints][:4] == [0, 1, 2, 4]
    assert series.checkpoints[-1] == Checkpoint(
        "EleutherAI/pythia-70m@step143000", "step143000", 143_000, 143_000 * 2_097_152
    )
    assert tokens_of("stage1-step300-tokens1B") == 10**9


def test_a_folder_of_a_trainer_is_a_series_by_step(tmp_path):
    folder = checkpoints(tmp_path / "out", "checkpoint-1000", "checkpoint-200", "notes-without-config")
    (folder / "notes-without-config" / "config.json").unlink()
    (series,) = find_series([str(folder)], None)
    assert series.name == "out"
    assert [one.label for one in series.checkpoints] == ["checkpoint-200", "checkpoint-1000"]


def test_directories_are_one_series_and_steps_may_be_in_the_trainers_state(tmp_path):
    checkpoints(tmp_path, "final", "early")
    for name, step in (("final", 90), ("early", 10)):
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (series,) = find_series([str(tmp_path / "final"), str(tmp_path / "early")], None)
    assert [(one.label, one.step) for one in series.checkpoints] == [("early", 10), ("final", 90)]


def test_without_any_step_the_order_counts_and_a_mixture_is_an_error(tmp_path):
    checkpoints(tmp_path, "warm", "cold", "step5")
    (series,) = find_series([str(tmp_path / "warm"), str(tmp_path / "cold")], None)
    assert [(one.label, one.step) for one in series.checkpoints] == [("warm", 0), ("cold", 1)]
    with pytest.raises(InputError, match="'warm' has none while others have"):
        find_series([str(tmp_path / "warm"), str(tmp_path / "step5")], None)


def test_two_checkpoints_of_one_step_are_an_error():
    with pytest.raises(InputError, match="stage1-step300 and stage2-step300 are both of step 300"):
        find_series(["a/model"], "stage1-step300,stage2-step300")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"models": ("a/model",)}, "must come with the revisions"),
        ({"models": ()}, "none was named"),
        ({"models": (), "preset": "pythia", "up_to": 0.001}, "leaves none"),
    ],
)
def test_plans_without_a_checkpoint_are_told(plan, says):
    with pytest.raises(InputError, match=says):
        SweepPlan(**plan).series()


def test_a_folder_without_checkpoints_and_revisions_of_a_folder_are_told(tmp_path):
    with pytest.raises(InputError, match="must hold checkpoints"):
        find_series([str(tmp_path)], None)
    with pytest.raises(InputError, match="revisions must be of a model on the hub"):
        find_series([str(checkpoints(tmp_path / "out", "step1"))], "all")


@pytest.mark.parametrize("changed", [{"preset": "pythia-70m"}, {"controls": ("pcaa",)}, {"measures": ("anisotropi",)}])
def test_misspelt_settings_are_told(changed):
    with pytest.raises(InputError, match="must be one of"):
        SweepPlan(models=("a/model",), revisions="step0", **changed).series()


def test_one_at_a_time_they_come_in_order_and_each_is_compared_with_the_last_that_worked():
    all_of_them = [Checkpoint("", str(step), step) for step in range(4)]
    queue, order = Queue(all_of_them), []
    while (one := queue.begin()) is not None:
        before = queue.before(one)
        order.append((one.label, None if before is None else before.label))
        queue.end(one, "broken" if one.label == "1" else "")
    assert order == [("0", None), ("1", "0"), ("2", "0"), ("3", "2")]


def test_many_at_a_time_start_far_apart_and_go_on_from_there():
    queue = Queue([Checkpoint("", str(step), step) for step in range(9)])
    first = [queue.begin() for _ in range(2)]
    assert [one.label for one in first] == ["0", "5"]
    # Nobody knows yet what comes before it.
    assert queue.before(first[1]) is None
    for one in first:
        queue.end(one, "")
    assert [queue.begin().label for _ in range(2)] == ["1", "6"]
