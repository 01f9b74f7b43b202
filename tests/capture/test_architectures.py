"""Portable site names on every architecture, against the library's own hidden states and the residual sum."""

import re

import pytest
import torch
import transformers

from architectures import HUGGING_FACE, LAYERS, WIDTH, batch, build
from tangentlens.capture.batch import objective_of
from tangentlens.capture.forward import activations
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tangentlens.errors import InputError

POST_NORM = ("bert", "roberta", "albert")
# The families of the preset `shape-of-learning`; SmolLM2 and Llama-2 are Llamas.
PRESET = ("bert", "roberta", "albert", "opt", "llama", "gpt2", "gptj", "falcon", "gpt_neox", "eurobert")


def names(model):
    return [site.name for site in find_sites(model, "*")]


def captured(model, wanted, **more):
    sites = find_sites(model, wanted)
    with Capture(model, sites, objective=objective_of(model)) as capture:
        model(**batch(), **more).loss.backward()
    return {site.name: capture.rows(site) for site in sites}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_the_residual_stream_is_what_the_library_calls_hidden_states(name):
    model = build(name)
    out = model(**batch(), output_hidden_states=True)
    halves = {"": "hidden_states"} if name != "t5" else {f"{h}.": f"{h}_hidden_states" for h in ("encoder", "decoder")}
    rows = captured(model, "resid")
    for prefix, states in halves.items():
        hidden = getattr(out, states)
        if name == "mamba":
            # It lists the stream after each block, where the others list it before.
            hidden = (model.backbone.embeddings(batch()["input_ids"]), *hidden[:LAYERS])
        found = [rows[f"{prefix}resid.{i}"] for i in range(len(hidden))]
        # Where there is a final norm, the last hidden state is its output.
        normed = f"{prefix}final" in names(model) and name != "mamba"
        for i, (mine, theirs) in enumerate(zip(found, hidden, strict=True)):
            if i < len(hidden) - 1 or not normed:
                torch.testing.assert_close(mine.activations, theirs.flatten(0, 1))
            assert mine.gradients.shape == (28, WIDTH)
            assert mine.gradients.any()
    if "" in halves:
        assert list(rows) == [f"resid.{i}" for i in range(LAYERS + 1)]


@pytest.mark.parametrize("name", PRESET)
def test_a_forward_pass_without_head_gives_the_hidden_states_to_the_last_bit(name):
    """As a profile takes them. Of models with a final norm, the last hidden state is its output: the site `final`."""
    model, tokens = build(name).base_model, batch()["input_ids"]
    with torch.no_grad():
        hidden = model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), output_hidden_states=True
        ).hidden_states
    residual = [f"resid.{i}" for i in range(LAYERS + 1)]
    assert [site.name for site in find_sites(model, "resid")] == residual
    seen = {}
    sites = find_sites(model, ["resid", *(["final"] if name not in POST_NORM else [])])
    activations(model, sites, tokens, torch.ones_like(tokens).bool(), lambda site, rows: seen.update({site.name: rows}))
    if name == "opt":
        # With a narrow embedding, OPT projects the stream back to its width after the final norm.
        assert hidden[-1].shape[-1] < WIDTH
    else:
        assert torch.equal(seen["resid.3" if name in POST_NORM else "final"], hidden[-1].flatten(0, 1))
    for site, theirs in zip(residual[:-1], hidden, strict=False):
        assert torch.equal(seen[site], theirs.flatten(0, 1))


@pytest.mark.parametrize("name", [name for name in HUGGING_FACE if name not in POST_NORM] + ["transformer"])
def test_what_blocks_add_makes_the_next_state(name):
    model = build(name).eval() if name != "transformer" else build(name)
    stream = re.compile(r"(encoder\.|decoder\.)?(resid|attn|cross|mixer|mlp)\.\d+")
    found = captured(model, [name for name in names(model) if stream.fullmatch(name)])
    rows = {key: rows.activations for key, rows in found.items()}
    prefixes = ("encoder.", "decoder.") if name == "t5" else ("",)
    for prefix in prefixes:
        blocks = 2 if prefix == "decoder." else LAYERS
        for i in range(blocks):
            added = [rows[key] for kind in ("attn", "cross", "mixer", "mlp") if (key := f"{prefix}{kind}.{i}") in rows]
            assert len(added) == (1 if name == "mamba" else 3 if prefix == "decoder." else 2)
            torch.testing.assert_close(rows[f"{prefix}resid.{i + 1}"], rows[f"{prefix}resid.{i}"] + sum(added))


@pytest.mark.parametrize("name", POST_NORM)
def test_what_post_norm_blocks_add_makes_the_next_state_through_their_norms(name):
    model = build(name)
    rows = {key: found.activations for key, found in captured(model, ["resid", "attn", "mlp"]).items()}
    for i in range(LAYERS):
        if name == "albert":
            layer = model.albert.encoder.albert_layer_groups[0].albert_layers[0]
            first, second = layer.attention.LayerNorm, layer.full_layer_layer_norm
        else:
            layer = model.base_model.encoder.layer[i]
            first, second = layer.attention.output.LayerNorm, layer.output.LayerNorm
        expected = second(rows[f"mlp.{i}"] + first(rows[f"attn.{i}"] + rows[f"resid.{i}"]))
        torch.testing.assert_close(rows[f"resid.{i + 1}"], expected)


@pytest.mark.parametrize("name", [*HUGGING_FACE, "lstm", "transformer"])
def test_the_embedding_and_the_ends_have_names(name):
    model = build(name)
    prefix = "decoder." if name == "t5" else ""
    assert {f"{prefix}embed", f"{prefix}resid.0", f"{prefix}resid.1"} <= set(names(model))
    assert (f"{prefix}final" in names(model)) == (name not in (*POST_NORM, "lstm"))
    depths = [site.depth for site in find_sites(model, "resid")]
    assert (depths[0], depths[-1]) == (0, 1)


def test_an_lstm_has_its_input_and_output():
    model = build("lstm")
    rows = captured(model, "resid")
    tokens = batch()["input_ids"]
    torch.testing.assert_close(rows["resid.0"].activations, model.embed(tokens).flatten(0, 1))
    torch.testing.assert_close(rows["resid.1"].activations, model.rnn(model.embed(tokens))[0].flatten(0, 1))
    assert rows["resid.1"].gradients.any()


def test_the_two_halves_of_an_encoder_decoder_have_their_own_tokens_and_targets():
    model, tokens = build("t5"), batch()["input_ids"]
    labels = torch.randint(4, 60, (4, 5))
    labels[1, 3:] = -100
    sites = find_sites(model, ["encoder.resid.1", "decoder.resid.1", "decoder.block.0"])
    with Capture(model, sites, objective=objective_of(model)) as capture:
        model(input_ids=tokens, labels=labels).loss.backward()
    encoder, decoder, by_path = (capture.rows(site) for site in sites)
    assert torch.equal(by_path.tokens, decoder.tokens)
    assert torch.equal(encoder.tokens, tokens.flatten())
    assert (encoder.targets == -100).all()
    keep = labels != -100
    shifted = torch.cat([torch.zeros(4, 1, dtype=torch.long), labels[:, :-1]], dim=1)
    assert torch.equal(decoder.tokens, shifted[keep])
    assert torch.equal(decoder.targets, labels[keep])
    assert len(decoder.sequences.unique()) == 4


def test_shared_layers_are_told_apart_by_the_times_they_run():
    model = build("albert")
    places = [site.place for site in find_sites(model, "resid")]
    assert places[-1] == "output of AlbertLayerGroup, time 3 of 3"
    tokens = batch()["input_ids"]
    hidden = model(input_ids=tokens, output_hidden_states=True).hidden_states
    seen = {}
    sites = find_sites(model, "resid")
    activations(model, sites, tokens, torch.ones_like(tokens).bool(), lambda site, rows: seen.update({site.name: rows}))
    for i in range(LAYERS + 1):
        torch.testing.assert_close(seen[f"resid.{i}"], hidden[i].flatten(0, 1))


def test_tied_embeddings_are_one_matrix_at_two_places():
    model = build("llama")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    rows = captured(model, ["embed", "resid.0"])
    assert torch.equal(rows["embed"].gradients, rows["resid.0"].gradients)


def test_lists_side_by_side_are_no_blocks():
    config = transformers.XLMConfig(vocab_size=64, emb_dim=WIDTH, n_layers=LAYERS, n_heads=4)
    with pytest.raises(InputError, match="'resid' does not"):
        find_sites(transformers.XLMWithLMHeadModel(config), "resid")


def test_of_a_model_of_images_and_text_the_text_is_looked_at():
    config = transformers.Gemma3Config(
        text_config=HUGGING_FACE["gemma2"][2] | {"num_hidden_layers": 2},
        vision_config={"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16},
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    assert objective_of(model) == "causal"
    sites = {site.name: site for site in find_sites(model, ["embed", "resid"])}
    assert list(sites) == ["embed", "resid.0", "resid.1", "resid.2"]
    assert sites["embed"].module is model.get_input_embeddings()
