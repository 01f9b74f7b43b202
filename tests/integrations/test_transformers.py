"""The lens in the Hugging Face Trainer, against the plain loop and against the Trainer without it."""

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from layouts import NanoGPT
from loops import (
    BATCH,
    COUNTS,
    MOVED,
    PROBE,
    SETTINGS,
    STEPS,
    Sequences,
    assert_same_numbers,
    assert_same_weights,
    n_hooks,
    plain,
)
from tangentlens import Alarm, InputError, Penalty, open_run
from tangentlens.integrations.transformers import LensCallback, PenaltyCallback
from tangentlens.runs.records import KEY
from tiny import tiny_model


class Tracker(TrainerCallback):
    """What wandb's, TensorBoard's and MLflow's callbacks are: something that is told of every log."""

    def __init__(self):
        self.told = []

    def on_log(self, args, state, control, logs, **_):
        self.told.append((state.global_step, dict(logs)))


def train(folder, callbacks=(), model=None, resume=None, data=None, **arguments):
    model = tiny_model() if model is None else model
    settings = {
        "output_dir": folder,
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "report_to": "none",
        "train_sampling_strategy": "sequential",
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 1,
    }
    trainer = Trainer(
        model, TrainingArguments(**settings | arguments), train_dataset=data or Sequences(), callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": BATCH // 2},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    ],
    ids=["plain", "accumulation", "checkpointing", "reentrant"],
)
def test_the_numbers_are_those_of_the_plain_loop(arguments, plain_run, tmp_path):
    train(tmp_path, [LensCallback(run=tmp_path / "run", **SETTINGS)], **arguments)
    assert_same_numbers(plain_run, tmp_path / "run")
    assert_same_numbers(plain_run, tmp_path / "run", metrics=["loss"])


def test_gradients_are_those_before_clipping(tmp_path):
    plain(tmp_path / "plain", clip=1e-3)
    train(tmp_path, [LensCallback(run=tmp_path / "run", **SETTINGS)], max_grad_norm=1e-3)
    assert_same_numbers(tmp_path / "plain", tmp_path / "run")


@pytest.mark.parametrize("arguments", [{}, {"gradient_accumulation_steps": 2}, {"gradient_checkpointing": True}])
def test_training_is_bit_for_bit_the_same(arguments, tmp_path):
    alone = train(tmp_path, **arguments)
    watched = train(tmp_path, [LensCallback(run=tmp_path / "run", **SETTINGS)], **arguments)
    assert_same_weights(alone.model, watched.model)
    losses = [[log["loss"] for log in one.state.log_history if "loss" in log] for one in (alone, watched)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == STEPS


def test_a_probe_gives_the_numbers_of_the_plain_loop_and_goes_on_from_a_checkpoint(tmp_path):
    settings = SETTINGS | {"sites": "resid.1", "updates": (), "counts": None, "probe": PROBE.tolist()}
    plain(tmp_path / "plain", **settings)
    alone, lens = train(tmp_path / "alone"), LensCallback(run=tmp_path / "whole", **settings)
    watched = train(tmp_path / "a", [lens], save_strategy="steps", save_steps=3)
    assert_same_weights(alone.model, watched.model)
    assert_same_numbers(tmp_path / "plain", tmp_path / "whole", metrics=MOVED)
    again = LensCallback(run=tmp_path / "parts", **settings)
    train(tmp_path / "b", [again], save_strategy="steps", save_steps=3, max_steps=3)
    train(tmp_path / "b", [LensCallback(run=tmp_path / "parts", **settings)], resume=tmp_path / "b/checkpoint-3")
    expected, found = (open_run(tmp_path / name).records.drop("run").sort(KEY) for name in ("whole", "parts"))
    assert found.equals(expected)
    assert set(found.filter(quantity="movement")["step"]) == {2, 4}


def test_a_tracker_is_told_a_handful_of_numbers_on_due_steps(tmp_path):
    tracker = Tracker()
    lens = LensCallback(run=tmp_path / "run", **SETTINGS, log_sites="resid.2", alarms=[Alarm("anisotropy", above=0)])
    with pytest.warns(UserWarning, match="step 0 of model: anisotropy is 0.*above 0"):
        trainer = train(tmp_path, [tracker, lens], logging_steps=500)
    told = {step: logs for step, logs in tracker.told if "tangentlens/anisotropy" in logs}
    assert list(told) == [0, 2, 4], "as in the records"
    names = ["tangent_share", "tangent_share_over_chance", "anisotropy", "intrinsic_dimension", "gradient_norm"]
    names.append("massive_rows")
    expected = [*names, *(f"resid.2/{name}" for name in names), "alarm/anisotropy"]
    assert list(told[0]) == [f"tangentlens/{name}" for name in expected]
    assert told[0]["tangentlens/alarm/anisotropy"] == 1
    # MLflow keeps each as a file.
    assert not any(other.startswith(f"{name}/") for name in told[0] for other in told[0])
    records = open_run(tmp_path / "run").records
    mean = records.filter(step=0, site="mean", metric="anisotropy", quantity="activation")["value"].item()
    assert told[0]["tangentlens/anisotropy"] == pytest.approx(mean)
    assert any("tangentlens/anisotropy" in log for log in trainer.state.log_history)
    assert records.filter(metric="alarm/anisotropy")["step"].to_list() == [0, 2, 4]


def test_hooks_are_gone_after_training_and_after_an_exception(tmp_path):
    class Broken(TrainerCallback):
        def on_substep_end(self, *args, **_):
            raise RuntimeError("boom")

    settings = SETTINGS | {"every": 1, "sites": "resid.1"}
    lens = LensCallback(run=tmp_path / "run", **settings)
    model = tiny_model()
    train(tmp_path, [lens], model=model, max_steps=2)
    assert n_hooks(model) == 0
    lens = LensCallback(run=tmp_path / "again", **settings)
    with pytest.raises(RuntimeError, match="boom"):
        train(tmp_path, [lens, Broken()], model=model, gradient_accumulation_steps=2)
    assert n_hooks(model) > 0
    lens.close()
    assert n_hooks(model) == 0


def test_a_training_that_goes_on_from_a_checkpoint_gives_the_same_numbers(tmp_path):
    """The first step after the checkpoint is due: its proxy is fitted on the last step before."""
    settings = SETTINGS | {"every": 3, "moments_every": 1}
    whole = LensCallback(run=tmp_path / "whole", **settings)
    train(tmp_path / "a", [whole], save_strategy="steps", save_steps=3)
    parts = LensCallback(run=tmp_path / "parts", **settings)
    train(tmp_path / "b", [parts], save_strategy="steps", save_steps=3, max_steps=3)
    train(tmp_path / "b", [LensCallback(run=tmp_path / "parts", **settings)], resume=tmp_path / "b/checkpoint-3")
    expected, found = (open_run(tmp_path / name).records.drop("run").sort(KEY) for name in ("whole", "parts"))
    assert found.equals(expected)


def test_a_training_that_begins_anew_gets_a_folder_of_its_own(tmp_path):
    lens = LensCallback(run=tmp_path / "run", **SETTINGS | {"sites": "resid.1"})
    train(tmp_path, [lens], max_steps=2)
    train(tmp_path, [lens], max_steps=2)
    assert_same_numbers(tmp_path / "run", tmp_path / "run-2", rel=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_compiled_by_the_trainer_is_refused(tmp_path):
    with pytest.raises(InputError, match="torch_compile=True compiles it as a whole; leave it out and compile the blo"):
        train(tmp_path, [LensCallback(run=tmp_path / "run", **SETTINGS)], torch_compile=True)


def test_a_checkpoint_without_what_the_lens_kept_is_told(tmp_path):
    train(tmp_path / "a", save_strategy="steps", save_steps=3, max_steps=3)
    lens = LensCallback(run=tmp_path / "run", **SETTINGS)
    with (
        pytest.warns(UserWarning, match=r"continues at step 3, but the lens has no state at .*windows start over"),
        pytest.warns(UserWarning, match=r"continues at step 3, but the run has no step before it.*tokens_seen="),
    ):
        train(tmp_path / "a", [lens], resume=tmp_path / "a/checkpoint-3")


def test_targets_and_sites_of_a_model_of_ones_own_are_passed_on(tmp_path):
    class Own(NanoGPT):
        def forward(self, input_ids, targets):
            return {"loss": super().forward(input_ids, targets)[1]}

    data = [{"input_ids": row["input_ids"], "targets": row["labels"].roll(-1)} for row in Sequences()]
    settings = {"sites": {"resid.2": "transformer.h.1"}, "targets": "targets", "rank": 4, "counts": COUNTS}
    train(tmp_path, [LensCallback(run=tmp_path / "run", **settings)], Own(), data=data, max_steps=1)
    records = open_run(tmp_path / "run").records
    assert set(records["site"]) >= {"resid.2"}
    assert "target.1" in records["freq_bin"]


def penalised(folder, callbacks=True, **arguments):
    """A training with a penalty. Where steps have several passes, all of one batch, a term that is no mean over tokens
    has the value of the batch in each, so that trainings can be compared."""
    same = [Sequences()[0]] * (STEPS * BATCH)
    penalty = [PenaltyCallback(term="cosine", strength=0.5)] if callbacks else []
    return train(folder, penalty, data=same, **arguments)


def test_a_penalty_is_added_to_the_loss_as_in_the_plain_loop(tmp_path):
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = {name: ids.expand(BATCH, -1) for name, ids in Sequences()[0].items()}
    losses = []
    with Penalty(model, "cosine", 0.5) as penalty:
        for _ in range(STEPS):
            loss = model(**batch).loss + penalty()
            losses.append(float(loss.detach()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    once = penalised(tmp_path)
    twice = penalised(tmp_path, gradient_accumulation_steps=2, per_device_train_batch_size=BATCH // 2)
    alone = penalised(tmp_path, callbacks=False)
    for trainer in (once, twice):
        logged = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        assert logged == pytest.approx(losses, rel=1e-2)
    for name, expected in model.state_dict().items():
        assert torch.allclose(once.model.state_dict()[name], expected, atol=1e-6), name
        # Of half as many equal rows, the mean cosine of distinct ones is a little smaller.
        assert torch.allclose(twice.model.state_dict()[name], expected, atol=1e-2), name
    changed = [
        name
        for name, one in alone.model.state_dict().items()
        if not torch.allclose(one, model.state_dict()[name], atol=1e-3)
    ]
    assert changed, "the penalty does something"
    assert n_hooks(once.model) == 0


def test_a_penalty_on_a_model_without_a_loss_is_told(tmp_path):
    class Unlabelled(NanoGPT):
        def forward(self, input_ids, labels):
            return {"logits": super().forward(input_ids, labels)[0]}

    penalty = PenaltyCallback(term="cosine", strength=0.5)
    with pytest.raises(InputError, match="must return its loss for a penalty to be added"):
        train(tmp_path, [penalty], Unlabelled(), max_steps=1)
    penalty.close()
