import pytest
import torch

from tangentlens import InputError, anisotropy, local_anisotropy


def cone(n_clusters=12, per_cluster=300, d=30, seed=0):
    """Clusters strung along a curved cone, each of them isotropic: stretched as a whole, round inside."""
    make = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 3, n_clusters, dtype=torch.float64)
    axis = torch.zeros(n_clusters, d, dtype=torch.float64)
    axis[:, 0], axis[:, 1], axis[:, 2] = 20 * t, 6 * t.sin(), 6 * t.cos()
    return axis.repeat_interleave(per_cluster, dim=0) + torch.randn(
        n_clusters * per_cluster, d, generator=make, dtype=torch.float64
    )


def test_a_cone_of_round_clusters_is_anisotropic_as_a_whole_only():
    x = cone()
    found = local_anisotropy(x, n_clusters=12)
    assert anisotropy(x) > 0.8
    assert found.matched > 0.8
    assert found.value < 0.1
    assert found.n_clusters == 12


def test_what_is_stretched_everywhere_is_stretched_inside_clusters():
    """A long thin cloud cut across stays thin; one that is stretched in each part has both numbers alike."""
    x = cone(d=30)
    x[:, 5] *= 40
    found = local_anisotropy(x, n_clusters=4)
    assert found.value > 0.5 * found.matched


def test_few_rows_alone_do_not_look_like_structure():
    """Isotropic rows, n < d inside clusters: the anisotropy is far above 1/d, inside clusters and at random alike."""
    x = torch.randn(400, 100, generator=torch.Generator().manual_seed(0))
    found = local_anisotropy(x, n_clusters=16)
    assert found.value > 3 / 100
    assert found.value == pytest.approx(found.matched, rel=0.2)


def test_the_mean_is_over_rows_and_equal_rows_are_left_out():
    pair, triple = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[90.0, 1.0], [90.0, -1.0], [91.0, 0.0]])
    same = torch.full((4, 2), -500.0)
    found = local_anisotropy(torch.cat([pair, triple, same]), n_clusters=3)
    assert found.n_clusters == 2
    assert found.value == pytest.approx((2 * 1 + 3 * anisotropy(triple)) / 5)


def test_bad_input_says_what_to_do():
    with pytest.raises(InputError, match="between 1 and half the number of rows, 5, but is 6"):
        local_anisotropy(torch.randn(10, 3), n_clusters=6)
    with pytest.raises(InputError, match="must differ inside clusters"):
        local_anisotropy(torch.ones(10, 3), n_clusters=2)
