"""Linear probes: known answers, a second implementation, and what they refuse."""

import numpy as np
import pytest
import torch

from tangentlens import InputError
from tangentlens.geometry.linear_probe import linear_probe


def in_sequences(n, length=10):
    return torch.arange(n) // length


def test_the_skill_is_that_of_a_plain_weighted_ridge_regression(generator):
    """Each half by itself, with numpy, row by row."""
    rows = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    labels = ((rows[:, 0] + 0.7 * torch.randn(400, generator=generator)) > 0.8).long() * 3
    found = linear_probe(rows, labels, in_sequences(400))
    fit, test = in_sequences(400) % 2 == 0, in_sequences(400) % 2 == 1
    x, y = rows[fit].numpy(), labels[fit].numpy()
    x = x - x.mean(axis=0)
    weight = np.where(y == 3, 1 / (y == 3).sum(), 1 / (y == 0).sum()) / 2
    ones = np.hstack([x, np.ones((len(x), 1))])
    gram = sum(w * np.outer(row, row) for w, row in zip(weight, ones, strict=True))
    ridge = 1e-3 * np.trace(gram[:5, :5]) / 5
    gram += np.diag([ridge] * 5 + [0])
    by_class = [np.linalg.solve(gram, ones.T @ (weight * (y == kind))) for kind in (0, 3)]
    held = np.hstack([rows[test].numpy() - rows[fit].numpy().mean(axis=0), np.ones((int(test.sum()), 1))])
    told = np.where(held @ by_class[1] > held @ by_class[0], 3, 0)
    recalls = [np.mean(told[labels[test].numpy() == kind] == kind) for kind in (0, 3)]
    assert list(found.recall.values()) == pytest.approx(recalls)
    assert found.skill.value == pytest.approx(2 * np.mean(recalls) - 1)


def test_a_class_that_rows_show_is_told_and_one_that_they_do_not_is_not(generator):
    rows = torch.randn(4000, 6, generator=generator)
    clear = rows[:, :3].argmax(dim=1)
    hidden = torch.randint(3, (4000,), generator=generator)
    assert linear_probe(rows, clear, in_sequences(4000)).skill.value > 0.85
    nothing = linear_probe(rows, hidden, in_sequences(4000)).skill
    assert nothing.ci_low < 0 < nothing.ci_high


def test_a_rare_class_counts_as_much_as_a_frequent_one(generator):
    """Always telling the frequent class is right for 95% of rows, and has no skill."""
    rows = torch.randn(4000, 4, generator=generator)
    rare = (torch.rand(4000, generator=generator) < 0.05).long()
    assert abs(linear_probe(rows, rare, in_sequences(4000)).skill.value) < 0.2


def test_scale_and_rotation_do_not_matter(generator):
    rows = torch.randn(600, 6, generator=generator, dtype=torch.float64)
    labels, turn = rows[:, 0] > 0.2, torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    one, other = (linear_probe(x, labels, in_sequences(600)) for x in (rows, 1e-6 * rows @ turn + 3e-6))
    assert other.skill.value == pytest.approx(one.skill.value)


def test_an_interval_over_sequences_is_wider_where_rows_of_a_sequence_are_alike(generator):
    noise = torch.randn(4000, 1, generator=generator)
    labels = torch.randint(2, (4000,), generator=generator)
    common = noise[:100].repeat_interleave(40, dim=0)
    alike, apart = (
        linear_probe(labels[:, None] + 2 * x, labels, in_sequences(4000, 40)).skill for x in (common, noise)
    )
    assert alike.ci_high - alike.ci_low > 1.5 * (apart.ci_high - apart.ci_low)


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(100), (torch.arange(100) >= 95).long(), torch.full((100,), -1)],
    ids=["one class", "a class in one half", "nothing counted"],
)
def test_without_two_classes_in_both_halves_there_is_no_probe(labels, generator):
    with pytest.raises(InputError, match="at least two classes, each in both halves"):
        linear_probe(torch.randn(100, 4, generator=generator), labels.long(), in_sequences(100))


def test_equal_rows_tell_nothing():
    labels = torch.arange(100) % 2
    assert linear_probe(torch.ones(100, 4), labels, in_sequences(100)).skill.value == pytest.approx(0.0)


def test_rows_left_out_do_not_count(generator):
    rows, labels = torch.randn(400, 4, generator=generator), torch.arange(400) % 2
    with_others = torch.cat([labels, torch.full((100,), -1)])
    other = torch.cat([rows, 100 * torch.randn(100, 4, generator=generator)])
    found = linear_probe(other, with_others, in_sequences(500))
    assert found.n_test == 200
    assert found.skill == linear_probe(rows, labels, in_sequences(400)).skill


def test_labels_are_whole_numbers(generator):
    rows, sequences = torch.randn(80, 3, generator=generator), torch.arange(80) // 10
    assert linear_probe(rows, (rows[:, 0] > 0).float(), sequences).skill.value > 0.5
    with pytest.raises(InputError, match="labels must be whole numbers"):
        linear_probe(rows, rows[:, 0], sequences)
