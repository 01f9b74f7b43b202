import numpy as np
import pytest
import torch

from tangentlens import InputError, Moments, alpha_req


def with_spectrum(values):
    """Rows whose covariance has these eigenvalues exactly."""
    root = torch.tensor(values, dtype=torch.float64).sqrt()
    d = len(root)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    half = torch.diag(root * d**0.5) @ rotation
    return torch.cat([half, -half])


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_a_power_law_has_its_exponent(alpha):
    x = with_spectrum([j**-alpha for j in range(1, 41)])
    assert alpha_req(x) == pytest.approx(alpha, rel=1e-6)
    assert alpha_req(Moments.of(x), ranks=(5, 20)) == pytest.approx(alpha, rel=1e-6)


def test_equals_weighted_least_squares_by_numpy():
    values = sorted(np.random.default_rng(0).random(20) + 0.01, reverse=True)
    rank = np.arange(3, 16)
    # numpy squares the weights it is given.
    slope = np.polyfit(np.log(rank), np.log(values[2:15]), 1, w=rank**-0.5)[0]
    assert alpha_req(with_spectrum(values), ranks=(3, 15)) == pytest.approx(-slope, rel=1e-6)


def test_rounding_is_not_part_of_the_spectrum():
    assert alpha_req(with_spectrum([1, 0.5, 1 / 3, 1e-13, 1e-14])) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("ranks", [(0, 3), (3, 3), (2, 99)])
def test_ranks_that_are_not_there_are_refused(ranks):
    with pytest.raises(InputError, match="1 <= first < last <= 5"):
        alpha_req(with_spectrum([5, 4, 3, 2, 1]), ranks=ranks)
