import pytest
import torch

from tangentlens import InputError, Subspace, manifolds
from tangentlens.geometry.curvature.tangents import local_tangents


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_planes_of_a_sphere_are_orthogonal_to_its_radius(offset):
    rows = manifolds.sphere(8000, dimension=2, dim=10).rows
    planes = local_tangents(rows + offset, rows[:100] + offset, dimension=2, k=12)
    outward = torch.nn.functional.normalize(rows[:100], dim=1)
    assert float(torch.einsum("ad,adm->am", outward, planes).norm(dim=1).max()) < 0.1
    identity = torch.eye(2, dtype=torch.float64).expand(100, 2, 2)
    torch.testing.assert_close(planes.transpose(1, 2) @ planes, identity)


def test_is_pca_of_the_nearest_rows(generator):
    rows = torch.randn(300, 6, generator=generator, dtype=torch.float64)
    near = rows[(rows - rows[0]).square().sum(dim=1).argsort()[:30]]
    leading = torch.linalg.svd(near - near.mean(dim=0)).Vh[:2]
    found = Subspace(local_tangents(rows, rows[:1], dimension=2, k=30)[0])
    assert found.overlap(Subspace.span(leading)) == pytest.approx(1)


def test_equal_rows_are_used_once(generator):
    rows = torch.randn(200, 5, generator=generator)
    often = torch.cat([rows, rows[:1].expand(50, 5)])
    torch.testing.assert_close(local_tangents(often, rows[:1], 2, 20), local_tangents(rows, rows[:1], 2, 20))


def test_too_few_rows_or_directions_are_refused(generator):
    with pytest.raises(InputError, match="dimension 3, k 9 and 5 distinct rows came"):
        local_tangents(torch.randn(5, 4, generator=generator), torch.zeros(1, 4), dimension=3, k=9)
    line = torch.arange(50.0)[:, None] * torch.ones(1, 4)
    with pytest.raises(InputError, match="must spread in 2 directions"):
        local_tangents(line, line[:1], dimension=2, k=9)
