import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError, Moments, anisotropy


def naive(x, center, power):
    singular = torch.linalg.svdvals(x - x.mean(dim=0) if center else x)
    return float(singular[0] ** power / (singular**power).sum())


@given(st.integers(2, 20), st.integers(1, 8), st.booleans(), st.sampled_from([1, 2]), st.integers(0, 99))
def test_equals_the_definition_by_singular_values(n, d, center, power, seed):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1
    expected = pytest.approx(naive(x, center, power), abs=1e-6)
    assert anisotropy(x, center=center, power=power) == expected
    assert anisotropy(Moments.of(x), center=center, power=power) == expected


@pytest.mark.parametrize(
    ("n", "d", "seed", "value"),
    # Printed by calculate_anisotropy_torch of llm-microscope 0.0.7 (PyPI) on the same rows, with torch 2.13.0.
    [(50, 10, 1, 0.29324301000575564), (200, 64, 2, 0.06488625004855458), (20, 40, 3, 0.16417319409802242)],
)
def test_equals_llm_microscope(n, d, seed, value):
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=make, dtype=torch.float64) * torch.rand(d, generator=make) + 0.5
    assert anisotropy(x) == pytest.approx(value, rel=1e-9)
    assert anisotropy(x.float()) == pytest.approx(value, rel=1e-5)


def test_does_not_change_under_rotation_scale_and_order(generator):
    x = torch.randn(100, 6, generator=generator, dtype=torch.float64) * torch.arange(1, 7)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    expected = pytest.approx(anisotropy(x), rel=1e-9)
    assert anisotropy(7 * x @ rotation + 3) == expected
    assert anisotropy(x.flip(0)) == expected


def test_a_line_is_one_and_a_cross_is_even():
    assert anisotropy([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]]) == pytest.approx(1)
    assert anisotropy(torch.cat([torch.eye(4), -torch.eye(4)])) == pytest.approx(1 / 4)


def test_bad_input_says_what_to_do():
    with pytest.raises(InputError, match="all are equal"):
        anisotropy(torch.ones(5, 3))
    with pytest.raises(InputError, match="power must be 1 or 2"):
        anisotropy(torch.eye(3), power=3)
    with pytest.raises(InputError, match="at least 1 rows"):
        anisotropy(torch.zeros(0, 3))
