import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError, Moments
from tangentlens.geometry.rows import gram


def rows(n, d, seed, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 99))
def test_streaming_in_any_pieces_equals_numpy_on_all_rows(sizes, d, seed):
    pieces = [rows(n, d, seed + i) + seed for i, n in enumerate(sizes)]
    whole = torch.cat(pieces).numpy()
    if not len(whole):
        return
    moments = Moments(d)
    for piece in pieces:
        moments.update(piece)
    np.testing.assert_allclose(moments.mean, whole.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(moments.covariance(), np.cov(whole.T, bias=True).reshape(d, d), atol=1e-9)
    np.testing.assert_allclose(moments.second_moment(), whole.T @ whole / len(whole), atol=1e-9 * (1 + seed) ** 2)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 99))
def test_merging_equals_concatenating(n, m, seed):
    a, b = rows(n, 3, seed), rows(m, 3, seed + 1) * 5 + 2
    merged = Moments(3).update(a).merge(Moments(3).update(b))
    whole = Moments.of(torch.cat([a, b]))
    assert merged.count == whole.count
    torch.testing.assert_close(merged.scatter, whole.scatter, atol=1e-9, rtol=0)


def test_where_a_condition_fails_there_are_no_rows():
    moments = Moments.of(rows(9, 3, 0) + 5)
    assert moments.where(torch.tensor(True)).scatter.equal(moments.scatter)
    assert moments.where(torch.tensor(True)).count == 9
    none = moments.where(torch.tensor(False))
    assert (none.count, none.mean.any(), none.scatter.any()) == (0, False, False)


def test_spectrum_is_numpys_and_descends():
    x = rows(50, 6, 0)
    expected = np.sort(np.linalg.eigvalsh(np.cov(x.numpy().T, bias=True)))[::-1]
    np.testing.assert_allclose(Moments.of(x).spectrum(), expected, atol=1e-12)


def test_a_spectrum_is_of_all_rows_seen_so_far_and_ones_own_to_change():
    a, b = rows(50, 6, 0), 3 * rows(50, 6, 1)
    moments = Moments.of(a)
    moments.spectrum().zero_()
    np.testing.assert_allclose(moments.spectrum(), Moments.of(a).spectrum())
    np.testing.assert_allclose(moments.update(b).spectrum(), Moments.of(torch.cat([a, b])).spectrum(), rtol=1e-9)


def test_fewer_rows_than_features_give_zeros_not_negatives():
    spectrum = Moments.of(rows(3, 8, 0)).spectrum()
    assert (spectrum >= 0).all()
    assert (spectrum[2:] < 1e-12).all()


def test_an_offset_of_ten_thousand_spreads_costs_no_digits_in_fp32():
    x = rows(500, 4, 0)
    shifted = (x + 1e4).float()
    truth = np.cov(shifted.double().numpy().T, bias=True)
    np.testing.assert_allclose(Moments.of(shifted).covariance(), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_short_formats_are_accumulated_in_longer_ones(dtype):
    x = rows(3000, 3, 0, dtype) + 8
    truth = np.cov(x.double().numpy().T, bias=True)
    np.testing.assert_allclose(Moments.of(x).covariance(), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.zeros(3), "must be (n_rows, n_features), but the shape is (3,)"),
        (torch.tensor([[1.0, float("nan"), 0.0, 0.0], [0.0] * 4]), "1 of 2 rows hold NaN or Inf"),
        (torch.zeros(2, 5), "these moments are of 4 features, but 5 came"),
    ],
)
def test_what_cannot_be_added_is_refused_and_nothing_is_lost(x, says):
    moments = Moments(4).update(torch.ones(2, 4))
    with pytest.raises(InputError) as error:
        moments.update(x)
    assert says in str(error.value)
    assert moments.count == 2


def test_moments_of_nothing_have_no_covariance():
    with pytest.raises(InputError, match="seen no rows"):
        Moments(4).covariance()


def test_the_rounding_of_a_mean_in_fp32_is_put_back():
    """At an offset of 1e6 fp32 holds the mean to 0.06 only, which would add to every entry of the covariance."""
    x = (rows(2000, 3, 0) + 1e6).float()
    truth = np.cov(x.double().numpy().T, bias=True)
    np.testing.assert_allclose(Moments.of(x).covariance(), truth, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_squares_that_fp32_cannot_hold_are_not_lost(scale):
    x = rows(200, 4, 0).float()
    np.testing.assert_allclose(
        Moments.of(x * scale).covariance() / scale**2, Moments.of(x).covariance(), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("d", [1, 255, 256, 258, 301])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_product_in_blocks_is_the_product(d, dtype, generator):
    rows = torch.randn(40, d, generator=generator, dtype=dtype)
    found = gram(rows, out=torch.full((d, d), torch.nan, dtype=dtype))
    torch.testing.assert_close(found, rows.T @ rows)
