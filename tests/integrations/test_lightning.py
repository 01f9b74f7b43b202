"""The lens in Lightning, against the plain loop and against Lightning without it."""

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

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
    batches,
    n_hooks,
    plain,
)
from tangentlens import InputError, open_run
from tangentlens.integrations.lightning import LensCallback
from tangentlens.runs.records import KEY
from tiny import tiny_model


class Module(lightning.LightningModule):
    def __init__(self, fail_at=None, empty_at=None, by_step=False):
        super().__init__()
        self.model = tiny_model()
        self.fail_at = fail_at
        self.empty_at = empty_at
        self.by_step = by_step
        self.losses = []

    def training_step(self, batch, index):
        if index == self.fail_at:
            raise RuntimeError("boom")
        if index == self.empty_at:
            return None
        if self.by_step:
            # A loader begins anew when training goes on in the middle of an epoch.
            batch = batches()[self.trainer.global_step]
        loss = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Logger(lightning.pytorch.loggers.logger.DummyLogger):
    def __init__(self):
        super().__init__()
        self.told = []

    def log_metrics(self, metrics, step=None):
        self.told.append({"step": step, **metrics})


def train(folder, callbacks=(), module=None, size=BATCH, logger=False, resume=None, **settings):
    module = Module() if module is None else module
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=list(callbacks),
        **{"max_steps": STEPS, "enable_checkpointing": False} | settings,
    )
    loader = torch.utils.data.DataLoader(Sequences(), batch_size=size)
    trainer.fit(module, loader, ckpt_path=resume, weights_only=False)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts", [1, 2])
def test_the_numbers_are_those_of_the_plain_loop(parts, plain_run, tmp_path):
    lens = LensCallback(run=tmp_path / "run", **SETTINGS)
    train(tmp_path, [lens], size=BATCH // parts, accumulate_grad_batches=parts, gradient_clip_val=None)
    assert_same_numbers(plain_run, tmp_path / "run", metrics=("share", "anisotropy", "rms_norm", "loss"))


@pytest.mark.filterwarnings("ignore")
def test_training_is_bit_for_bit_the_same_and_the_logger_is_told(tmp_path):
    alone, logger = train(tmp_path), Logger()
    watched = train(tmp_path, [LensCallback(run=tmp_path / "run", **SETTINGS)], logger=logger)
    assert_same_weights(alone, watched)
    assert alone.losses == watched.losses
    told = [one for one in logger.told if "tangentlens/anisotropy" in one]
    assert [one["step"] for one in told] == [0, 2, 4], "as in the records"
    losses = open_run(tmp_path / "run").records.filter(metric="loss").sort("step")["value"].to_list()
    assert losses == pytest.approx(watched.losses[::2])


@pytest.mark.filterwarnings("ignore")
def test_the_loss_of_a_step_with_fewer_batches_than_the_others_is_their_mean_too(tmp_path):
    settings = SETTINGS | {"sites": "resid.1", "every": 1}
    module = train(tmp_path, [LensCallback(run=tmp_path / "run", **settings)], max_steps=2, accumulate_grad_batches=3)
    losses = open_run(tmp_path / "run").records.filter(metric="loss").sort("step")["value"].to_list()
    assert losses == pytest.approx([sum(module.losses[:3]) / 3, sum(module.losses[3:]) / 2])


@pytest.mark.filterwarnings("ignore")
def test_a_probe_gives_the_numbers_of_the_plain_loop_and_goes_on_from_a_checkpoint(tmp_path):
    settings = SETTINGS | {"sites": "resid.1", "updates": (), "counts": None, "probe": {"input_ids": PROBE}}
    plain(tmp_path / "plain", **settings)
    alone = train(tmp_path)
    watched = train(tmp_path, [LensCallback(run=tmp_path / "whole", **settings)], Module(by_step=True))
    assert_same_weights(alone, watched)
    assert_same_numbers(tmp_path / "plain", tmp_path / "whole", metrics=MOVED)
    save = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=3)
    first, second = (LensCallback(run=tmp_path / "parts", **settings) for _ in range(2))
    train(tmp_path, [first, save], Module(by_step=True), max_steps=3, enable_checkpointing=True)
    train(tmp_path, [second], Module(by_step=True), resume=tmp_path / "half.ckpt")
    expected, found = (open_run(tmp_path / name).records.drop("run").sort(KEY) for name in ("whole", "parts"))
    assert found.equals(expected)
    assert set(found.filter(quantity="movement")["step"]) == {2, 4}


@pytest.mark.filterwarnings("ignore")
def test_hooks_are_gone_after_training_and_after_an_exception(tmp_path):
    settings = SETTINGS | {"sites": "resid.1"}
    module = train(tmp_path, [LensCallback(run=tmp_path / "run", **settings)], max_steps=2)
    assert n_hooks(module) == 0
    module = Module(fail_at=2)
    with pytest.raises(RuntimeError, match="boom"):
        train(tmp_path, [LensCallback(run=tmp_path / "again", **settings)], module=module)
    assert n_hooks(module) == 0


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"must name the part of the LightningModule.*'net' is none; it has model"):
        train(tmp_path, [LensCallback(model="net", run=tmp_path / "run", **SETTINGS)])


@pytest.mark.filterwarnings("ignore")
def test_a_step_that_returns_nothing_is_recorded_and_training_goes_on(tmp_path):
    settings = SETTINGS | {"sites": "resid.1"}
    train(tmp_path, [LensCallback(run=tmp_path / "run", **settings)], module=Module(empty_at=2))
    records = open_run(tmp_path / "run").records
    assert records.filter(metric="unmeasured", site="").select("step", "detail").rows() == [
        (2, "the training step returned nothing")
    ]
    assert records.filter(metric="share", step=4).height > 0


@pytest.mark.filterwarnings("ignore")
def test_a_training_that_goes_on_from_a_checkpoint_gives_the_same_numbers(tmp_path):
    settings = SETTINGS | {"every": 3, "moments_every": 1}
    module = lambda: Module(by_step=True)  # noqa: E731
    train(tmp_path, [LensCallback(run=tmp_path / "whole", **settings)], module())
    save = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=3)
    first = LensCallback(run=tmp_path / "parts", **settings)
    train(tmp_path, [first, save], module(), max_steps=3, enable_checkpointing=True)
    train(tmp_path, [LensCallback(run=tmp_path / "parts", **settings)], module(), resume=tmp_path / "half.ckpt")
    expected, found = (open_run(tmp_path / name).records.drop("run").sort(KEY) for name in ("whole", "parts"))
    assert found.equals(expected)


@pytest.mark.filterwarnings("ignore")
def test_a_second_fit_of_the_same_trainer_goes_on_counting(tmp_path):
    watch, module = LensCallback(run=tmp_path / "run", **SETTINGS | {"sites": "resid.1"}), Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", callbacks=[watch], max_steps=2, enable_checkpointing=False, **quiet)
    loader = torch.utils.data.DataLoader(Sequences(), batch_size=BATCH)
    for steps in (2, 4):
        trainer.fit_loop.epoch_loop.max_steps = steps
        trainer.fit(module, loader)
    found = open_run(tmp_path / "run").records.select("step", "tokens_seen").unique().sort("step").rows()
    assert found == [(0, 96), (2, 288)]


@pytest.mark.filterwarnings("ignore")
def test_targets_and_sites_of_a_model_of_ones_own_are_passed_on(tmp_path):
    class Own(Module):
        def __init__(self):
            super().__init__()
            self.model = NanoGPT()

        def training_step(self, batch, index):
            return self.model(batch["input_ids"], batch["labels"].roll(-1, 1))[1]

    settings = {"sites": {"resid.2": "transformer.h.1"}, "targets": "targets", "rank": 4, "counts": COUNTS}
    train(tmp_path, [LensCallback(run=tmp_path / "run", **settings)], Own(), max_steps=1)
    records = open_run(tmp_path / "run").records
    assert set(records["site"]) >= {"resid.2"}
    assert "target.1" in records["freq_bin"]
