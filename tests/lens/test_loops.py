"""Loops that people have, each against the plain one in full precision with one batch a step."""

import accelerate
import pytest
import torch

from architectures import batch, build
from loops import BATCH, SETTINGS, Sequences, assert_same_numbers, assert_same_weights, batches, n_hooks, plain
from tangentlens import InputError, Lens, open_run
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tangentlens.capture.stream import MomentStream
from tiny import tiny_model

SITES = SETTINGS | {"sites": "resid"}


def test_accelerate_with_accumulation(plain_run, tmp_path):
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
    assert_same_numbers(plain_run, tmp_path / "run")
    assert_same_numbers(plain_run, tmp_path / "run", metrics=["loss"])


def half_step(model, optimizer, scaler, part):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(**part).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss


def half_precision(run=None):
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # It doubles with every step: whoever asks for it too late gets another one.
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1)
    lens = None
    if run is not None:
        lens = Lens(model, run=run, loss_scale=scaler.get_scale, moments_every=1, **SETTINGS).__enter__()
    for part in batches():
        loss = half_step(model, optimizer, scaler, part)
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


@pytest.mark.parametrize("moments_every", [None, 1])
def test_overflow_in_half_precision_is_recorded_and_training_goes_on(moments_every, tmp_path):
    model = tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Lens(model, run=tmp_path / "run", loss_scale=scaler.get_scale, moments_every=moments_every, **SITES) as lens:
        for step, part in enumerate(batches()[:2]):
            loss = half_step(model, optimizer, scaler, part)
            if step == 0:
                with pytest.warns(UserWarning, match="step 0 was not measured.*hold NaN or Inf"):
                    lens.step(loss)
    assert open_run(tmp_path / "run").records.filter(metric="unmeasured").height > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.calibration)])
def test_compiled_blocks(backend, tmp_path):
    """Traced and differentiated ahead of time, where hooks may be lost; writing C++ for it takes half a minute more."""
    plain(tmp_path / "plain", sites="resid", updates="embed")
    alone, watched = tiny_model(), tiny_model()
    for block in (*alone.model.layers, *watched.model.layers):
        block.compile(backend=backend)
    plain(model=alone)
    plain(tmp_path / "run", model=watched, sites="resid", updates="embed")
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


def test_reentrant_checkpointing_finds_the_pass_that_is_back_propagated():
    """With several passes waiting, one of them in vain; against no checkpointing at all."""
    found = []
    for reentrant in (False, True):
        model = build("llama").train()
        if reentrant:
            model.gradient_checkpointing_enable({"use_reentrant": True})
        sites = find_sites(model, "resid.[12]")
        with Capture(model, sites) as capture:
            model(**batch(seed=9))
            (model(**batch(seed=1)).loss + model(**batch(seed=2)).loss).backward()
        found.append([capture.rows(site) for site in sites])
    for mine, theirs in zip(*found, strict=True):
        # A backward pass comes through the passes in its own order.
        order, other = (rows.tokens.view(-1, 7)[:, :2].sum(dim=1).argsort() for rows in (mine, theirs))
        for part in ("tokens", "activations", "gradients"):
            left, right = (getattr(rows, part).unflatten(0, (-1, 7)) for rows in (mine, theirs))
            torch.testing.assert_close(left[order], right[other], rtol=1e-4, atol=1e-7)


class InPlace(torch.nn.Module):
    """Blocks whose outputs are changed in place by what comes after, as many people write them."""

    def __init__(self, how):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.how = how

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            y = block(x)
            if self.how == "add":
                y += x
            elif self.how == "relu":
                y = y.relu_() + x
            else:
                y = y + x
            x = y
        return x


@pytest.mark.parametrize("how", ["add", "relu"])
def test_changes_in_place_do_not_hide_the_gradient(how):
    torch.manual_seed(0)
    model = InPlace(how)
    plainly = InPlace("none" if how == "add" else "relu")
    plainly.load_state_dict(model.state_dict())
    if how == "relu":
        plainly.forward = lambda input_ids: relu_not_in_place(plainly, input_ids)
    tokens = batch()["input_ids"]
    rows = []
    for one in (model, plainly):
        sites = find_sites(one, "blocks.*")
        with Capture(one, sites) as capture, MomentStream(one, sites) as stream:
            one(input_ids=tokens).square().sum().backward()
        rows.append([capture.rows(site) for site in sites])
        assert {"gradients/blocks.0", "gradients/blocks.1"} == {key for key in stream.ordinary if key[0] == "g"}
    for mine, theirs in zip(*rows, strict=True):
        torch.testing.assert_close(mine.activations, theirs.activations)
        torch.testing.assert_close(mine.gradients, theirs.gradients)


def relu_not_in_place(model, input_ids):
    x = model.embed(input_ids)
    for block in model.blocks:
        x = block(x).relu() + x
    return x


def test_a_block_that_was_dropped_is_recorded_and_training_goes_on(tmp_path):
    class Dropping(InPlace):
        def forward(self, input_ids):
            return self.blocks[0](self.embed(input_ids))

    model = Dropping("none")
    with Lens(model, "blocks.*", rank=2, every=1, run=tmp_path / "run") as lens:
        model(batch(size=8)["input_ids"]).square().sum().backward()
        with pytest.warns(UserWarning, match=r"not measured at blocks.1: no forward pass came through it"):
            lens.step()
    records = open_run(tmp_path / "run").records
    assert records.filter(metric="unmeasured")["site"].to_list() == ["blocks.1"]
    assert records.filter(metric="share", site="blocks.0").height > 0


@pytest.mark.filterwarnings("ignore:step")
def test_blocks_that_are_dropped_at_due_steps_in_a_row_do_not_end_the_training(tmp_path):
    class Dropping(InPlace):
        dropped = False

        def forward(self, input_ids):
            hidden = self.blocks[0](self.embed(input_ids))
            return hidden if self.dropped else self.blocks[1](hidden)

    for sites, updates in (("blocks.*", ()), (["blocks.1"], ["embed"])):
        model, path = Dropping("none"), tmp_path / str(len(sites))
        with Lens(model, sites, rank=2, every=1, run=path, updates=updates) as lens:
            for step in range(4):
                model.dropped = step == 1
                model(batch(size=8)["input_ids"]).square().sum().backward()
                lens.step()
        records = open_run(path).records
        assert records.filter(metric="unmeasured", site="blocks.1")["step"].to_list() == [1]
        assert records.filter(metric="anisotropy", site="blocks.1")["step"].unique().sort().to_list() == [0, 2, 3]


def test_equal_activations_are_recorded_and_training_goes_on(tmp_path):
    model = tiny_model()
    torch.nn.init.zeros_(model.model.layers[1].mlp.down_proj.weight)
    with Lens(model, run=tmp_path / "run", moments_every=1, **SETTINGS) as lens:
        model(**batches()[0]).loss.backward()
        with pytest.warns(UserWarning, match=r"not measured at mlp.1: rows must differ"):
            lens.step()


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
