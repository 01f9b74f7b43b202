"""Modules that run several times in a forward pass, as ALBERT's: each time is a site, and is compared with a hand-run
loop over the layers.
"""

from itertools import pairwise

import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForMaskedLM, AlbertModel
from transformers.masking_utils import create_bidirectional_mask

from architectures import VOCABULARY, WIDTH, batch, build
from tangentlens import InputError, Lens, anisotropy, open_run
from tangentlens.capture.backward import gradients
from tangentlens.capture.forward import activations
from tangentlens.capture.sites import find_sites
from tangentlens.capture.stacks import find_stacks
from tangentlens.capture.step import Capture
from tangentlens.capture.updates import find_matrices

LAYERS = 5
# Groups of layers that share their weights, and layers inside a group.
SHAPES = [(1, 1), (2, 1), (3, 1), (5, 1), (1, 2), (2, 2)]


def albert(groups, inner, kind=AlbertForMaskedLM, layers=LAYERS):
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=VOCABULARY,
        embedding_size=16,
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_hidden_groups=groups,
        inner_group_num=inner,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return kind(config).eval()


def by_hand(model, tokens):
    """The residual stream from ALBERT's own parts: after the mapping of the embedding, then layer by layer."""
    body = model.base_model
    embedded = body.embeddings(tokens)
    mask = create_bidirectional_mask(config=body.config, inputs_embeds=embedded, attention_mask=torch.ones_like(tokens))
    hidden = body.encoder.embedding_hidden_mapping_in(embedded)
    states = [hidden]
    config = body.config
    for layer in range(config.num_hidden_layers):
        # The published rule: layers are dealt to groups in equal runs.
        group = body.encoder.albert_layer_groups[layer * config.num_hidden_groups // config.num_hidden_layers]
        for one in group.albert_layers:
            hidden = one(hidden, mask)
        states.append(hidden)
    return states


def seen(model, tokens, wanted="resid"):
    found = {}
    keep = torch.ones_like(tokens).bool()
    activations(model, find_sites(model, wanted), tokens, keep, lambda site, rows: found.update({site.name: rows}))
    return found


@pytest.mark.parametrize(("groups", "inner"), SHAPES)
@pytest.mark.parametrize("kind", [AlbertModel, AlbertForMaskedLM])
def test_activations_are_those_of_layers_run_by_hand(groups, inner, kind):
    model, tokens = albert(groups, inner, kind), batch()["input_ids"]
    found = seen(model, tokens)
    assert list(found) == [f"resid.{i}" for i in range(LAYERS + 1)]
    with torch.no_grad():
        states = by_hand(model, tokens)
    for rows, state in zip(found.values(), states, strict=True):
        assert torch.equal(rows, state.flatten(0, 1))
    for one, other in pairwise(states):
        assert not torch.allclose(one, other, atol=1e-2)


@pytest.mark.parametrize(("groups", "inner"), SHAPES)
def test_gradients_are_those_of_layers_run_by_hand(groups, inner):
    model, given = albert(groups, inner), batch()
    rows, loss = gradients(model, [given], find_sites(model, "resid"), "masked")
    states = by_hand(model, given["input_ids"])
    for state in states:
        state.retain_grad()
    logits = model.predictions(states[-1])
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), given["labels"].flatten())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    for i, state in enumerate(states):
        torch.testing.assert_close(rows[f"resid.{i}"].activations, state.detach().flatten(0, 1))
        torch.testing.assert_close(rows[f"resid.{i}"].gradients, state.grad.flatten(0, 1))


def test_the_lens_measures_every_time_the_layer_runs(tmp_path):
    model, given = albert(1, 1).train(), batch(size=8, length=12)
    with Lens(model, run=tmp_path / "run", rank=4, every=1, moments_every=1) as lens:
        states = by_hand(model, given["input_ids"])
        loss = model(**given).loss
        loss.backward()
        lens.step(loss)
    records = open_run(tmp_path / "run").records.filter(metric="anisotropy", quantity="activation", rows="all")
    assert records.filter(metric="unmeasured").is_empty()
    for i, state in enumerate(states):
        value = records.filter(site=f"resid.{i}", variant="")["value"].to_list()
        assert value == pytest.approx([anisotropy(state.detach().flatten(0, 1))], rel=1e-4)


def test_the_groups_are_those_that_transformers_runs_for_any_number_of_layers():
    """At 18 layers and 14 groups, rounding decides which group layer 9 belongs to."""
    model, tokens = albert(14, 1, AlbertModel, layers=18), batch()["input_ids"]
    ran = []
    handles = [
        group.register_forward_hook(lambda module, *_: ran.append(module))
        for group in model.encoder.albert_layer_groups
    ]
    model(tokens)
    for handle in handles:
        handle.remove()
    assert [block.last for block in find_stacks(model)[0].blocks] == ran


class Listed(nn.Module):
    """The same module at several places of a list."""

    def __init__(self, runs=(0, 1, 2, 3)):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([one, other, one, one])
        self.runs = runs

    def forward(self, input_ids, attention_mask=None):
        hidden = self.embed(input_ids)
        for place in self.runs:
            hidden = hidden + self.blocks[place](hidden).tanh()
        return hidden


def test_a_module_at_several_places_of_a_list_is_as_many_sites():
    model, tokens = Listed(), batch()["input_ids"]
    assert [site.place for site in find_sites(model, "resid")] == [
        "input of Linear, time 1 of 3",
        "output of Linear, time 1 of 3",
        "output of Linear",
        "output of Linear, time 2 of 3",
        "output of Linear, time 3 of 3",
    ]
    found = seen(model, tokens)
    hidden = model.embed(tokens)
    for place, block in enumerate(model.blocks):
        torch.testing.assert_close(found[f"resid.{place + 1}"], block(hidden).flatten(0, 1))
        hidden = hidden + block(hidden).tanh()


@pytest.mark.parametrize("runs", [(0, 1, 2), (0, 1, 2, 3, 2)])
def test_a_module_that_runs_more_or_less_often_than_expected_is_refused(runs):
    model, tokens = Listed(runs), batch()["input_ids"]
    with pytest.raises(InputError, match="must run 3 times in a forward pass, but runs more or less often"):
        seen(model, tokens)
    sites = find_sites(model, "resid.1")
    with Capture(model, sites) as capture:
        model(tokens).square().sum().backward()
    with pytest.raises(InputError, match="must run 3 times in a forward pass, but runs more or less often"):
        capture.rows(sites[0])


def test_a_pass_that_raised_an_error_does_not_count():
    model, tokens = Listed(), batch()["input_ids"]
    sites = find_sites(model, "resid.1")
    with Capture(model, sites) as capture:
        model.runs = (0, 9)
        with pytest.raises(IndexError):
            model(tokens)
        model.runs = (0, 1, 2, 3)
        model(tokens).square().sum().backward()
    assert len(capture.rows(sites[0]).tokens) == tokens.numel()


def test_the_path_of_a_shared_module_is_refused_and_not_measured_once():
    model, tokens = albert(1, 1), batch()["input_ids"]
    with pytest.raises(InputError, match="must run once in a forward pass"):
        seen(model, tokens, "albert.encoder.albert_layer_groups.0")


def test_the_gradient_of_a_shared_matrix_is_a_sum():
    shared, own = (find_matrices(build(name), "mlp.1")[0] for name in ("albert", "bert"))
    assert shared.tied
    assert shared.place == "Linear, run 3 times"
    assert not own.tied
