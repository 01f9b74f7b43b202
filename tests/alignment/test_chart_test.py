import math

import pytest
import torch

from tangentlens import InputError, share
from tangentlens.alignment.chart_test import chart_test
from tangentlens.proxies.charts import charts
from tangentlens.statistics.groups import sequence_groups


def made(seed=0, n=1600, d=16):
    make = torch.Generator().manual_seed(seed)
    centers = 8 * torch.randn(4, d, generator=make, dtype=torch.float64)
    cluster = torch.multinomial(torch.tensor([1.0, 2.0, 3.0, 4.0]), n, replacement=True, generator=make)
    rows = centers[cluster] + torch.randn(n, d, generator=make, dtype=torch.float64)
    gradients = torch.randn(n, d, generator=make, dtype=torch.float64) * torch.arange(1, d + 1) ** -0.5
    return rows, gradients, torch.arange(n) // 20


def naive_order_2(gradients, plane, groups):
    moments = [gradients[groups == group].T @ gradients[groups == group] for group in groups.unique()]
    between = sum(one @ other for one in moments for other in moments if one is not other)
    return float((plane.basis.T @ between @ plane.basis).trace() / between.trace())


def test_own_and_swapped_are_means_over_charts_and_over_the_other_planes():
    rows, gradients, sequences = made()
    found = charts(rows[:800], n_charts=4, rank=3)
    test = chart_test(found, found.assign(rows[800:]), gradients[800:], sequences[800:])
    chart = found.assign(rows[800:])
    for order, taken_share in ((1.0, share), (2.0, naive_order_2)):
        own, swapped = [], []
        for number in found.planes:
            mine = gradients[800:][chart == number]
            here = (order,) if order == 1.0 else (sequence_groups(sequences[800:], 16)[chart == number],)
            taken = {other: taken_share(mine, plane, *here) for other, plane in found.planes.items()}
            own.append(taken.pop(number))
            swapped.append(sum(taken.values()) / len(taken))
        assert test.share("own", order).value == pytest.approx(sum(own) / len(own), rel=1e-6)
        assert test.share("swapped", order).value == pytest.approx(sum(swapped) / len(swapped), rel=1e-6)
        if order == 1.0:
            assert test.wins == sum(mine > others for mine, others in zip(own, swapped, strict=True))
            ratios = [math.log(mine / others) for mine, others in zip(own, swapped, strict=True)]
            assert [ratio.value for ratio in test.log_ratios.values()] == pytest.approx(ratios, rel=1e-6)
            assert all(ratio.ci_low < ratio.value < ratio.ci_high for ratio in test.log_ratios.values())
    assert test.n_charts == len(found.planes)


def test_gradients_of_one_chart_alone_are_refused():
    rows, gradients, sequences = made()
    found = charts(rows[:800], n_charts=4, rank=3)
    gradients[800:][found.assign(rows[800:]) != next(iter(found.planes))] = 0
    with pytest.raises(
        InputError, match="at least 2 charts must not be zero in 3 groups of sequences, but those of 1 of"
    ):
        chart_test(found, found.assign(rows[800:]), gradients[800:], sequences[800:])
