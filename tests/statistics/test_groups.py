import math

import pytest
import torch
from scipy import stats

from tangentlens.geometry.neighbours import nearest
from tangentlens.statistics.groups import compact_groups, linked_groups
from tangentlens.statistics.jackknife import jackknife_reach


def test_linked_rows_stay_together_and_groups_are_even(generator):
    x = torch.randn(2000, 3, generator=generator)
    neighbour = nearest(x, 1).indices[:, 0]
    group = linked_groups(neighbour)
    assert torch.equal(group, group[neighbour])
    counts = group.bincount()
    assert len(counts) == 64
    assert counts.max() < 1.5 * counts.min()


def test_compact_groups_keep_most_neighbours_and_are_dealt_over_the_whole_set(generator):
    x = torch.rand(4096, 2, generator=generator)
    group = compact_groups(x, size=16)
    assert (group == group[nearest(x, 1).indices[:, 0]]).float().mean() > 0.8
    counts = group.bincount()
    assert (len(counts), int(counts.min()), int(counts.max())) == (64, 64, 64)
    # Groups of one region would have means as spread as the cube itself.
    means = torch.stack([x[group == g].mean(dim=0) for g in range(64)])
    assert means.std(dim=0).max() < 0.5 * x.std(dim=0).max()


def test_the_error_of_a_mean_is_the_textbook_one(generator):
    x = torch.randn(640, generator=generator, dtype=torch.float64)
    each_alone = jackknife_reach(lambda mask: float(x[mask].mean()), torch.arange(640))
    expected = stats.ttest_1samp(x.numpy(), 0).confidence_interval()
    assert each_alone == pytest.approx((expected.high - expected.low) / 2, rel=1e-9)
    assert jackknife_reach(lambda mask: 0.0, torch.zeros(5, dtype=torch.int64)) == math.inf
