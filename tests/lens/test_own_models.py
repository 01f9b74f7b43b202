"""The lens on models that people write themselves: a stream named by module paths, and targets that are no labels."""

import polars as pl
import pytest
import torch
from torch.nn import functional

from architectures import build
from layouts import LAYERS, PAIRS, VOCABULARY, NanoGPT, Pairs, loss_of
from loops import COUNTS
from tangentlens import InputError, Lens, open_run
from tangentlens.capture.batch import objective_of
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tiny import tiny_model

TOKENS = torch.randint(4, VOCABULARY, (8, 12), generator=torch.Generator().manual_seed(0))
# The next token, and none after the last.
NEXT = functional.pad(TOKENS[:, 1:], (0, 1), value=-1)


def nano():
    torch.manual_seed(0)
    return NanoGPT()


def measured(path, call, **settings):
    """The records of one due step of nanoGPT; `call` returns its loss."""
    model = nano()
    with Lens(model, "resid.1", rank=4, every=1, run=path, counts=COUNTS, **settings) as lens:
        call(model).backward()
        lens.step()
    return open_run(path).records.drop("run")


def loss_inside(model):
    return model(TOKENS, NEXT)[1]


def loss_outside(model):
    return functional.cross_entropy(model(TOKENS)[0].flatten(0, 1), NEXT.flatten(), ignore_index=-1)


def rows_of(model, targets, /, *args, site="resid.1", **kwargs):
    sites = find_sites(model, site)
    with Capture(model, sites, objective=objective_of(model), targets=targets) as capture:
        out = model(*args, **kwargs)
        (out[0] if isinstance(out, tuple) else out.logits).sum().backward()
    return capture.rows(sites[0])


def test_a_lens_takes_names_for_module_paths_and_logs_them(tmp_path):
    torch.manual_seed(0)
    model = Pairs()
    with Lens(model, PAIRS, rank=4, every=1, run=tmp_path / "run", log_sites="resid.3") as lens:
        loss_of(model, TOKENS).backward()
        lens.step()
    assert "resid.3/anisotropy" in lens.scalars
    run = open_run(tmp_path / "run")
    assert run.manifest["lenses"]["model"]["sites"]["resid.0"] == "input of LayerNorm"
    places = run.records.filter(metric="anisotropy", variant="", rows="all").select("site", "depth").rows()
    assert {(f"resid.{i}", i / LAYERS) for i in range(LAYERS + 1)} <= set(places)


def test_an_argument_or_a_function_of_the_call_tells_the_targets(tmp_path):
    by_name = measured(tmp_path / "name", loss_inside, targets="targets")
    by_function = measured(tmp_path / "function", loss_inside, targets=lambda args, kwargs: args[1])
    outside = measured(tmp_path / "outside", loss_outside, targets=lambda args, kwargs: NEXT)
    assert "target.1" in by_name["freq_bin"]
    assert by_name.equals(by_function)
    # The lens sees a loss only if the model returns it.
    assert by_name.filter(pl.col("metric") != "loss").equals(outside)
    # Here they are what the objective makes of the tokens themselves.
    assert by_name.equals(measured(tmp_path / "causal", loss_inside, objective="causal"))
    assert "target.1" not in measured(tmp_path / "none", loss_inside)["freq_bin"]
    assert open_run(tmp_path / "name").manifest["lenses"]["model"]["targets"] == "targets"
    assert open_run(tmp_path / "outside").manifest["lenses"]["model"]["targets"] == "<lambda>()"


def test_targets_are_taken_as_they_are_and_negative_ones_are_none():
    targets = torch.arange(96).view(8, 12) % VOCABULARY
    targets[0, :2] = -1
    expected = targets.masked_fill(targets < 0, -100).flatten()
    assert torch.equal(rows_of(nano(), "targets", TOKENS, targets).targets, expected)
    assert torch.equal(rows_of(nano(), "targets", TOKENS, targets=targets).targets, expected)
    ignored = targets.masked_fill(targets < 0, -7).int()
    assert torch.equal(rows_of(nano(), lambda args, kwargs: ignored, TOKENS).targets, expected)
    # A call without them has no targets, and neither has one of which the function knows none.
    assert (rows_of(nano(), "targets", TOKENS).targets == -100).all()
    assert (rows_of(nano(), lambda args, kwargs: None, TOKENS, targets).targets == -100).all()


def test_targets_that_are_told_take_precedence_over_labels():
    model, batch = tiny_model(), {"input_ids": TOKENS, "labels": TOKENS}
    rows = rows_of(model, lambda args, kwargs: kwargs["labels"].flip(1), **batch)
    assert torch.equal(rows.targets, TOKENS.flip(1).flatten())


def test_the_targets_of_an_encoder_decoder_are_its_decoders():
    model, answers = build("t5"), torch.randint(4, VOCABULARY, (8, 5))
    call = {"input_ids": TOKENS, "decoder_input_ids": answers.roll(1, 1)}
    halves = ("encoder.resid.1", "decoder.resid.1")
    rows = {site: rows_of(model, lambda args, kwargs: answers, site=site, **call) for site in halves}
    assert torch.equal(rows["decoder.resid.1"].targets, answers.flatten())
    assert (rows["encoder.resid.1"].targets == -100).all()


def test_targets_must_be_an_argument_of_the_model(tmp_path):
    with pytest.raises(InputError, match="but 'target' came; the arguments are idx, targets"):
        Lens(nano(), targets="target", run=tmp_path / "run")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (TOKENS[:, 1:], r"one token id for each of the \(8, 12\) positions, but have the shape \(8, 11\)"),
        (TOKENS.float(), r"must be token ids \(batch, length\), one for each position, but \(8, 12\) of torch.float32"),
        ([1, 2], "but list came"),
    ],
)
def test_targets_must_be_one_token_id_for_each_position(targets, message):
    with pytest.raises(InputError, match=message):
        rows_of(nano(), lambda args, kwargs: targets, TOKENS)


def test_a_misspelt_argument_is_told_by_models_that_take_any(tmp_path):
    model = tiny_model()
    with (
        Lens(model, "resid.1", rank=4, run=tmp_path / "run", targets="target"),
        pytest.raises(InputError, match="but 'target' came; the arguments are input_ids, labels"),
    ):
        model(input_ids=TOKENS, labels=TOKENS)
