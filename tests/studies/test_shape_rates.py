import polars as pl
import pytest
import torch

from tangentlens.studies.shape_rates import NOISES, Noise, noise_of, shape_rates


@pytest.mark.parametrize(
    ("n", "batches", "sites"),
    [(12, (5,), (7,)), pytest.param(200, (2, 3, 5, 10), (7, 13, 31), marks=pytest.mark.calibration)],
)
def test_shapes_are_seldom_told_wrongly_and_enough_batches_tell_them(n, batches, sites):
    rates = shape_rates(n, batches, sites)
    assert rates["wrong"].max() <= 0.05, rates.filter(pl.col("wrong") > 0.05)
    told = rates.filter(pl.col("batches") == max(batches), pl.col("noise") == "normal", pl.col("profile") != "level")
    assert told["right"].min() >= 0.8, told


@pytest.mark.parametrize("scale", [0.1, pytest.param(0.05, marks=pytest.mark.calibration)])
def test_louder_noise_leaves_shapes_undecided_and_not_wrong(scale):
    rates = shape_rates(20, (2,), (7,), [Noise("loud", heavy=True, uneven=0.8, scale=scale)])
    assert rates["wrong"].max() <= 0.05, rates


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_noise_is_common_to_neighbours_and_as_loud_as_said(noise):
    drawn = noise_of(noise, 20_000, 13, torch.Generator().manual_seed(0))
    near, far = (float(torch.corrcoef(drawn[:, [0, other]].T)[0, 1]) for other in (1, 12))
    assert near > 0.5
    assert abs(far) < 0.1
    # With 3 degrees of freedom the variance is estimated badly, so the spread of the middle half is compared.
    middle = 1.349 * 0.02 if not noise.heavy else 1.53 * 0.02 / 3**0.5
    spread = (drawn.quantile(0.75, dim=0) - drawn.quantile(0.25, dim=0)).log()
    assert float(spread.mean().exp()) == pytest.approx(middle, rel=0.1 if not noise.uneven else 0.6)
    assert float(spread.std()) == pytest.approx(noise.uneven, abs=0.35)
