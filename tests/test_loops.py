"""Loops that people have, each against the plain one in full precision with one batch a step."""

import accelerate
import pytest
import torch

from architectures import batch, build
from loops import BATCH, SETTINGS, Sequences, assert_same_numbers, assert_same_weights, batches, n_hooks, plain
from tangentlens import InputError, Lens, open_run
from tangentlens.capture.hooks import Capture
from tangentlens.capture.sites import find_sites
from tiny import tiny_model

SITES = SETTINGS | {"sites": "resid"}


def test_accelerate_with_accumulation(tmp_path):
    plain(tmp_path / "plain")
    found = []
    for run in (None, tmp_path / "run"):
        model = tiny_model()
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
        loader = torch.utils.data.DataLoader(Sequences(), batch_size=BATCH // 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        lens = None if run is None else Lens(model, run=run, **SETTINGS).__enter__()
        for part in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**part).loss)
                optimizer.step()
                optimizer.zero_grad()
            if lens is not None and accelerator.sync_gradients:
                lens.step()
        found.append(model)
    lens.__exit__(None, None, None)
    assert_same_weights(*found)
    assert_same_numbers(tmp_path / "plain", tmp_path / "run")


def half_precision(run=None, model=None):
    model = tiny_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # It doubles with every step: whoever asks for it too late gets another one.
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1)
    lens = None
    if run is not None:
        lens = Lens(model, run=run, loss_scale=scaler.get_scale, moments_every=1, **SETTINGS).__enter__()
    for part in batches():
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**part).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if lens is not None:
            lens.step(loss)
    if lens is not None:
        lens.__exit__(None, None, None)
    return model


def test_mixed_precision_with_a_scaled_loss(tmp_path):
    plain(tmp_path / "plain", moments_every=1)
    watched = half_precision(tmp_path / "run")
    assert_same_weights(half_precision(), watched)
    # Half precision has three digits; the scale is between 256 and 4,096.
    metrics = ("rms_norm", "window_rms_norm", "window_anisotropy", "anisotropy")
    assert_same_numbers(tmp_path / "plain", tmp_path / "run", rel=0.02, metrics=metrics)


def test_overflow_in_half_precision_is_recorded_and_training_goes_on(tmp_path):
    model = tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Lens(model, run=tmp_path / "run", loss_scale=scaler.get_scale, **SITES) as lens:
        for step, part in enumerate(batches()[:2]):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(**part).loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if step == 0:
                with pytest.warns(UserWarning, match="step 0 was not measured.*hold NaN or Inf"):
                    lens.step(loss)
    assert open_run(tmp_path / "run").records.filter(metric="unmeasured").height > 0


@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks(tmp_path):
    plain(tmp_path / "plain", sites="resid")
    alone, watched = tiny_model(), tiny_model()
    for block in (*alone.model.layers, *watched.model.layers):
        block.compile()
    plain(model=alone)
    plain(tmp_path / "run", model=watched, sites="resid")
    assert_same_weights(alone, watched)
    assert_same_numbers(tmp_path / "plain", tmp_path / "run", rel=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.compile, lambda m: (m.compile(), m)[1]], ids=["wrapped", "in place"])
def test_sites_inside_a_compiled_model_are_refused(compiled, tmp_path):
    """`torch.compile` passes over hooks in silence, and would leave nothing to measure."""
    with pytest.raises(InputError, match=r"resid.0 is inside the model, which is; compile its blocks instead"):
        Lens(compiled(tiny_model()), run=tmp_path / "run", **SITES)
    model = tiny_model()
    model.model.layers[1].compile()
    with pytest.raises(InputError, match=r"mlp.1 is inside model.layers.1, which is"):
        Lens(model, run=tmp_path / "run", **SETTINGS)


def rows_of(model, site, **call):
    with Capture(model, [site], objective="causal") as capture:
        (model(**call).loss * 1).backward()
    return capture.rows(site)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batches_give_the_rows_of_each_sequence_alone(side):
    """Sequences of several lengths, padded on either side, against each one by itself."""
    model = build("llama")
    site = find_sites(model, "resid.2")[0]
    tokens = batch(size=3, length=9)["input_ids"]
    lengths = [9, 5, 7]
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        mask[row, 9 - length :] = 1
        if side == "right":
            mask[row] = mask[row].flip(0)
    positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
    # Padding on the left would be asked to predict the first token.
    labels = tokens.masked_fill((mask == 0) | (positions == 0), -100)
    together = rows_of(model, site, input_ids=tokens * mask, attention_mask=mask, labels=labels, position_ids=positions)
    assert len(together.sequences.unique()) == 3
    counted = sum(length - 1 for length in lengths)
    for row, number in enumerate(together.sequences.unique()):
        mine = together.sequences == number
        own = tokens[row][mask[row].bool()][None]
        alone = rows_of(model, site, input_ids=own, labels=own)
        assert torch.equal(together.tokens[mine], alone.tokens)
        assert torch.equal(together.targets[mine], alone.targets)
        torch.testing.assert_close(together.activations[mine], alone.activations)
        # The mean over all tokens weighs each sequence by its length.
        weighed = alone.gradients * (lengths[row] - 1) / counted
        torch.testing.assert_close(together.gradients[mine], weighed, rtol=1e-4, atol=1e-7)


def test_packed_sequences_are_told_apart_by_their_positions():
    model = build("llama")
    site = find_sites(model, "resid.2")[0]
    first, second = batch(size=1, length=5)["input_ids"], batch(size=1, length=4, seed=1)["input_ids"]
    labels = torch.cat([first, second.clone()], dim=1)
    labels[0, 5] = -100
    positions = torch.cat([torch.arange(5), torch.arange(4)])[None]
    packed = rows_of(
        model, site, input_ids=torch.cat([first, second], dim=1), labels=labels, position_ids=positions, use_cache=False
    )
    assert packed.sequences.tolist() == [0] * 5 + [1] * 4
    for number, own in enumerate((first, second)):
        mine = packed.sequences == number
        alone = rows_of(model, site, input_ids=own, labels=own)
        torch.testing.assert_close(packed.activations[mine], alone.activations)
        weighed = alone.gradients * (own.shape[1] - 1) / 7
        torch.testing.assert_close(packed.gradients[mine], weighed, rtol=1e-4, atol=1e-7)
    assert packed.targets[4] == -100


def test_two_forward_passes_before_a_reentrant_backward_are_refused():
    model = tiny_model()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.train()
    site = find_sites(model, "resid.1")[0]
    with Capture(model, [site]):
        loss = sum(model(**part).loss for part in batches()[:2])
        with pytest.raises(InputError, match="pass use_reentrant=False"):
            loss.backward()


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "t5", "mamba", "lstm"])
def test_other_architectures_train_the_same_with_and_without_it(name, tmp_path):
    found = []
    for run in (None, tmp_path / "run"):
        model = build(name).train()
        before = n_hooks(model)
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lens = None if run is None else Lens(model, run=run, rank=4, every=1, moments_every=1).__enter__()
        for step in range(2):
            loss = model(**batch(size=8, length=12, seed=step)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if lens is not None:
                lens.step(loss)
        if lens is not None:
            lens.__exit__(None, None, None)
        assert n_hooks(model) == before
        found.append(model)
    assert_same_weights(*found)
    records = open_run(tmp_path / "run").records
    assert records.filter(metric="unmeasured").is_empty()
    # Beside the sites there is their mean.
    assert records.filter(metric="share", variant="semi_nmf")["site"].n_unique() == len(lens.sites) + 1
