import math

import numpy as np
import pytest
import torch
from scipy import stats

from tangentlens import InputError, anisotropy
from tangentlens.geometry.rows import group_products
from tangentlens.geometry.spectrum.anisotropy import anisotropy_replicates
from tangentlens.statistics.bootstrap import bootstrap_interval, bootstrap_means, cluster_bootstrap
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.jackknife import (
    jackknife,
    jackknife_over,
    jackknife_reach,
    jackknife_reach_of_sum,
    jackknives,
    leave_one_out,
    log_odds,
    log_share,
    replicate,
    share_jackknife,
)


def test_groups_hold_whole_sequences_of_even_number():
    sequences = torch.tensor([7, 7, 3, 3, 9, 11, 11, 20])
    assert sequence_groups(sequences, 2).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert sequence_groups(sequences, 99).tolist() == [1, 1, 0, 0, 2, 3, 3, 4]
    with pytest.raises(InputError, match="at least 2 of them, but 1 came"):
        sequence_groups(torch.zeros(5, dtype=torch.long), 4)


def test_for_a_mean_it_is_students_interval(generator):
    values = torch.randn(12, generator=generator, dtype=torch.float64)
    parts = torch.stack([values, torch.ones(12, dtype=torch.float64)], dim=1)[:, None]
    found = jackknife(replicate(lambda total: total[0, 0] / total[0, 1], leave_one_out(parts)))
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert (found.value, found.ci_low, found.ci_high) == pytest.approx((float(values.mean()), low, high))


def test_a_share_stays_between_zero_and_one():
    wide = share_jackknife(torch.tensor([0.98, 0.99, 0.80, 0.999, 0.7]))
    assert 0 < wide.ci_low < wide.value < wide.ci_high < 1
    sure = share_jackknife(torch.ones(5))
    assert (sure.ci_low, sure.ci_high) == pytest.approx((1, 1))


def test_products_of_groups_add_up_to_the_whole(generator):
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    groups = torch.randint(0, 5, (30,), generator=generator)
    groups[groups == 3] = 1
    parts = group_products(x, groups, 5)
    assert not parts[3].any()
    torch.testing.assert_close(parts.sum(dim=0), x.T @ x)


def test_anisotropy_replicates_are_anisotropies_without_each_group(generator):
    x = torch.randn(60, 5, generator=generator, dtype=torch.float64) * torch.arange(1, 6) + 9
    sequences = torch.arange(60) // 10
    expected = [anisotropy(x)] + [anisotropy(x[sequences != s]) for s in range(6)]
    np.testing.assert_allclose(anisotropy_replicates(x, sequences), expected, rtol=1e-9)


def test_it_covers_when_tokens_of_a_sequence_depend_on_each_other(generator):
    """A share with a known population value, 40 sequences that each lean their own way: near 95%, as it says."""
    covered = 0
    for _ in range(200):
        lean = torch.randn(40, 1, 6, generator=generator, dtype=torch.float64)
        x = (lean + 0.5 * torch.randn(40, 15, 6, generator=generator, dtype=torch.float64)).flatten(0, 1)
        parts = group_products(x, torch.arange(600) // 15, 40)
        found = share_jackknife(replicate(lambda c: c[:2, :2].trace() / c.trace(), leave_one_out(parts)))
        covered += found.ci_low <= 1 / 3 <= found.ci_high
    assert 180 <= covered <= 199


def test_groups_that_hold_none_of_the_rows_are_not_counted(generator):
    """Three of sixteen groups hold the rows: as good as three groups, not sixteen."""
    x = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    few, many = (group_products(x, torch.arange(60) // 20 * step, 3 * step) for step in (1, 5))
    energy = lambda c: c[:2, :2].trace() / c.trace()  # noqa: E731
    held = many.diagonal(dim1=1, dim2=2).sum(dim=1)
    expected = share_jackknife(replicate(energy, leave_one_out(few)), held[held > 0])
    found = share_jackknife(replicate(energy, leave_one_out(many)), held)
    assert (found.ci_low, found.ci_high) == pytest.approx((expected.ci_low, expected.ci_high))


def test_one_group_that_outweighs_all_others_does_not_cancel_them(generator):
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    x[:10] *= 1e12
    totals = leave_one_out(group_products(x, torch.arange(40) // 10, 4))
    replicates = replicate(lambda c: c[0, 0] / c.trace(), totals)
    rest = x[10:].square().sum(dim=0)
    assert float(replicates[1]) == pytest.approx(float(rest[0] / rest.sum()))


def test_the_bootstrap_of_a_mean_is_close_to_students_interval(generator):
    values = torch.randn(40, generator=generator, dtype=torch.float64)
    sums = torch.stack([values, torch.ones(40, dtype=torch.float64)], dim=1)
    drawn = cluster_bootstrap(sums, n_draws=4000)
    found = bootstrap_interval(drawn[:, 0] / drawn[:, 1], 40)
    low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
    assert (found.value, found.ci_low, found.ci_high) == pytest.approx((float(values.mean()), low, high), abs=0.02)


def test_the_jackknife_sees_a_bias_that_falls_with_the_number_of_groups(generator):
    """The square of a mean is biased by its variance; the interval is around what that leaves."""
    covered = 0
    for _ in range(200):
        values = torch.randn(10, generator=generator, dtype=torch.float64)
        means = torch.stack([values.mean(), *(values[torch.arange(10) != i].mean() for i in range(10))])
        found = jackknife(means.square())
        assert found.ci_low <= found.value <= found.ci_high
        unbiased = values.mean() ** 2 - values.var() / 10
        middle = (found.ci_low + found.ci_high) / 2
        assert middle == pytest.approx(float(unbiased), abs=1e-9) or found.ci_high == found.value
        covered += found.ci_low <= 0 <= found.ci_high
    assert covered > 180


def test_students_law_has_as_many_degrees_as_there_are_groups_in_effect():
    replicates = torch.tensor([0.5, 0.51, 0.48, 0.53, 0.47], dtype=torch.float64)
    alike = jackknife(replicates)
    same = jackknife(replicates, torch.ones(4))
    assert (same.ci_low, same.ci_high) == pytest.approx((alike.ci_low, alike.ci_high))
    uneven, effective = jackknife(replicates, torch.tensor([4.0, 2.0, 1.0, 1.0])), 64 / 22
    stretch = stats.t.ppf(0.975, effective - 1) / stats.t.ppf(0.975, 3)
    assert uneven.ci_high - uneven.ci_low == pytest.approx(stretch * (alike.ci_high - alike.ci_low))
    # Two sets of rows are compared: the one with fewer groups in effect decides.
    assert jackknife(replicates, torch.ones(4), torch.tensor([4.0, 2.0, 1.0, 1.0])) == uneven


def test_there_is_no_interval_over_less_than_two_groups_in_effect_or_without_an_estimate():
    replicates = torch.tensor([0.5, 0.51, 0.48, 0.53], dtype=torch.float64)
    for found in (
        jackknife(replicates, torch.tensor([9.0, 1.0, 1.0])),
        jackknife(replicates.index_fill(0, torch.tensor([2]), float("nan"))),
    ):
        assert found.value == 0.5
        assert np.isnan([found.ci_low, found.ci_high]).all()
    outside = share_jackknife(torch.tensor([-0.01, 0.02, 0.01, -0.03]))
    assert np.isnan([outside.value, outside.ci_low, outside.ci_high]).all()


@pytest.mark.parametrize(("strong", "off"), [(1.0, 0.12), (1.5, 0.03), (8.0, 1e-4)])
def test_intervals_of_anisotropy_are_those_of_exact_replicates(strong, off, generator):
    """At a width at which leading directions are sought in a small space: pure noise is the worst case."""
    x = torch.randn(1024, 200, generator=generator)
    x[:, :2] *= strong
    sequences = torch.arange(1024) // 32
    group = sequence_groups(sequences, 16)
    exact = torch.tensor([anisotropy(x), *(anisotropy(x[group != one]) for one in range(16))], dtype=torch.float64)
    found, expected = share_jackknife(anisotropy_replicates(x, sequences)), share_jackknife(exact)
    assert found.value == pytest.approx(expected.value, rel=1e-6)
    assert found.ci_high - found.ci_low == pytest.approx(expected.ci_high - expected.ci_low, rel=off)


def test_several_estimates_at_once_are_those_one_by_one():
    make = torch.Generator().manual_seed(0)
    replicates = torch.randn(5, 9, generator=make, dtype=torch.float64)
    replicates[1, 0], replicates[2, 4], replicates[3, 2] = math.inf, math.inf, math.nan
    energy = torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0, 2.0, 2.0, 1.0])
    together = jackknives(replicates, energy)
    for one, found in zip(replicates, together, strict=True):
        value, left_out = float(one[0]), one[1:][energy > 0]
        low, high = math.nan, math.nan
        if bool(one[0].isfinite()) and bool(left_out.isfinite().all()):
            degrees = float(energy.sum() ** 2 / energy.square().sum()) - 1
            error = math.sqrt(6 / 7 * float((left_out - left_out.mean()).square().sum()))
            reach, center = float(stats.t.ppf(0.975, degrees)) * error, value + 6 * (value - float(left_out.mean()))
            low, high = min(value, center - reach), max(value, center + reach)
        numbers = (found.value, found.ci_low, found.ci_high)
        assert numbers == pytest.approx((value, low, high), nan_ok=True)


def test_a_function_of_a_sum_has_the_reach_of_the_same_function_of_rows(generator):
    terms = torch.rand(50, generator=generator, dtype=torch.float64) + 0.1
    # Labels 2 and 5 have no rows, and are no groups.
    group = torch.tensor([0, 1, 3, 4, 6])[torch.randint(0, 5, (50,), generator=generator)]
    expected = jackknife_reach(lambda mask: math.log(float(mask.sum() / terms[mask].sum())), group)
    assert jackknife_reach_of_sum(lambda total, n: math.log(n / total), terms, group) == pytest.approx(expected)
    # One term that outweighs all others does not cancel them.
    terms[group == 3] *= 1e17
    expected = jackknife_reach(lambda mask: math.log(float(mask.sum() / terms[mask].sum())), group)
    assert jackknife_reach_of_sum(lambda total, n: math.log(n / total), terms, group) == pytest.approx(expected)


def test_two_groups_have_a_reach_and_one_group_or_an_infinite_estimate_has_none():
    two, ones = torch.tensor([0, 1, 1]), torch.ones(3)
    halves = stats.t.ppf(0.975, 1) * math.sqrt(1 / 2 * (0.5**2 + 0.5**2))
    assert jackknife_reach_of_sum(lambda total, n: total, ones, two) == pytest.approx(halves)
    assert jackknife_reach(lambda mask: float(mask.sum()), two) == pytest.approx(halves)
    assert jackknife_reach_of_sum(lambda total, n: total, ones, torch.zeros(3).long()) == math.inf
    assert jackknife_reach_of_sum(lambda total, n: math.inf if n == 1 else total, ones, two) == math.inf
    assert jackknife_reach(lambda mask: math.nan, two) == math.inf
    found = jackknife_over(lambda mask: float(mask.sum()), two, over="anchors")
    assert (found.value, found.ci_low, found.ci_high) == pytest.approx((3, 3 - halves, 3 + halves))
    assert found.ci_over == "anchors"


def test_shares_outside_of_0_and_1_by_more_than_rounding_have_no_logarithm():
    shares = torch.tensor([0.25, 0.0, -1e-10, -1e-8, 1.0, 1 + 1e-10, 1 + 1e-8], dtype=torch.float64)
    nothing = math.log(1e-12)
    logs = [math.log(0.25), nothing, nothing, math.nan, 0.0, 1e-10, 1e-8]
    assert log_share(shares).tolist() == pytest.approx(logs, nan_ok=True)
    all_of_it = math.log((1 - 1e-12) / 1e-12)
    odds = [math.log(1 / 3), -all_of_it, -all_of_it, math.nan, all_of_it, all_of_it, math.nan]
    assert log_odds(shares).tolist() == pytest.approx(odds, nan_ok=True, rel=1e-4)


def test_bootstrap_means_are_over_the_rows_of_the_sequences_that_are_drawn(generator):
    values = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    sequences = torch.tensor([5, 5, 2, 2, 2, 9, 9, 9, 9])
    means, n_sequences = bootstrap_means(values, sequences, seed=3)
    drawn = torch.randint(0, 3, (400, 3), generator=torch.Generator().manual_seed(3))
    rows = [values[sequences == one] for one in (2, 5, 9)]
    expected = [values.mean(dim=0), *(torch.cat([rows[one] for one in draw]).mean(dim=0) for draw in drawn.tolist())]
    assert n_sequences == 3
    torch.testing.assert_close(means, torch.stack(expected))
