"""A probe: its rows against a plain forward pass, and what is refused before training begins."""

import pytest
import torch
from torch import nn

from architectures import batch, build
from loops import n_hooks
from tangentlens import InputError
from tangentlens.capture import probe as module
from tangentlens.capture.probe import ProbeText
from tangentlens.capture.sites import find_sites
from tiny import tiny_batch, tiny_model

TOKENS = tiny_batch(7, batch=6)["input_ids"]


def hidden(model, **call):
    with torch.no_grad():
        return model.eval()(**call, output_hidden_states=True).hidden_states


@pytest.mark.parametrize("size", [2048, 30, 1])
def test_rows_are_those_of_a_forward_pass_in_evaluation_mode(size, monkeypatch):
    monkeypatch.setattr(module, "_TOKENS", size)
    model = build("gpt2").train()
    sites = find_sites(model, "resid.[012]")
    found = ProbeText.of(TOKENS, model).rows(model, sites)
    assert model.training
    assert n_hooks(model) == 0
    for site, expected in zip(sites, hidden(model, input_ids=TOKENS), strict=False):
        torch.testing.assert_close(found[site.name], expected.flatten(0, 1))


def test_tokens_that_do_not_count_are_left_out():
    model = tiny_model()
    (site,) = find_sites(model, "resid.1")
    mask = torch.ones_like(TOKENS)
    mask[2, 8:] = 0
    excluded = TOKENS[0, 5]
    text = ProbeText.of({"input_ids": TOKENS, "attention_mask": mask}, model, [int(excluded)], skip_first=2)
    keep = mask.bool() & TOKENS.ne(excluded)
    keep[:, :2] = False
    rows = text.rows(model, [site])["resid.1"]
    expected = hidden(model, input_ids=TOKENS, attention_mask=mask)[1][keep]
    torch.testing.assert_close(rows, expected)
    assert torch.equal(text.tokens(site), TOKENS[keep])
    assert torch.equal(text.sequences(site), torch.arange(6)[:, None].expand(6, 12)[keep])


def test_both_halves_of_an_encoder_decoder_have_their_own_tokens():
    model = build("t5")
    sites = find_sites(model, ["encoder.resid.1", "decoder.resid.1"])
    shorter = batch(size=6, length=5, seed=3)["input_ids"]
    text = ProbeText.of({"input_ids": TOKENS, "decoder_input_ids": shorter}, model)
    rows = text.rows(model, sites)
    assert [len(rows[site.name]) for site in sites] == [72, 30]
    assert torch.equal(text.tokens(sites[1]), shorter.flatten())
    with pytest.raises(
        InputError, match=r"must have decoder_input_ids if decoder.resid.1 is to be measured, but has i"
    ):
        ProbeText.of({"input_ids": TOKENS}, model).tokens(sites[1])


def test_a_model_of_ones_own_is_called_with_tokens_first():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.blocks = nn.Embedding(64, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, idx):
            x = self.token(idx)
            for block in self.blocks:
                x = block(x)
            return x

    model = Own()
    rows = ProbeText.of(TOKENS.tolist(), model).rows(model, find_sites(model, "resid.2"))
    torch.testing.assert_close(rows["resid.2"], model(TOKENS).flatten(0, 1).detach())


def test_the_hash_is_that_of_the_numbers_and_not_of_their_form():
    model = tiny_model()
    forms = [TOKENS, TOKENS.tolist(), TOKENS.int(), TOKENS.numpy(), {"input_ids": TOKENS}]
    assert len({ProbeText.of(form, model).sha256 for form in forms}) == 1
    others = [TOKENS[:5], TOKENS.flip(0), TOKENS.view(12, 6), {"input_ids": TOKENS, "attention_mask": TOKENS > 0}]
    assert len({ProbeText.of(form, model).sha256 for form in (TOKENS, *others)}) == 5


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        ([], r"a probe must be token ids \(sequences, length\), whole numbers, but its input_ids came as \(0,\)"),
        (torch.empty(8, 0, dtype=torch.long), r"came as \(8, 0\) of torch.int64; tokenize a text"),
        (TOKENS.float(), r"came as \(6, 12\) of torch.float32"),
        (TOKENS[0], r"came as \(12,\)"),
        ("some text", "the probe's input_ids must be numbers in a tensor"),
        ([[1, 2], [3]], "the probe's input_ids must be numbers in a tensor"),
        (TOKENS + 60, r"at least 0 and below the vocabulary's size, 64, but its input_ids are \d+ to 1\d\d; use the"),
        (TOKENS - 60, r"but its input_ids are -\d+ to"),
        (TOKENS - TOKENS.min() - 1, "but its input_ids are -1 to"),
        (TOKENS[:3], "must have at least 4 sequences with tokens that count, .* but has 3 of 3; pass more"),
        ({"input_ids": TOKENS, "attention_mask": torch.zeros_like(TOKENS)}, "but has 0 of 6"),
        ({"input_ids": TOKENS, "attention_mask": torch.ones(5, 12)}, r"attention_mask must have an entry for each of"),
        ({"tokens": TOKENS}, "a probe with names must have input_ids, but has tokens"),
    ],
)
def test_what_can_never_work_is_refused(probe, says):
    with pytest.raises(InputError, match=says):
        ProbeText.of(probe, tiny_model())


def test_excluding_every_token_is_refused():
    with pytest.raises(InputError, match="but has 0 of 6; pass more sequences, or exclude and skip less"):
        ProbeText.of(TOKENS, tiny_model(), exclude=range(64))
    with pytest.raises(InputError, match="but has 0 of 6"):
        ProbeText.of(TOKENS, tiny_model(), skip_first=12)


def test_a_model_that_cannot_be_called_with_it_says_why():
    model = build("lstm")
    with pytest.raises(InputError, match=r"token ids as its only argument it raised TypeError: .*'labels'.* mapping"):
        ProbeText.of(TOKENS, model).rows(model, find_sites(model, "embed"))
    rows = ProbeText.of({"input_ids": TOKENS, "labels": TOKENS}, model).rows(model, find_sites(model, "embed"))
    assert len(rows["embed"]) == 72
    model = build("gpt2")
    with pytest.raises(InputError, match=r"it raised IndexError: .*no longer than it takes"):
        ProbeText.of(TOKENS.repeat(1, 4), model).rows(model, find_sites(model, "embed"))
    assert n_hooks(model) == 0
