"""What every rival and control must hold to, and what each is on rows whose answer is known."""

import importlib

import pytest
import torch

from tangentlens import InputError, SemiNMF, Subspace, tangent_test
from tangentlens.proxies import PROXIES
from tangentlens.proxies.charts import charts
from tangentlens.proxies.covariance import covariance
from tangentlens.proxies.ica import ica
from tangentlens.proxies.kmeans import kmeans
from tangentlens.proxies.principal import Principal
from tangentlens.proxies.random import random
from tangentlens.proxies.semi_nmf import SPAN_TOL
from tangentlens.proxies.shuffled import shuffled
from tangentlens.proxies.tail import tail

ALL = {name: proxy.fit for name, proxy in PROXIES.items()}


def data(n=600, d=30, seed=0):
    make = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=make, dtype=torch.float64) * torch.arange(1, d + 1).flip(0) + 3


@pytest.mark.parametrize("name", ALL)
def test_has_the_rank_asked_for_and_the_seed_decides(name):
    x, state = data(), torch.random.get_rng_state()
    a, b = (ALL[name](x, 5, 3) for _ in range(2))
    assert (a.rank, a.dim) == (5, 30)
    assert torch.equal(a.basis, b.basis)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("name", ALL)
def test_rows_may_come_with_their_eigendecomposition(name):
    x = data()
    assert ALL[name](x, 5, 0).overlap(ALL[name](Principal.of(x), 5, 0)) == pytest.approx(1)


@pytest.mark.parametrize("name", ["semi_nmf", "pca", "tail", "kmeans"])
def test_turns_with_the_rows(name, generator):
    """Columns mean something to `shuffled` alone; what is drawn, or hardly determined as by `ica` here, may differ."""
    x = data()
    rotation = torch.linalg.qr(torch.randn(30, 30, generator=generator, dtype=torch.float64)).Q
    turned = ALL[name](x @ rotation, 5, 0)
    assert turned.overlap(Subspace(rotation.T @ ALL[name](x, 5, 0).basis)) > 0.9


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("x", "rank", "says"),
    [
        (data(), 31, "but is 31"),
        (data(), 0, "but is 0"),
        (torch.ones(9, 4), 2, "all are equal"),
        (torch.full((9, 4), float("nan")), 2, "NaN or Inf"),
        (torch.zeros(0, 4), 2, "at least 1 rows are needed"),
    ],
)
def test_bad_input_says_what_to_do(name, x, rank, says):
    with pytest.raises(InputError) as error:
        ALL[name](x, rank, 0)
    assert says in str(error.value)


def test_tail_spans_the_last_singular_vectors():
    x = data()
    last = torch.linalg.svd(x - x.mean(dim=0)).Vh[-4:]
    assert tail(x, 4).overlap(Subspace.span(last)) == pytest.approx(1)


@pytest.mark.calibration
def test_covariance_prefers_directions_as_a_gaussian_of_that_covariance_does(generator):
    x = data()
    drawn = torch.linalg.cholesky(torch.cov(x.T)) @ torch.randn(30, 4 * 2000, generator=generator, dtype=torch.float64)
    expected = torch.linalg.qr(drawn.T.reshape(2000, 4, 30).transpose(1, 2)).Q
    found = torch.stack([covariance(x, 4, seed).basis for seed in range(2000)])
    taken = [(basis.square().sum(dim=2)).mean(dim=0) for basis in (found, expected)]
    torch.testing.assert_close(*taken, rtol=0.1, atol=0.01)


def test_kmeans_spans_planted_centers(generator):
    centers = 40 * torch.randn(5, 30, generator=generator, dtype=torch.float64)
    x = centers[torch.arange(1000) % 5] + torch.randn(1000, 30, generator=generator, dtype=torch.float64)
    expected = Subspace.span(centers - centers.mean(dim=0), rank=4)
    assert kmeans(x, 4).overlap(expected) > 0.999
    with pytest.raises(InputError, match="4 clusters need more than 3 rows, but 3 came"):
        kmeans(data(3), 3)


def test_ica_finds_directions_that_are_not_gaussian_among_louder_ones_that_are(generator):
    sources = torch.randn(4000, 12, generator=generator, dtype=torch.float64) * 2
    sources[:, :3] = torch.rand(4000, 3, generator=generator, dtype=torch.float64).sub(0.5).sign() * 1.0
    mixing = torch.linalg.qr(torch.randn(20, 20, generator=generator, dtype=torch.float64)).Q[:12]
    found = ica(sources @ mixing, 3)
    assert found.overlap(Subspace.span(mixing[:3])) > 0.98


@pytest.mark.parametrize("kind", ["rarely large", "never large"])
def test_ica_finds_one_direction_that_is_not_gaussian(kind, generator):
    sources = torch.randn(4000, 6, generator=generator, dtype=torch.float64)
    sources[:, 2] = sources[:, 2] ** 3 if kind == "rarely large" else sources[:, 2].sign()
    axes = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    # Less variance than any other, so that high variance would not find it.
    scale = torch.tensor([2.0, 3.0, 1.0, 2.0, 3.0, 2.0], dtype=torch.float64)
    sources = scale * sources / sources.std(dim=0)
    assert ica(sources @ axes, 1).overlap(Subspace(axes[2, :, None])) > 0.9


def test_ica_stops_when_its_directions_no_longer_turn(generator, monkeypatch):
    module = importlib.import_module("tangentlens.proxies.ica")
    steps, rotation = [], module._rotation
    monkeypatch.setattr(module, "_rotation", lambda matrix: steps.append(0) or rotation(matrix))
    ica(torch.randn(4000, 6, generator=generator, dtype=torch.float64) ** 3, 3)
    assert len(steps) < module._MAX_ITER


def test_shuffled_is_the_proxy_of_permuted_columns(generator):
    x = data(4000)
    naive = torch.stack([column[torch.randperm(4000, generator=generator)] for column in x.T], dim=1)
    expected = SemiNMF(5, tol=SPAN_TOL).fit(naive).subspace()
    assert shuffled(x, 5).overlap(expected) > 0.85
    assert (
        shuffled(x @ torch.linalg.qr(torch.randn(30, 30, generator=generator, dtype=torch.float64)).Q, 5).overlap(
            expected
        )
        < 0.5
    )


def test_random_is_uniform_and_stays_where_it_belongs():
    plane = Subspace.span(data(4))
    drawn = torch.stack([random(plane.complement(), 3, seed).basis for seed in range(500)])
    assert float((plane.basis.T @ drawn).abs().max()) < 1e-12
    assert float(drawn.square().sum(dim=(0, 1, 2))) == pytest.approx(1500)
    everywhere = torch.stack([random(30, 3, seed).basis.square().sum(dim=1) for seed in range(2000)]).mean(dim=0)
    torch.testing.assert_close(everywhere, torch.full((30,), 0.1, dtype=torch.float64), rtol=0.12, atol=0)
    with pytest.raises(InputError, match="between 1 and 26, the dimension of the space around it, but is 27"):
        random(plane.complement(), 27)


def test_charts_find_the_plane_of_each_branch(generator):
    """Four branches of a star, each with a plane of its own around its arm."""
    axes = torch.linalg.qr(torch.randn(40, 12, generator=generator, dtype=torch.float64)).Q.T
    branch = torch.arange(2000) % 4
    spread = torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    x = 12 * axes[branch] + torch.einsum("nk,nkd->nd", spread, axes[4:].reshape(4, 2, 40)[branch])
    x = x + 0.1 * torch.randn(2000, 40, generator=generator, dtype=torch.float64)
    found = charts(x, n_charts=4, rank=2)
    chart = found.assign(x)
    for number, plane in found.planes.items():
        inside = branch[chart == number]
        assert (inside == inside[0]).float().mean() > 0.99
        assert plane.overlap(Subspace.span(axes[4:].reshape(4, 2, 40)[inside[0]])) > 0.97


def test_too_few_rows_for_charts_are_refused():
    with pytest.raises(InputError, match="at least 2 charts of 20 rows are needed, but 30 rows in 4 charts gave"):
        charts(data(30), n_charts=4, rank=5)


def with_long_rows(factor, own=0.0, seed=0):
    """33 of 4,096 rows lie along one direction and are `factor` times as long as the others, more or less."""
    make = torch.Generator().manual_seed(seed)
    spread = torch.arange(1, 65, dtype=torch.float64) ** -0.35
    rows = torch.randn(4096, 64, generator=make, dtype=torch.float64) * spread
    direction = torch.nn.functional.normalize(torch.randn(64, generator=make, dtype=torch.float64), dim=0)
    lengths = factor * rows.norm(dim=1).median() * (1 + 0.1 * torch.randn(33, 1, generator=make, dtype=torch.float64))
    chosen = torch.randperm(4096, generator=make)[:33]
    rows[chosen] = own * rows[chosen] + lengths * direction
    return rows.float(), direction


@pytest.mark.parametrize("factor", [50, 200, 1000, 100_000])
def test_dependent_centers_are_completed_by_directions_of_high_variance(factor):
    rows, direction = with_long_rows(factor)
    found = kmeans(rows, 16)
    assert found.rank == 16
    assert float(found.project(direction[None]).norm()) == pytest.approx(1, abs=1e-3), "most centers are there"
    variances = (rows - rows.mean(dim=0)).double() @ found.basis
    anywhere = (rows.double() @ (torch.eye(64).double() - direction[:, None] * direction)).square().mean() * 16
    assert variances.square().mean(dim=0).sum() > anywhere, "more than random directions have"


def test_centers_of_rows_of_low_rank_are_not_completed_by_rounding():
    flat = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) @ torch.eye(3, 8)
    with pytest.raises(InputError, match="must span 5 dimensions"):
        kmeans(flat, 5)


@pytest.mark.parametrize("factor", [200, 1000])
def test_a_test_of_rows_among_which_some_are_massive_has_every_control(factor):
    rows, _ = with_long_rows(factor)
    gradients = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    tested = tangent_test(rows, gradients, torch.arange(4096) // 32, rank=16, orders=(1.0,))
    assert {"kmeans", "pca", "ica", "shuffled"} <= set(tested.variants)
    assert tested.subspaces["kmeans"].rank == tested.subspaces[tested.proxy].rank


@pytest.mark.parametrize("spread", [0.002, 0.01, 0.05])
def test_nearly_dependent_centers_keep_their_rank_in_a_wide_space(spread):
    """Sinks that point nearly the same way, as those of large decoders do."""
    make = torch.Generator().manual_seed(0)
    rows = torch.randn(1024, 576, generator=make) * torch.arange(1, 577) ** -0.5
    sink = torch.nn.functional.normalize(torch.randn(576, generator=make), dim=0)
    lengths = torch.linspace(150, 250, 24)[:, None]
    rows[:24] = lengths * rows.norm(dim=1).median() * sink + spread * rows[:24]
    assert kmeans(rows, 16).rank == 16


@pytest.mark.parametrize("n", [5, 17, 200])
@pytest.mark.parametrize("kind", ["two rows", "a plane", "one column", "a sink"])
def test_every_control_can_be_fitted_where_the_proxy_can(kind, n, generator):
    """Rows of fewer dimensions than the rank asked for, in fp32: rounding must not count as a dimension."""
    x = torch.randn(n, 16, generator=generator)
    rows = {
        "two rows": x[torch.arange(n) % 2],
        "a plane": x[:, :2] @ torch.randn(2, 16, generator=generator),
        "one column": torch.cat([x[:, :1], torch.ones(n, 15)], dim=1),
        "a sink": torch.cat([1e6 * x[:1], x[1:]]),
    }[kind]
    gradients = torch.randn(64, 16, generator=generator)
    test = tangent_test(gradients, gradients, torch.arange(64) // 8, rank=min(n, 8), fit_on=rows)
    if kind != "a sink":
        assert test.rank == {"two rows": 1, "a plane": 2, "one column": 1}[kind]
    assert {q.rank for q in test.subspaces.values()} == {test.rank}
