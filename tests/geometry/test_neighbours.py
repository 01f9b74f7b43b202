import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from tangentlens import InputError
from tangentlens.geometry import neighbours
from tangentlens.geometry.neighbours import distinct_rows, nearest, nearest_among


@pytest.fixture(autouse=True, params=["oneDNN", "MKL"])
def products(request, monkeypatch):
    """Which library multiplies depends on the processor; each test is for both."""
    monkeypatch.setattr(neighbours, "_onednn_is_faster", lambda: request.param == "oneDNN")


@pytest.mark.parametrize(("n", "d"), [(5, 2), (1500, 3), (2100, 20)])
def test_distances_are_those_of_a_kd_tree(n, d, generator):
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    expected, which = cKDTree(x.numpy()).query(x.numpy(), k=3)
    distances, indices = nearest(x, 2)
    np.testing.assert_allclose(distances, expected[:, 1:], rtol=1e-12)
    np.testing.assert_array_equal(indices, which[:, 1:])


def test_fp32_near_a_large_offset_still_finds_the_neighbours(generator):
    x = (torch.randn(800, 5, generator=generator) + 1e4).float()
    expected = cKDTree(x.double().numpy()).query(x.double().numpy(), k=3)[0][:, 1:]
    np.testing.assert_allclose(nearest(x, 2)[0], expected, rtol=1e-3)


def test_rows_that_are_made_anew_for_each_block_are_the_same_rows(generator, monkeypatch):
    x = torch.randn(1500, 6, generator=generator)
    kept = nearest(x, 2)
    monkeypatch.setattr(neighbours, "_CACHE", 0)
    assert torch.equal(nearest(x, 2).distances, kept.distances)


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-6, 1e6, 1e30])
def test_scale_does_not_matter(scale, generator):
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    scaled = nearest(scale * x, 2)
    assert torch.equal(scaled.indices, nearest(x, 2).indices)
    np.testing.assert_allclose(scaled.distances / scale, nearest(x, 2).distances, rtol=1e-9)


@pytest.mark.parametrize("k", [1, 7, 1200])
def test_many_neighbours_and_blocks_with_fewer_rows_than_that(k, generator):
    x = torch.randn(1300, 3, generator=generator, dtype=torch.float64)
    expected = cKDTree(x.numpy()).query(x.numpy(), k=k + 1)[0][:, 1:]
    np.testing.assert_allclose(nearest(x, k).distances, expected, rtol=1e-12)


@pytest.mark.parametrize(("n", "k"), [(2101, 3), (5000, 2), (1027, 40)])
def test_neighbours_of_rows_whose_number_no_block_or_chunk_divides(n, k, generator):
    x = torch.randn(n, 4, generator=generator)
    expected = cKDTree(x.double().numpy()).query(x.double().numpy(), k=k + 1)[1][:, 1:]
    np.testing.assert_array_equal(nearest(x, k).indices, expected)


def test_neighbours_that_lie_together_in_memory_are_all_found(generator):
    """All neighbours of a row may be in one chunk of columns."""
    x = torch.randn(100, 8, generator=generator, dtype=torch.float64).repeat_interleave(12, dim=0)
    x = x + 0.01 * torch.randn(1200, 8, generator=generator, dtype=torch.float64)
    expected = cKDTree(x.numpy()).query(x.numpy(), k=7)[1][:, 1:]
    np.testing.assert_array_equal(nearest(x, 6).indices, expected)


def test_massive_rows_do_not_make_the_others_uncertain(generator, monkeypatch):
    """They draw the mean of the rows away, and products around it would cancel."""
    x = torch.randn(1500, 60, generator=generator)
    x[:30] += 5000
    searched = []
    again = neighbours._Cloud.nearest_again
    monkeypatch.setattr(
        neighbours._Cloud,
        "nearest_again",
        lambda cloud, which, k: searched.append(len(which)) or again(cloud, which, k),
    )
    nearest(x, 2)
    assert sum(searched) < 100


def test_a_direction_that_drowns_the_others_in_fp32_does_not_hide_neighbours(generator):
    """As a rogue dimension of a language model does: neighbours differ in digits that fp32 products do not keep."""
    x = torch.randn(2500, 6, generator=generator, dtype=torch.float64)
    x[:, 0] *= 1e4
    x[:, 1:] *= 1e-1
    x[:, 0] = x[:, 0].round()
    expected = cKDTree(x.numpy()).query(x.numpy(), k=3)[0][:, 1:]
    np.testing.assert_allclose(nearest(x, 2)[0], expected, rtol=1e-9)


@pytest.mark.parametrize("gap", [1e2, 1e3, 3e3])
def test_rounding_that_may_decide_is_searched_again(gap, generator):
    """Clusters so far apart that fp32 is wrong for some rows only, those whose candidates lie close together."""
    x = torch.rand(4000, 2, generator=generator, dtype=torch.float64)
    x[2000:] += gap
    expected = cKDTree(x.numpy()).query(x.numpy(), k=3)[0][:, 1:]
    np.testing.assert_allclose(nearest(x, 2)[0], expected, rtol=1e-9)


@pytest.mark.parametrize("spread", [1e-8, 1e-10])
def test_near_duplicates_far_from_the_mean_are_told_apart_by_differences(spread, generator):
    """Where even fp64 products cancel: clusters of rows that differ in their last digits."""
    x = torch.randn(100, 20, generator=generator, dtype=torch.float64).repeat_interleave(8, dim=0)
    x = x + spread * torch.randn(800, 20, generator=generator, dtype=torch.float64)
    expected = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    np.testing.assert_allclose(nearest(x, 2).distances, expected.topk(2, largest=False).values, rtol=1e-12)


def test_signs_alone_make_rows_distinct(generator):
    x = torch.randint(0, 2, (200_000, 32), generator=generator).double() * 2 - 1
    assert len(distinct_rows(x)) == len(np.unique(x.numpy(), axis=0))


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="need at least 3 rows, but 2 came"):
        nearest(torch.zeros(2, 4), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distinct_rows_are_numpys_uniques(dtype, generator):
    x = torch.randint(0, 3, (500, 5), generator=generator).to(dtype) - 1.0
    x[7] = -x[7] * 0.0
    expected = np.sort(np.unique(x.numpy() + 0.0, axis=0, return_index=True)[1])
    np.testing.assert_array_equal(distinct_rows(x), expected)


def test_numbers_widened_from_a_short_format_do_not_collide(generator):
    x = torch.randn(20_000, 2, generator=generator).bfloat16().double()
    assert len(distinct_rows(x)) == len(np.unique(x.numpy(), axis=0))


def test_clusters_far_apart_in_fp32_keep_their_neighbours(generator):
    x = torch.randn(1000, 5, generator=generator)
    x[500:] += 1e4
    _, expected = cKDTree(x.double().numpy()).query(x.double().numpy(), k=3)
    np.testing.assert_array_equal(nearest(x, 2)[1], expected[:, 1:])


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("left", [0.02, 0.9, 0.995])
def test_neighbours_among_some_rows_are_those_of_these_rows_alone(left, k, generator):
    x = torch.randn(1500, 6, generator=generator)
    mask = torch.rand(1500, generator=generator) < left
    found, expected = nearest_among(x[mask], nearest(x, 3), mask, k), nearest(x[mask], k)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.distances, expected.distances)


def test_where_few_rows_are_left_all_others_are_neighbours(generator):
    x = torch.randn(50, 3, generator=generator)
    mask = torch.arange(50) < 3
    assert nearest_among(x[mask], nearest(x, 5), mask, 5).distances.shape == (3, 2)
