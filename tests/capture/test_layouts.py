"""Portable site names in models that people write themselves, against a stream that is recorded by hand."""

import pytest
import torch
from torch import nn

from architectures import LAYERS, batch, build
from layouts import LAYOUTS, PAIRS, Pairs, loss_of
from tangentlens import InputError
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tangentlens.capture.sublayers import sublayer_blocks

# Blocks of one layer each.
SINGLE = {"x_transformers_irregular": 3, "x_transformers_shared": 4}
WHOLE = [name for name in LAYOUTS if name not in SINGLE]
TOKENS = batch()["input_ids"]


def captured(model, wanted):
    sites = find_sites(model, wanted)
    with Capture(model, sites) as capture:
        loss_of(model, TOKENS).backward()
    return {site.name: capture.rows(site) for site in sites}


def stream_by_hand(model):
    loss_of(model, TOKENS).backward()
    return [(state.detach().flatten(0, 1), state.grad.flatten(0, 1)) for state in model.states]


def check_stream(model, wanted="resid"):
    expected, found = stream_by_hand(model), captured(model, wanted)
    assert list(found) == [f"resid.{i}" for i in range(len(expected))]
    for rows, (activations, gradients) in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(rows.activations, activations)
        torch.testing.assert_close(rows.gradients, gradients)
        assert gradients.any()
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_residual_stream_and_its_gradients_are_those_recorded_by_hand(name):
    assert len(check_stream(build(name))) == SINGLE.get(name, LAYERS) + 1


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "x_transformers_post_norm"])
def test_what_blocks_add_makes_the_next_state(name):
    rows = {site: found.activations for site, found in captured(build(name), ["resid", "attn", "mlp"]).items()}
    assert len(rows) == 3 * LAYERS + 1
    for i in range(LAYERS):
        expected = rows[f"resid.{i}"] + rows[f"attn.{i}"] + rows[f"mlp.{i}"]
        torch.testing.assert_close(rows[f"resid.{i + 1}"], expected)


def test_what_a_block_adds_is_half_way_through_it():
    found = {site.name: site.depth for site in find_sites(build("nanogpt"), ["attn", "mlp"])}
    expected = {f"{kind}.{i}": (i + 0.5) / LAYERS for i in range(LAYERS) for kind in ("attn", "mlp")}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_embedding_and_the_final_norm_have_names(name):
    model = build(name)
    names = [site.name for site in find_sites(model, "*")]
    assert ("final" in names) == (name != "x_transformers_post_norm")
    assert captured(model, "embed")["embed"].gradients.any()
    depths = [site.depth for site in find_sites(model, "resid")]
    assert depths == [i / (len(depths) - 1) for i in range(len(depths))]


def test_a_list_with_another_number_of_kinds_is_no_list_of_sublayers():
    parent = build("x_transformers").attn_layers
    layers = list(parent.layers)
    assert sublayer_blocks(parent, layers)
    parent.layer_types = (*parent.layer_types, "a")
    assert sublayer_blocks(parent, layers) == []


def test_of_an_unknown_layout_the_error_says_what_it_has_and_how_to_name_the_stream():
    with pytest.raises(InputError, match="a site must exist in the model, but 'resid' does not") as error:
        find_sites(Pairs(), "resid")
    for told in (
        "lists of modules: layers (3 of ModuleList);",
        "embeddings: embedding (64 x 32);",
        "sites={'resid.0': 'layers.0.0:input', 'resid.1': 'layers.1.0:input', ...}",
    ):
        assert told in str(error.value)


@pytest.mark.parametrize("wanted", [PAIRS, lambda model: PAIRS if isinstance(model, Pairs) else {}])
def test_a_stream_named_by_module_paths_is_that_recorded_by_hand(wanted):
    torch.manual_seed(0)
    check_stream(Pairs(), wanted)
    sites = find_sites(nn.DataParallel(Pairs()), wanted)
    assert [site.depth for site in sites] == [i / LAYERS for i in range(LAYERS + 1)]


def test_names_may_be_of_any_point_and_say_their_depth_if_they_can():
    named = {"embed": "embedding", "attn.1": "layers.1.1", "resid.3": "last:input", "normed": "last:output"}
    sites = find_sites(Pairs(), named)
    assert [site.name for site in sites] == list(named)
    assert [site.depth for site in sites] == [0.0, 0.5, 1.0, None]
    assert [site.side for site in sites] == ["output", "output", "input", "output"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "at least one site must be named"),
        ({"resid.0": "layers.0.9"}, "'layers.0.9' is none; the nearest are layers.0"),
        ({"resid.0": "embedding:before"}, "with ':input' for what enters one, but 'embedding:before' is none"),
        ({"resid.0": "layers.0"}, "must be at a module that runs, but layers.0 is a ModuleList"),
        (lambda model: {"resid.0": 3}, "must map names"),
        ({"mean": "embedding"}, "other than 'mean'"),
        ({"embed:input": "embedding"}, "without ':'"),
        (lambda model: 3, "must be a name or a list of names, but 3 came"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(wanted, message):
    with pytest.raises(InputError, match=message):
        find_sites(Pairs(), wanted)
