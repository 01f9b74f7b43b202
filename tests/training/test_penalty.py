"""A penalty on a model in training: what it is the mean of, and what it leaves alone."""

import copy

import pytest
import torch

import tangentlens as tl
from layouts import NanoGPT
from tangentlens import InputError
from tiny import tiny_batch, tiny_model


def trained(model, penalty=None, steps=4):
    """The losses of a short training, without the penalty that may have been added."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for step in range(steps):
        loss = model(**tiny_batch(step)).loss
        losses.append(loss.detach())
        (loss if penalty is None else loss + penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses)


def test_it_is_the_mean_of_the_term_over_sites():
    model, batch = tiny_model(), tiny_batch()
    with tl.Penalty(model, tl.regularisers.spectral, strength=0.5) as penalty:
        seen = model(**batch, output_hidden_states=True)
        value = penalty()
    # The last of the hidden states that transformers returns is behind the final norm.
    rows = [hidden.flatten(0, 1) for hidden in seen.hidden_states[:-1]]
    with tl.Penalty(model, "spectral", strength=0.5, sites=["resid.0", "resid.1"]) as penalty:
        model(**batch)
        some = penalty()
    assert float(some.detach()) == pytest.approx(
        0.25 * sum(float(tl.regularisers.spectral(one.detach())) for one in rows)
    )
    assert float(value.detach()) != pytest.approx(float(some.detach()))


@pytest.mark.parametrize("name", tl.regularisers.TERMS)
def test_training_against_it_lowers_it(name):
    term = {"bending": tl.regularisers.Bending(neighbours=4)}.get(name, name)
    model, batch = tiny_model(), tiny_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tl.Penalty(model, term, strength=1.0) as penalty:
        values = []
        for _ in range(12):
            model(**batch)
            values.append(penalty())
            values[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    assert values[-1] < values[0]


def test_a_strength_of_0_changes_nothing():
    torch.manual_seed(0)
    plain = tiny_model()
    watched = copy.deepcopy(plain)
    expected = trained(plain)
    with tl.Penalty(watched, "cosine", strength=0, max_tokens=16) as penalty:
        assert torch.equal(trained(watched, penalty), expected)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)


def test_padding_and_excluded_tokens_do_not_count():
    model, batch = tiny_model(), tiny_batch(batch=4)
    short = {name: ids[:, :8] for name, ids in batch.items()}
    padded = {"input_ids": batch["input_ids"].clone(), "attention_mask": torch.ones(4, 12)}
    padded["attention_mask"][:, 8:] = 0
    padded["input_ids"][:, 8:] = 1
    with tl.Penalty(model, "spectral", 1.0) as penalty:
        model(**short)
        expected = penalty()
        model(**padded)
        assert torch.allclose(penalty(), expected, rtol=1e-5)
    with tl.Penalty(model, "spectral", 1.0, exclude=(1,)) as penalty:
        model(input_ids=padded["input_ids"])
        assert torch.allclose(penalty(), expected, rtol=1e-5)


def test_a_sample_of_tokens_stands_for_all():
    model, batch = tiny_model(), tiny_batch(batch=64)
    values = []
    for most in (768, 256):
        with tl.Penalty(model, "cosine", 1.0, max_tokens=most) as penalty:
            model(**batch)
            values.append(float(penalty().detach()))
    assert values[0] != values[1]
    assert values[0] == pytest.approx(values[1], rel=0.2)


def test_a_term_that_remembers_is_one_for_each_site():
    term = tl.regularisers.IsoScore()
    model = tiny_model()
    with tl.Penalty(model, term, 1.0) as penalty:
        model(**tiny_batch())
        penalty().backward()
    assert term.running is None
    kept = [one.running for one in penalty._terms.values()]
    assert len(kept) == 3
    assert not torch.equal(kept[0], kept[1])


def test_under_autocast_it_is_computed_in_single_precision():
    model = tiny_model()
    with tl.Penalty(model, "cosine", 1.0) as penalty, torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**tiny_batch()).loss
        assert penalty().dtype == torch.float32
    assert torch.isfinite(loss)


def test_a_model_of_ones_own_and_a_loop_without_with():
    model = NanoGPT()
    penalty = tl.Penalty(model, "cosine", 0.1).start()
    tokens = tiny_batch()["input_ids"]
    for _ in range(2):
        _, loss = model(tokens, tokens)
        (loss + penalty()).backward()
    penalty.close()
    model(tokens, tokens)
    with pytest.raises(InputError, match="after a forward pass with gradients"):
        penalty()


def test_what_nobody_asked_for_is_not_kept():
    model = tiny_model()
    with tl.Penalty(model, "cosine", 1.0) as penalty:
        model(**tiny_batch(0))
        model(**tiny_batch(1))
        second = penalty()
        with torch.no_grad():
            model(**tiny_batch(2))
        with pytest.raises(InputError, match="there was none since the last time"):
            penalty()
        model(**tiny_batch(1))
        assert torch.equal(penalty(), second)


def test_bad_settings_are_told():
    model = tiny_model()
    for strength in (float("nan"), float("inf"), True):
        with pytest.raises(InputError, match="strength must be a finite number"):
            tl.Penalty(model, "cosine", strength)
    with pytest.raises(InputError, match="a regulariser must be one of cosine, spectral, isoscore, bending"):
        tl.Penalty(model, "curvature", 0.1)
    with pytest.raises(InputError, match="max_tokens"):
        tl.Penalty(model, "cosine", 0.1, max_tokens=1)
