"""Networks that differ in one respect: the plain one is Llama, and each of the others is what its name says."""

import pytest
import torch

from tangentlens import InputError
from tangentlens.capture.sites import find_sites
from tangentlens.models.small import small_model
from tangentlens.models.variations import PLAIN, VARIATIONS, Design, VariedForCausalLM, _Lstm, _StateSpace
from tiny import tiny_batch, tiny_model


def network(name, seed=0):
    return tiny_model(name, seed)


def as_llama(plain):
    """The weights of the plain network under the names that Llama has for them."""
    names = {"mixer": "self_attn", "norms.0": "input_layernorm", "norms.1": "post_attention_layernorm"}
    state = {}
    for key, value in plain.state_dict().items():
        for ours, theirs in names.items():
            key = key.replace(f".{ours}.", f".{theirs}.")
        state[key if key.startswith("lm_head") else f"model.{key}"] = value
    return state


def test_the_plain_network_computes_what_llama_computes():
    plain, llama, batch = network(PLAIN), tiny_model("decoder", seed=1), tiny_batch()
    assert llama.load_state_dict(as_llama(plain)) is not None
    ours, theirs = plain(**batch), llama(**batch)
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.loss, theirs.loss)
    ours.loss.backward()
    theirs.loss.backward()
    torch.testing.assert_close(
        plain.layers[0].mixer.q_proj.weight.grad, llama.model.layers[0].self_attn.q_proj.weight.grad
    )


@pytest.mark.parametrize("name", VARIATIONS)
def test_no_network_sees_what_is_to_come_and_each_has_all_residual_sites(name):
    model, ids = network(name).eval(), tiny_batch()["input_ids"]
    later = ids.clone()
    later[:, 7:] = 3
    with torch.no_grad():
        one, other = model(ids).logits, model(later).logits
    torch.testing.assert_close(one[:, :7], other[:, :7], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(one[:, 7:], other[:, 7:])
    assert [site.name for site in find_sites(model, "resid")] == ["resid.0", "resid.1", "resid.2"]


@pytest.mark.parametrize("name", VARIATIONS)
def test_each_network_learns_and_the_seed_makes_its_weights(name):
    model, again, other = network(name), network(name), network(name, seed=1)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))
    assert not torch.equal(model.embed_tokens.weight, other.embed_tokens.weight)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=3e-3)
    losses = []
    for _ in range(25):
        loss = model(**tiny_batch()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.3


def test_what_a_design_says_is_so():
    assert network("untied embeddings").lm_head.weight is not network("untied embeddings").embed_tokens.weight
    plain, frozen = network(PLAIN), network("frozen attention")
    assert plain.lm_head.weight is plain.embed_tokens.weight
    still = [name for name, one in frozen.named_parameters() if not one.requires_grad]
    assert sorted({name.split(".", 2)[2] for name in still}) == ["mixer.k_proj.weight", "mixer.q_proj.weight"]
    # Without positions, attention takes the tokens before in any order.
    blind, ids = network("no positions").eval(), tiny_batch()["input_ids"]
    swapped = ids.clone()
    swapped[:, [0, 1]] = ids[:, [1, 0]]
    # With two layers, the second sees which tokens the first one saw, so one block is looked at.
    blind.layers, plain.layers = blind.layers[:1], plain.layers[:1]
    with torch.no_grad():
        same = [
            torch.allclose(model(ids).logits[:, 4:], model(swapped).logits[:, 4:], atol=1e-6)
            for model in (blind, plain)
        ]
    assert same == [True, False]
    learned = network("learned positions")
    assert learned.embed_positions.weight.shape == (16, 32)
    normed = network("post-norm")(tiny_batch()["input_ids"])
    assert torch.isfinite(normed.logits).all()


def test_post_norm_leaves_a_stream_of_unit_length():
    model, seen = network("post-norm"), []
    model.layers[-1].register_forward_hook(lambda _, args, output: seen.append(output))
    model(tiny_batch()["input_ids"])
    torch.testing.assert_close(seen[0].square().mean(dim=-1), torch.ones(8, 12), rtol=1e-3, atol=1e-3)


def test_a_residual_scale_multiplies_what_a_part_adds():
    small, plain = (VariedForCausalLM(design, 64, 1, 32, 16) for design in (Design(residual_scale=0.3), Design()))
    plain.load_state_dict(small.state_dict())
    added = []
    for model in (small, plain):
        block, norm, rows = (
            model.layers[0],
            model.layers[0].norms[0],
            torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0)),
        )
        block.mlp.down_proj.weight.data.zero_()
        added.append(block(rows) - rows)
        assert torch.allclose(added[-1], block.design.residual_scale * block.mixer(norm(rows)), atol=1e-6)
    assert torch.allclose(added[0], 0.3 * added[1], atol=1e-6)


def test_the_state_space_is_its_recurrence():
    torch.manual_seed(0)
    part = _StateSpace(4)
    x = torch.randn(2, 9, 4)
    decay, state, outputs = torch.exp(-part.rates.exp()), torch.zeros(2, 4, part.rates.shape[1]), []
    inside = part.in_proj(x)
    for t in range(9):
        state = decay * state + inside[:, t, :, None]
        outputs.append((part.weights * state).sum(dim=2))
    expected = part.o_proj((torch.stack(outputs, dim=1) + inside) * torch.nn.functional.silu(part.gate_proj(x)))
    torch.testing.assert_close(part(x), expected, rtol=1e-4, atol=1e-6)


def test_mean_attention_is_attention_with_equal_scores():
    mean, attention = VariedForCausalLM(VARIATIONS["mean attention"], 64, 1, 32, 16), network(PLAIN)
    mixer = attention.layers[0].mixer
    mixer.q_proj.weight.data.zero_()
    for name in ("v_proj", "o_proj"):
        getattr(mean.layers[0].mixer, name).load_state_dict(getattr(mixer, name).state_dict())
    rows = torch.randn(2, 7, 32)
    torch.testing.assert_close(mean.layers[0].mixer(rows), mixer(rows), rtol=1e-4, atol=1e-6)


def test_an_lstm_is_that_of_torch():
    part = _Lstm(8)
    x = torch.randn(2, 5, 8)
    cell, state = torch.nn.LSTMCell(8, 8), None
    cell.load_state_dict({key.removesuffix("_l0"): value for key, value in part.lstm.state_dict().items()})
    outputs = []
    for t in range(5):
        state = cell(x[:, t], state)
        outputs.append(state[0])
    torch.testing.assert_close(part(x), part.o_proj(torch.stack(outputs, dim=1)), rtol=1e-4, atol=1e-6)


def test_a_width_that_is_no_multiple_of_a_head_is_refused():
    with pytest.raises(InputError, match="multiple of 32"):
        small_model("LSTM", 64, 2, 40, 16, 1, 0)
