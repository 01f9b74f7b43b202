"""What the checks of the audit say of borderline numbers: no more than the interval allows."""

import math
from types import SimpleNamespace

import pytest
import torch

from tangentlens import Subspace
from tangentlens.alignment import checks
from tangentlens.alignment.audit_data import AuditData
from tangentlens.alignment.chart_test import ChartTest
from tangentlens.alignment.rows import TokenRows
from tangentlens.statistics.interval import Interval

BORDERLINE = [
    ((1.0, 1.0001, 1.01), "within 5% of"),
    ((1.2, 0.9, 1.6), "not significantly different from"),
    ((1.3, 1.2, 1.4), "significantly above"),
    ((0.7, 0.6, 0.8), "significantly below"),
]


@pytest.fixture(scope="module")
def on():
    make = torch.Generator().manual_seed(0)
    rows, gradients = torch.randn(2, 400, 16, generator=make, dtype=torch.float64)
    fit, test = TokenRows.of(rows, gradients, torch.arange(400) // 10).halves()
    return AuditData(fit, test, rank=4, dimension=2, seed=0)


@pytest.mark.parametrize(("ratio", "word"), BORDERLINE)
def test_curvature(on, ratio, word, monkeypatch):
    planted = SimpleNamespace(
        along=lambda proxy: Interval(0.1, 0.1, 0.1),
        along_ratio=lambda proxy, control: Interval(*ratio),
        rms_curvature=Interval(0.1, 0.1, 0.1),
        dimension=2,
        k=64,
        radius=1.0,
        resolved=True,
    )
    monkeypatch.setattr(checks, "local_geometry", lambda *_, **__: planted)
    means = checks.curvature_along_the_proxy(on).means
    assert means == f"the curvature along the proxy is {word} that along random directions"


@pytest.mark.parametrize(("ratio", "word"), BORDERLINE)
def test_ranks(on, ratio, word, monkeypatch):
    monkeypatch.setattr(checks, "jackknife", lambda _: Interval(*ratio).log())
    assert checks.rank_sweep(on).means == f"its share is {word} chance at ranks: 2, 4, 8; {word} pca at ranks: 2, 4, 8"


@pytest.mark.parametrize(("ratio", "word"), BORDERLINE)
def test_proxies_of_other_steps(on, ratio, word, monkeypatch):
    monkeypatch.setattr(checks, "share_jackknife", lambda _: Interval(*ratio).times(4 / 16))
    earlier = {f"step {step}": Subspace.span(torch.eye(16, dtype=torch.float64)[step : step + 4]) for step in (0, 4)}
    means = checks.fitted_elsewhere(on, earlier).means
    assert means == f"their share of these gradients is {word} chance: step 0, step 4"


@pytest.mark.parametrize(("ratio", "word"), BORDERLINE)
def test_other_conditions(on, ratio, word, monkeypatch):
    found = iter([Interval(*ratio).times(0.2), *[Interval(0.2, 0.2, 0.2)] * 3])
    monkeypatch.setattr(checks, "share_jackknife", lambda _: next(found))
    monkeypatch.setattr(checks, "jackknife", lambda _: Interval(*ratio).log())
    theirs = TokenRows.of(on.test.activations, on.test.gradients, on.test.sequences)
    assert checks.against(on, "noise", theirs).means == (
        f"the share of this proxy on these gradients is {word} that of the proxy of noise on its own gradients, and "
        f"{word} that of the proxy of noise on these gradients"
    )


def charts(mean, *single):
    """A chart test whose log-ratios are planted, and one of permuted gradients, whose mean ratio is 1."""

    class Planted(ChartTest):
        def log_ratio(self, order=1.0):
            return Interval(*mean).log()

    half = {order: torch.full((5,), 0.5) for order in (1.0, 2.0)}
    ratios = {str(number): Interval(*ratio).log() for number, ratio in enumerate(single)}
    made = Planted(rank=2, dim=16, own=half, swapped=half, energy=torch.ones(4), log_ratios=ratios)
    return made, ChartTest(rank=2, dim=16, own=half, swapped=half, energy=torch.ones(4), log_ratios=ratios)


@pytest.mark.parametrize(("ratio", "word"), BORDERLINE)
def test_charts_on_average(on, ratio, word, monkeypatch):
    planted = iter(charts(ratio, *[ratio] * 6))
    monkeypatch.setattr(checks, "chart_test", lambda *_: next(planted))
    means = checks.own_and_swapped_charts(on).means
    assert means.startswith("on average over charts, the share of a chart's gradients in its own plane is " + word)
    assert ("global subspace" in means) == (word == "significantly above")
    assert means.endswith(f"Chart by chart, it is {word} that in other charts' planes in 6 of 6 charts")


def test_of_six_charts_three_are_not_all(on, monkeypatch):
    single = [(1.3, 1.2, 1.4)] * 3 + [(1.2, 0.9, 1.6)] * 2 + [(1.0, 1.0001, 1.01)]
    planted = iter(charts((1.2, 1.1, 1.3), *single))
    monkeypatch.setattr(checks, "chart_test", lambda *_: next(planted))
    check = checks.own_and_swapped_charts(on)
    assert check.means.endswith(
        ". Chart by chart, it is significantly above that in other charts' planes in 3 of 6 charts, within 5% of it in "
        "1 and not significantly different from it in 2"
    )
    assert [name for name in check.estimates if "chart" in name] == [f"log_ratio of chart {n}" for n in range(6)]
    assert check.estimates["log_ratio of chart 0"].ci_low == pytest.approx(math.log(1.2))
