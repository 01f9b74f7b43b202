import pytest
import torch

from tangentlens import InputError, Lens
from tangentlens.runs.run import create_run
from tangentlens.training.loop import Checkpoint, Recipe, train
from tiny import tiny_batch, tiny_model


class Stop(Exception):
    pass


def go(path, recipe, stop_at=None, every=2):
    run = create_run(path, {})
    model = tiny_model()
    checkpoint = Checkpoint(run, "checkpoint")
    step, seen = checkpoint.position()
    lens = Lens(model, "resid.1", rank=4, every=every, run=run, step=step, tokens_seen=seen)
    losses = {}

    def watch(progress):
        losses[progress.done] = progress.note
        if progress.done == stop_at:
            raise Stop

    train(model, tiny_batch, recipe, lens, checkpoint, watch)
    return model, losses


def test_a_training_that_was_stopped_goes_on_with_the_same_numbers(tmp_path):
    recipe = Recipe(steps=7, learning_rate=1e-2, warmup=2)
    whole, expected = go(tmp_path / "whole", recipe)
    with pytest.raises(Stop):
        go(tmp_path / "parts", recipe, stop_at=4)
    resumed, losses = go(tmp_path / "parts", recipe)
    assert sorted(losses) == [4, 5, 6, 7], "it goes on from the last due step"
    assert losses == {step: expected[step] for step in losses}
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    records = [create_run(tmp_path / name, {}).records.drop("run") for name in ("whole", "parts")]
    assert records[0].equals(records[1])


def test_a_finished_training_does_nothing_more(tmp_path):
    recipe = Recipe(steps=3, learning_rate=1e-2)
    go(tmp_path / "run", recipe)
    assert go(tmp_path / "run", recipe)[1] == {}


@pytest.mark.filterwarnings("ignore:.*was not measured")
def test_a_loss_that_is_not_finite_stops_with_advice_and_keeps_what_was_measured(tmp_path):
    with pytest.raises(InputError, match=r"model's is (nan|inf) at step \d; lower the learning rate \(1e\+20\)"):
        go(tmp_path / "run", Recipe(steps=9, learning_rate=1e20, warmup=1), every=1)
    assert create_run(tmp_path / "run", {}).records["step"].to_list()[0] == 0


def test_the_rate_warms_up_and_comes_down():
    recipe = Recipe(steps=100, learning_rate=1.0, warmup=10)
    assert recipe.rate(0) == pytest.approx(0.1)
    assert max(map(recipe.rate, range(100))) == recipe.rate(9) == pytest.approx(0.91)
    assert recipe.rate(99) == pytest.approx(0.1)
