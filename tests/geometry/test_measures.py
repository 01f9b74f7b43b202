import os
import subprocess
import sys

import pytest
import torch

from tangentlens import (
    InputError,
    intrinsic_dimension,
    local_geometry,
    manifold_entropy,
    manifolds,
    mean_cosine,
    rogue_dimensions,
)
from tangentlens.geometry import neighbours
from tangentlens.geometry.dimension.intrinsic import Estimation
from tangentlens.geometry.dimension.neighbourhoods import Neighbourhoods
from tangentlens.geometry.measures import MEASURES, Cloud, measure_all


@pytest.fixture
def cloud(generator):
    """Rows of which some are massive, some repeat others, and some nearly do."""
    rows = torch.randn(600, 12, generator=generator)
    rows[:5] *= 100
    rows[10:20] = rows[20:30]
    rows[30:40] = rows[40:50] + 1e-6
    tokens = torch.randint(0, 150, (600,), generator=generator)
    return Cloud(rows, tokens, tokens)


def test_what_is_shared_with_all_rows_changes_nothing_without_the_massive_ones(cloud):
    measure_all(cloud)
    shared, kept = cloud.without_massive(), ~cloud.massive.mask
    alone = Cloud(cloud.rows[kept], cloud.tokens[kept], cloud.sequences[kept])
    assert cloud.massive.count == 5
    assert measure_all(shared) == pytest.approx(measure_all(alone), rel=1e-9)
    assert (shared.dimension.around.n_duplicates, shared.dimension.around.n_near_duplicates) == (10, 10)


def test_moments_with_massive_rows_are_those_of_all_rows(cloud):
    alone = Cloud(cloud.rows, cloud.tokens, cloud.sequences, threshold=1e9)
    assert torch.allclose(cloud.moments.scatter, alone.moments.scatter, rtol=1e-5)
    assert cloud.moments.count == 600


def test_neighbours_are_searched_once_for_tokens_and_once_for_types(cloud, monkeypatch):
    searched = []
    search = neighbours._Cloud.search

    def counted(self, keep):
        searched.append(len(self.rows))
        return search(self, keep)

    monkeypatch.setattr(neighbours._Cloud, "search", counted)
    usual = [measure for measure in MEASURES if not measure.costly]
    measure_all(cloud, usual)
    n_types = len(cloud.tokens.unique())
    # Without massive rows another occurrence of a token may be its first: up to five more.
    measure_all(cloud.without_massive(), usual)
    assert len(searched) == 2
    assert searched[0] == 590
    assert 0.8 * n_types < searched[1] <= n_types + 5


def test_estimates_from_neighbourhoods_are_those_from_rows():
    rows = manifolds.cube(700, 4, 9).rows
    around = Neighbourhoods.of(rows, k=3)
    assert intrinsic_dimension(around) == intrinsic_dimension(rows)
    assert manifold_entropy(around, 4) == manifold_entropy(rows, 4)
    with pytest.raises(InputError, match="method 'mle' needs 20 neighbours of each row, but 3 are known"):
        intrinsic_dimension(around, method="mle")


def test_a_misfit_spares_the_search_in_subsamples(cloud, monkeypatch):
    def refused(self):
        raise AssertionError("no subsample is needed")

    monkeypatch.setattr(Estimation, "scales", property(refused))
    mixed = Cloud(cloud.rows.clone(), cloud.tokens, cloud.sequences)
    mixed.rows[300:, 1:] = 0
    assert mixed.dimension.is_doubtful
    with pytest.raises(AssertionError, match="no subsample"):
        _ = Estimation.of(Neighbourhoods.of(manifolds.cube(700, 4, 9).rows, k=2)).is_doubtful


def test_equal_rows_may_be_left_out_one_by_one():
    around = Neighbourhoods.of([[0.0], [1.0], [1.0], [3.0]], k=2)
    left = around.among(torch.tensor([True, False, True, True]))
    assert left.rows.flatten().tolist() == [0, 1, 3]
    assert left.n_duplicates == 0
    assert around.among(torch.tensor([True, True, True, False])).n_duplicates == 1


def test_visible_curvature_is_that_of_the_local_geometry(generator):
    """On a sphere of dimension 6 and radius 2."""
    rows = torch.nn.functional.normalize(torch.randn(600, 7, generator=generator, dtype=torch.float64), dim=1) * 2
    cloud = Cloud(rows, torch.arange(600), torch.arange(600) // 10)
    (measure,) = [one for one in MEASURES if one.name == "visible_curvature"]
    found = local_geometry(rows, n_anchors=64, k=128, dimension=6).visible_curvature.value
    assert measure.of(cloud) == found > 0


def test_rogue_dimensions_of_a_profile_are_the_part_of_the_largest_coordinate(generator):
    rows = torch.randn(300, 6, generator=generator) + torch.tensor([4.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    (measure,) = (measure for measure in MEASURES if measure.name == "rogue_dimensions")
    tokens = torch.arange(300)
    largest = float(rogue_dimensions(rows).max()) / mean_cosine(rows)
    assert 0.5 < largest < 1
    assert measure.of(Cloud(rows, tokens, tokens)) == pytest.approx(largest, rel=1e-6)


# Numbers of threads can be set for a process only, and those of a library that is loaded already keep theirs.
IN_ONE_THREAD = """
import time, torch
from tangentlens.geometry.measures import USUAL, chosen, measure_all
from tangentlens.studies.profile.expected import typical_cloud
torch.set_num_threads(1)
measure_all(typical_cloud(256, 600).without_massive(), chosen(USUAL))
all_threads, this_thread = time.process_time(), time.thread_time()
measure_all(typical_cloud(1024, 600).without_massive(), chosen(USUAL))
print((time.process_time() - all_threads) / (time.thread_time() - this_thread))
"""


def test_no_library_begins_threads_of_its_own():
    """They would wait for work long after they had any, and take a core from the training or the model."""
    # That of the tests would hold for every library.
    free = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    code = [sys.executable, "-c", IN_ONE_THREAD]
    assert float(subprocess.run(code, env=free, capture_output=True, text=True, check=True).stdout) < 1.05
