"""Each term against its definition, written out naively, and against what it must not do to a training."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError, isoscore, manifolds, mean_cosine, participation_ratio
from tangentlens.training.regularisers import TERMS, Bending, IsoScore, cosine, named_term, spectral


def cloud(n=24, d=5, seed=0, dtype=torch.float64):
    make = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=make, dtype=dtype) * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2][:d]) + 0.7


def test_cosine_is_the_mean_over_distinct_pairs():
    rows = cloud()
    assert float(cosine(rows)) == pytest.approx(mean_cosine(rows))
    with_zeros = torch.cat([rows, torch.zeros(3, 5, dtype=torch.float64)])
    assert float(cosine(with_zeros)) == pytest.approx(mean_cosine(rows)), "rows without a direction are left out"


def test_spectral_is_a_ratio_of_means_over_quadruples():
    """Differences of distinct rows have the covariance 2C, and two of them with no row in common are independent."""
    rows = cloud(n=6, d=3)
    products, sizes = [], []
    for a, b, c, d in itertools.permutations(range(6), 4):
        one, other = rows[a] - rows[b], rows[c] - rows[d]
        products.append(float(one @ other) ** 2)
        sizes.append(float(one @ one) * float(other @ other))
    assert float(spectral(rows)) == pytest.approx(sum(products) / sum(sizes))


def test_few_rows_look_no_more_anisotropic_than_many():
    """16 rows of an isotropic law in 64 dimensions span 15 of them."""
    make = torch.Generator().manual_seed(0)
    draws = torch.randn(200, 16, 64, generator=make)
    assert sum(float(spectral(rows)) for rows in draws) / 200 == pytest.approx(1 / 64, rel=0.05)
    assert sum(1 / participation_ratio(rows) for rows in draws) / 200 > 4 / 64, (
        "the ratio of the batch itself is biased"
    )


def by_eigenvalues(covariance):
    """IsoScore* as its authors define it: by the distance of the normalised eigenvalues from (1, ..., 1)."""
    d = torch.tensor(float(len(covariance)))
    values = torch.linalg.eigvalsh(covariance)
    normed = values * d.sqrt() / values.norm()
    defect = (normed - 1).norm() / (2 * (d - d.sqrt())).sqrt()
    return float(((d - defect**2 * (d - d.sqrt())) ** 2 - d) / (d * (d - 1)))


def test_isoscore_is_that_of_its_authors():
    rows = cloud()
    assert float(IsoScore(shrinkage=0)(rows)) == pytest.approx(1 - isoscore(rows))
    assert float(IsoScore(shrinkage=0)(rows)) == pytest.approx(1 - by_eigenvalues(rows.T.cov()), rel=1e-5)
    term, covariances = IsoScore(shrinkage=0.3, memory=0.8), [cloud(seed=seed).T.cov() for seed in range(3)]
    first, second, third = (one / one.trace() for one in covariances)
    term(cloud(seed=0))
    assert float(term(cloud(seed=1))) == pytest.approx(1 - by_eigenvalues(0.7 * second + 0.3 * first), rel=1e-5)
    running = 0.8 * first + 0.2 * second
    assert float(term(cloud(seed=2))) == pytest.approx(1 - by_eigenvalues(0.7 * third + 0.3 * running), rel=1e-5)


def test_a_running_covariance_brings_small_batches_near_the_truth():
    truth = 1 - isoscore(cloud(n=4000))
    term = IsoScore(shrinkage=0.5)
    batches = [cloud(n=4, seed=seed) for seed in range(200)]
    together = torch.tensor([float(term(rows)) for rows in batches][100:])
    alone = torch.tensor([float(IsoScore(shrinkage=0)(rows)) for rows in batches[100:]])
    assert (together - truth).square().mean() < 0.25 * (alone - truth).square().mean()


def bending_by_least_squares(rows, k, ridge):
    """The weights of the neighbours that add up to 1 and come nearest to each row, from the equations of Lagrange."""
    found = []
    for row in rows:
        steps = torch.stack(sorted((other - row for other in rows), key=lambda step: float(step.norm()))[1 : k + 1])
        products = steps @ steps.T
        ridged = products + ridge * products.trace() / k * torch.eye(k, dtype=rows.dtype)
        system = torch.ones(k + 1, k + 1, dtype=rows.dtype)
        system[:k, :k], system[k, k] = ridged, 0
        weights = torch.linalg.solve(system, torch.eye(k + 1, dtype=rows.dtype)[k])[:k]
        assert float(weights.sum()) == pytest.approx(1)
        found.append(float(weights @ ridged @ weights) / float(products.trace() / k))
    return sum(found) / len(found)


def test_bending_is_the_distance_to_the_nearest_mixture_of_neighbours():
    rows = cloud(n=20)
    assert float(Bending(6, ridge=0.01)(rows)) == pytest.approx(bending_by_least_squares(rows, 6, 0.01))


def graph(height, n=2000):
    """The graph over a disc of all quadratic monomials, times a height: flat at height 0."""
    flat = manifolds.ball(n, 2, 2).rows
    one, other = flat.unbind(dim=1)
    return torch.cat([flat, height * torch.stack([one**2, 2**0.5 * one * other, other**2], dim=1)], dim=1)


def test_what_is_flat_does_not_bend_however_its_rows_lie():
    """Neither a rim, where neighbours lie on one side, nor a density that changes is curvature."""
    term = Bending(5, ridge=1e-9)
    uneven = graph(0.0)
    uneven[:, 0] = uneven[:, 0].sign() * uneven[:, 0].square()
    for flat in (graph(0.0), uneven):
        assert term(flat) < 1e-8
        assert term(graph(0.1)) > 1000 * term(flat)


def test_bending_grows_with_the_square_of_the_curvature_and_its_gradient_flattens():
    heights = [torch.tensor(height, dtype=torch.float64, requires_grad=True) for height in (0.02, 0.04, 0.08)]
    values = [Bending(5, ridge=1e-9)(graph(height)) for height in heights]
    for value, twice in itertools.pairwise(values):
        assert float(twice.detach() / value.detach()) == pytest.approx(4, rel=0.15)
    for value, height in zip(values, heights, strict=True):
        value.backward()
        assert height.grad > 0


@pytest.mark.parametrize("name", TERMS)
def test_gradients_are_those_of_the_value(name):
    rows = cloud(n=18 if name == "bending" else 8).requires_grad_()
    # A term that remembers what it saw is a new one at each evaluation.
    assert torch.autograd.gradcheck(lambda x: named_term(name)(x), (rows,))


@given(st.integers(0, 10_000), st.sampled_from(sorted(TERMS)), st.floats(1e-6, 1e6))
def test_scale_rotation_and_order_change_nothing(seed, name, scale):
    rows = cloud(seed=seed)
    make = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=make, dtype=torch.float64)).Q
    value = float(named_term(name)(rows))
    assert float(named_term(name)(rows @ turn)) == pytest.approx(value, abs=1e-9)
    assert float(named_term(name)(rows[torch.randperm(24, generator=make)])) == pytest.approx(value, abs=1e-9)
    assert float(named_term(name)(scale * rows)) == pytest.approx(value, abs=1e-9)


def odd_rows():
    normal = cloud(n=32, dtype=torch.float32)
    yield "none", normal[:0]
    yield "one", normal[:1]
    yield "three", normal[:3]
    yield "equal", normal[:1].repeat(32, 1) * 1.1
    yield "zeros", torch.zeros(32, 5)
    yield "one feature", normal[:, :1]
    yield "mostly equal", torch.cat([normal[:1].repeat(30, 1), normal[1:3]])
    yield "at the end of fp16", (normal / normal.abs().amax() * 65504).half()
    yield "below fp16", (normal * 1e-7).half()
    yield "bf16", normal.bfloat16()
    yield "huge", normal * 1e30
    yield "tiny", normal * 1e-30


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("rows", [pytest.param(rows, id=told) for told, rows in odd_rows()])
def test_nothing_makes_a_loss_that_is_not_finite(name, rows):
    rows = rows.clone().requires_grad_()
    value = named_term(name)(rows)
    value.backward()
    value = value.detach()
    assert torch.isfinite(value)
    assert torch.isfinite(rows.grad).all()
    if name != "cosine" and (rows == rows[:1]).all():
        assert float(value) == 0
        assert not rows.grad.any()


def test_bad_settings_are_told():
    with pytest.raises(InputError, match="shrinkage must be from 0 to below 1, but is 1"):
        IsoScore(shrinkage=1)
    with pytest.raises(InputError, match="neighbours must be a whole number of at least 2"):
        Bending(1)
    with pytest.raises(InputError, match=r"did you mean spectral\?"):
        named_term("spectal")
    with pytest.raises(InputError, match=r"\(n, d\), but have \(2, 3, 4\)"):
        cosine(torch.zeros(2, 3, 4))
