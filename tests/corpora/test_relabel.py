"""Labels in place of token types: the distribution changes, the text does not."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.relabel import Relabelling
from tangentlens.training.tempering import entropy

ZIPF = TokenCounts((100_000 / torch.arange(1, 401) ** 1.1).long())


def text_of(counts):
    return torch.arange(len(counts.counts)).repeat_interleave(counts.counts)


def parts(labels, counts):
    """How many tokens of each type a label is expected to have, place by place on the line: slow and plain."""
    line, fine = torch.zeros(len(counts.counts), labels.size, dtype=torch.float64), 2000
    for kind, count in enumerate(counts.counts.tolist()):
        places = labels.start[kind] + labels.length[kind] * (torch.arange(fine) + 0.5) / fine
        line[kind] = count * places.long().bincount(minlength=labels.size) / fine
    return line


def test_at_alpha_1_types_are_their_own_labels():
    labels = Relabelling.of(ZIPF, 1.0)
    assert labels.first.tolist() == labels.last.tolist() == list(range(400))
    assert labels.part_of_first.tolist() == [1.0] * 400


@pytest.mark.parametrize("alpha", [0.75, 0.5, 0.0])
def test_labels_of_a_type_are_as_frequent_as_its_tempered_count(alpha):
    labels = Relabelling.of(ZIPF, alpha)
    counts = labels.apply(text_of(ZIPF), seed=0).bincount(minlength=labels.size).double()
    assert labels.size == 400
    n = ZIPF.counts.double()
    # The count of a label in the middle of each type, with the scale by which all labels together have all tokens.
    expected = n**alpha * (n ** (1 - alpha)).sum() / 400
    middle = (labels.start + labels.length / 2).long()
    inside = (labels.last - labels.first) > 1
    torch.testing.assert_close(counts[middle][inside], expected[inside], rtol=0.15, atol=0)
    torch.testing.assert_close(counts.sum(), n.sum())


def test_at_alpha_0_all_labels_are_equally_frequent():
    labels = Relabelling.of(ZIPF, 0.0)
    counts = labels.apply(text_of(ZIPF), seed=0).bincount(minlength=labels.size)
    assert entropy(counts) == pytest.approx(math.log(400), abs=1e-3)


@given(st.lists(st.integers(0, 200), min_size=2, max_size=30), st.sampled_from([0.0, 0.3, 0.9, 1.0]))
def test_parts_are_those_of_the_tokens_on_the_line(numbers, alpha):
    if not any(numbers):
        return
    counts = TokenCounts(torch.tensor(numbers))
    labels = Relabelling.of(counts, alpha)
    line = parts(labels, counts)
    part = line / line.sum(dim=0).clamp_min(1e-9)
    kinds = counts.counts.nonzero()[:, 0]
    torch.testing.assert_close(part[kinds, labels.first[kinds]], labels.part_of_first[kinds], atol=0.02, rtol=0)
    torch.testing.assert_close(part[kinds, labels.last[kinds]], labels.part_of_last[kinds], atol=0.02, rtol=0)
    read = labels.apply(text_of(counts), seed=1)
    text = text_of(counts)
    assert bool((read >= labels.first[text]).all())
    assert bool((read <= labels.last[text]).all())
    assert labels.size == len(numbers)


@pytest.mark.parametrize("alpha", [0.9, 0.5, 0.0])
def test_probabilities_of_all_types_sum_to_1(alpha, generator):
    labels = Relabelling.of(ZIPF, alpha)
    logits = torch.randn(1, labels.size, generator=generator).expand(400, -1)
    assert float(labels.log_probabilities(logits, torch.arange(400)).exp().sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("alpha", [0.75, 0.0])
def test_a_network_that_knows_frequencies_alone_has_the_loss_of_the_text_itself(alpha):
    """Splitting and merging neither add to the loss nor take from it, if it is told per token of the text."""
    labels, text = Relabelling.of(ZIPF, alpha), text_of(ZIPF)[::370]
    frequencies = ZIPF.counts.double() / ZIPF.counts.sum()
    of_label = parts(labels, ZIPF).sum(dim=0)
    told = labels.log_probabilities(of_label.log().expand(len(text), -1), text)
    torch.testing.assert_close(told, frequencies.log()[text], rtol=0.01, atol=0)


def test_an_alpha_beyond_0_and_1_is_refused():
    for alpha in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="alpha must be from 0 to 1"):
            Relabelling.of(ZIPF, alpha)
