"""Flatter distributions of tokens: three ways to make them, and what they refuse."""

import pytest
import torch

from tangentlens import InputError
from tangentlens.corpora.counts import TokenCounts
from tangentlens.training.tempering import WAYS, entropy, tempered, weighted_loss

VOCABULARY = 60


@pytest.fixture
def sequences():
    """Frequencies by Zipf's law. Rare types come together, so that drawing sequences again can make them frequent."""
    # Not the seed by which labels are drawn, which would then depend on the tokens.
    generator = torch.Generator().manual_seed(11)
    law = 1 / torch.arange(1.0, VOCABULARY + 1)
    mostly_rare = torch.arange(400)[:, None] % 4 == 0
    flat = torch.full_like(law, 1.0)
    drawn = [
        (flat if rare else law).multinomial(16, replacement=True, generator=generator) for rare in mostly_rare[:, 0]
    ]
    return torch.stack(drawn)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_makes_the_distribution_flatter(way, sequences):
    entropies = [tempered(way, alpha, sequences, VOCABULARY, batch=4).entropy for alpha in (1.0, 0.5, 0.0)]
    as_it_is = entropy(TokenCounts.of([sequences], VOCABULARY).counts)
    assert entropies[0] == pytest.approx(as_it_is, abs=0.02)
    assert entropies[0] < entropies[1] < entropies[2]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_sequences_come_out_each_time(way, sequences):
    one, other = (tempered(way, 0.5, sequences, VOCABULARY, batch=4) for _ in range(2))
    assert torch.equal(one.sequences, other.sequences)


def test_weights_make_the_loss_that_of_tempered_frequencies(sequences, generator):
    """The mean loss of each type, weighted by p^alpha, computed type by type."""
    text = tempered("reweighted", 0.5, sequences, VOCABULARY, batch=4)
    logits = torch.randn(*sequences.shape, VOCABULARY, generator=generator)
    losses = -logits[:, :-1].log_softmax(dim=2).gather(2, sequences[:, 1:, None])[..., 0]
    targets = sequences[:, 1:]
    powers = TokenCounts.of([sequences], VOCABULARY).counts.double() ** -0.5
    expected = (losses * powers[targets]).sum() / powers[targets].sum()
    found = weighted_loss(logits, sequences, text.weights)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert float(text.weights.double()[sequences].mean()) == pytest.approx(1.0)


def test_relabelled_text_is_read_by_its_labels_and_its_loss_told_per_token(sequences):
    text = tempered("relabelled", 0.0, sequences, VOCABULARY, batch=4)
    read = text.read(sequences[:8])
    assert bool((read >= text.labels.first[sequences[:8]]).all())
    assert bool((read <= text.labels.last[sequences[:8]]).all())
    # Equal scores for labels that are equally frequent are the frequencies of the text.
    frequencies = TokenCounts.of([sequences], VOCABULARY).tempered(1.0)
    told = text.labels.loss(torch.zeros(8, 16, text.vocabulary), sequences[:8])
    assert told == pytest.approx(-float(frequencies.log()[sequences[:8, 1:]].mean()))


@pytest.mark.parametrize(("way", "what"), [("resampled", "sequences"), ("reweighted", "tokens")])
def test_a_tempering_that_leaves_too_little_is_refused(way, what):
    """One type that occurs once has nearly all the weight of a text of 30,000 tokens of another."""
    sequences = torch.zeros(2000, 16, dtype=torch.long)
    sequences[7, 3] = 1
    with pytest.raises(InputError, match=rf"must leave at least \d+ {what} in effect"):
        tempered(way, 0.0, sequences, 2, batch=4)


def test_an_unknown_way_is_refused(sequences):
    with pytest.raises(InputError, match="did you mean resampled"):
        tempered("resample", 0.5, sequences, VOCABULARY, batch=4)
