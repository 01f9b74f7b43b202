"""Massive rows: found where they were planted, at any scale, and in nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tangentlens as tl
from tangentlens.geometry.massive import Places, check_threshold
from tangentlens.geometry.measures import Cloud


def _cloud(n: int = 500, d: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_planted_rows_are_found_and_no_other():
    rows = _cloud()
    rows[[3, 77, 400]] *= 60
    found = tl.massive_rows(rows)
    assert found.mask.nonzero()[:, 0].tolist() == [3, 77, 400]
    assert found.count == 3
    lengths = rows.double().norm(dim=1)
    assert found.largest == pytest.approx(float(lengths.max() / lengths.median()), rel=1e-3)


def test_a_plain_way_to_leave_them_out_of_any_measure():
    clean = _cloud()
    dirty = torch.cat([clean, 1000 * torch.ones(2, 16)])
    assert tl.anisotropy(dirty) > 0.99
    assert tl.anisotropy(dirty[~tl.massive_rows(dirty).mask]) == pytest.approx(tl.anisotropy(clean))


def test_a_large_common_mean_is_not_massive():
    assert tl.massive_rows(_cloud() + 1e4).count == 0


@given(exponent=st.integers(-30, 30), double=st.booleans())
def test_scale_and_precision_do_not_matter(exponent, double):
    rows = _cloud(60).double() if double else _cloud(60)
    rows[5] *= 50
    assert tl.massive_rows(rows * 10.0**exponent).mask.nonzero()[:, 0].tolist() == [5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype):
    rows = _cloud(60)
    rows[5] = 3e4
    assert tl.massive_rows(rows.to(dtype)).count == 1


def test_mostly_zero_rows_have_no_massive_ones():
    rows = torch.zeros(10, 4)
    rows[0] = 1
    found = tl.massive_rows(rows)
    assert found.count == 0
    assert found.largest == 0


def test_threshold_is_in_multiples_of_the_median():
    rows = torch.ones(11, 4)
    rows[0] = 7
    assert tl.massive_rows(rows, threshold=6.9).count == 1
    assert tl.massive_rows(rows, threshold=7.1).count == 0


@pytest.mark.parametrize("threshold", [1.0, 0.0, -3.0, float("nan")])
def test_thresholds_that_make_no_sense_are_refused(threshold):
    with pytest.raises(tl.InputError, match="threshold must be a number above 1"):
        tl.massive_rows(_cloud(), threshold)


@pytest.mark.parametrize("threshold", ["10", None, 0.5])
def test_what_is_no_threshold_is_refused_by_the_name_that_it_has_there(threshold):
    with pytest.raises(tl.InputError, match="massive must be a number above 1"):
        check_threshold(threshold, "massive")


def test_rows_that_are_not_finite_are_refused():
    rows = _cloud()
    rows[0, 0] = float("inf")
    with pytest.raises(tl.InputError, match="finite"):
        tl.massive_rows(rows)


def test_places_say_where_massive_rows_are_and_add_up():
    rows = _cloud(40)
    rows[[0, 20, 21]] *= 100
    positions, tokens = torch.arange(40) % 20, torch.arange(40) // 10
    places = Places.of(tl.massive_rows(rows), positions, tokens)
    assert places == Places({0: 2, 1: 1}, {0: 1, 2: 2})
    assert (places + places).told(lambda token: f"<{token}>") == (
        "at positions 0 (4 times), 1 (2 times); tokens <2> (4 times), <0> (2 times)"
    )


def test_places_that_are_not_known_are_not_told():
    rows = _cloud(40)
    rows[0] *= 100
    unknown = torch.full((40,), -100)
    assert Places.of(tl.massive_rows(rows), unknown, unknown).told() == ""


def test_many_places_are_counted_and_not_listed():
    assert Places({}, dict.fromkeys(range(9), 1)).told().endswith("4 (once) and 4 others")


@pytest.mark.parametrize("factor", [50, 200, 1000])
def test_every_measure_without_them_is_that_of_clean_rows(factor):
    """33 sinks of 4,096 rows decide the anisotropy, and the number of directions in use falls to 1."""
    make = torch.Generator().manual_seed(0)
    clean = torch.randn(4096, 128, generator=make) * torch.arange(1, 129) ** -0.5
    dirty = clean.clone()
    sink = torch.nn.functional.normalize(torch.randn(128, generator=make), dim=0)
    dirty[:33] = factor * clean.norm(dim=1).median() * (1 + 0.1 * torch.rand(33, 1, generator=make)) * sink
    keep = ~tl.massive_rows(dirty).mask
    assert (~keep).nonzero()[:, 0].tolist() == list(range(33))
    assert tl.anisotropy(dirty) > 0.9
    assert tl.participation_ratio(dirty) < 1.2
    for measure in (tl.anisotropy, tl.participation_ratio, tl.effective_rank, tl.isoscore, tl.stable_rank):
        assert measure(dirty[keep]) == pytest.approx(measure(clean[33:]))
    cloud = Cloud(dirty, torch.arange(4096), torch.arange(4096) // 64)
    assert cloud.held_of_anisotropy > 0.95
    assert cloud.without_massive().held_of_anisotropy < 0.1
    assert tl.local_anisotropy(dirty).matched > 4 * tl.local_anisotropy(dirty[keep]).matched
