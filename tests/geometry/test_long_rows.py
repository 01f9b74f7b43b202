"""What local measures return if a few rows are hundreds of times as long as the others, as those of attention sinks."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from tangentlens import local_anisotropy, local_geometry, manifolds
from tangentlens.proxies.charts import charts


def sphere_with_long_rows(factor):
    """A noisy sphere of 2,048 rows, of which 33 are moved far away along one direction; and which these are."""
    rows = manifolds.sphere(2048, dimension=2, dim=16, noise=0.005).rows.float()
    make = torch.Generator().manual_seed(3)
    moved = torch.randperm(2048, generator=make)[:33]
    away = normalize(torch.randn(16, generator=make), dim=0)
    rows[moved] += factor * away * (1 + 0.1 * torch.randn(33, 1, generator=make))
    return rows, moved


@pytest.mark.parametrize("factor", [50, 1000])
def test_curvature_is_that_of_the_other_rows(factor):
    rows, moved = sphere_with_long_rows(factor)
    anchors = torch.cat([torch.arange(0, 2048, 40), moved[:1]])
    found = local_geometry(rows, anchors=anchors, k=96)
    assert found.dimension == 2
    assert found.rms_curvature.value == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("factor", [50, 1000])
def test_charts_and_clusters_come_back_finite(factor):
    rows, _ = sphere_with_long_rows(factor)
    assert charts(rows, 6, 2).assign(rows).shape == (2048,)
    local = local_anisotropy(rows)
    assert math.isfinite(local.value)
    # Random groups contain long rows, which leave one direction, and most clusters do not.
    assert local.value < 0.7 < 0.9 < local.matched <= 1
