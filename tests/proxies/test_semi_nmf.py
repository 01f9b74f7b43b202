import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, nnls
from torch.nn.functional import normalize

from tangentlens import InputError, SemiNMF, Subspace
from tangentlens.proxies.semi_nmf import SPAN_TOL


def data(n=400, d=20, seed=0):
    make = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=make, dtype=torch.float64) * torch.arange(1, d + 1).flip(0)


def ding(x, k, sweeps, seed):
    """The multiplicative algorithm of Ding, Li and Jordan (2010), which first defined semi-NMF."""
    x = x - x.mean(dim=0)
    codes = torch.rand(len(x), k, generator=torch.Generator().manual_seed(seed), dtype=x.dtype) + 0.1
    for _ in range(sweeps):
        dictionary = torch.linalg.lstsq(codes, x).solution
        fits, gram = x @ dictionary.T, dictionary @ dictionary.T
        up = fits.clamp_min(0) + codes @ (-gram).clamp_min(0)
        down = (-fits).clamp_min(0) + codes @ gram.clamp_min(0)
        codes = codes * (up / down.clamp_min(1e-12)).sqrt()
    return float((x - codes @ torch.linalg.lstsq(codes, x).solution).square().sum() / x.square().sum())


@pytest.mark.parametrize("center", [True, False])
def test_error_is_that_of_the_factors_and_codes_are_not_negative(center):
    x = data() + 3
    fit = SemiNMF(5, center=center).fit(x)
    rest = x - fit.mean_ - fit.codes_ @ fit.components_
    assert fit.error_ == pytest.approx(float(rest.square().sum() / (x - fit.mean_).square().sum()), rel=1e-9)
    assert (fit.codes_ >= 0).all()
    assert bool(fit.mean_.any()) == center


def test_error_never_rises_over_sweeps():
    errors = [SemiNMF(6, max_iter=sweeps, tol=0).fit(data()).error_ for sweeps in range(1, 30)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(errors))


@pytest.mark.parametrize("seed", range(3))
def test_error_is_no_larger_than_the_original_algorithms_and_near_the_floor(seed):
    x = data(seed=seed)
    values = torch.linalg.svdvals(x - x.mean(dim=0)) ** 2
    floor = float(values[6:].sum() / values.sum())
    error = SemiNMF(6, max_iter=500, tol=1e-5, seed=seed).fit(x).error_
    assert floor <= error <= ding(x, 6, sweeps=500, seed=seed)
    # k concepts reach what k - 1 free directions do on centred rows (docs/concepts.md), by default in a few turns.
    assert SemiNMF(6, seed=seed).fit(x).error_ <= 1.01 * float(values[5:].sum() / values.sum())


def planted(k, n=2000, d=50, on=0.3, seed=0):
    """Rows that mix a known dictionary with sparse non-negative codes, and a little noise."""
    make = torch.Generator().manual_seed(seed)
    truth = torch.randn(k, d, generator=make, dtype=torch.float64)
    codes = torch.rand(n, k, generator=make, dtype=torch.float64) * (torch.rand(n, k, generator=make) < on)
    return codes @ truth + 0.02 * torch.randn(n, d, generator=make, dtype=torch.float64), truth


@pytest.mark.parametrize("k", [4, 8])
def test_a_planted_dictionary_is_recovered(k):
    """Each concept on its own, by the sparsity of its codes; and the subspace, all that the error determines."""
    worst = []
    for seed in range(8):
        x, truth = planted(k, seed=seed)
        fit = SemiNMF(k, center=False, seed=seed).fit(x)
        assert float(fit.subspace().principal_angles(Subspace.span(truth))[-1]) < 0.02
        cosine = normalize(fit.components_, dim=1) @ normalize(truth, dim=1).T
        rows, columns = linear_sum_assignment(-cosine)
        worst.append(float(cosine[rows, columns].min()))
    assert min(worst) > 0.99, worst


def test_a_warm_start_follows_the_concepts_of_the_earlier_fit():
    x, _ = planted(8)
    make = torch.Generator().manual_seed(1)
    moved = x + 0.05 * torch.randn(x.shape, generator=make, dtype=x.dtype)
    earlier = SemiNMF(8, center=False).fit(x)
    warm, cold = SemiNMF(8, center=False).fit(moved, init=earlier), SemiNMF(8, center=False, seed=1).fit(moved)
    assert warm.error_ <= 1.01 * cold.error_
    assert warm.n_iter_ <= 20
    same, other = (
        torch.nn.functional.cosine_similarity(fit.components_, earlier.components_).min() for fit in (warm, cold)
    )
    assert same > 0.98 > 0.5 > other


def test_a_warm_start_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"init must be a fit of 5 concepts in R\^20, but has 4 in R\^20"):
        SemiNMF(5).fit(data(), init=SemiNMF(4).fit(data()))


@pytest.mark.parametrize("center", [True, False])
def test_steep_spectra_are_fitted_as_well_as_flat_ones(center):
    """Here a fit once stopped after two turns at an error of 0.75."""
    make = torch.Generator().manual_seed(0)
    codes = torch.rand(2048, 32, generator=make) * (torch.rand(2048, 32, generator=make) < 0.3)
    x = codes @ (torch.randn(32, 96, generator=make) / torch.arange(1, 33)[:, None])
    assert SemiNMF(32, center=center).fit(x).error_ < 0.005


@pytest.mark.parametrize("scale", [1e-18, 1e-9, 1e12])
def test_the_fit_scales_with_the_rows(scale):
    x = data().float()
    assert SemiNMF(4).fit(x * scale).error_ == pytest.approx(SemiNMF(4).fit(x).error_, rel=1e-3)


def test_same_seed_same_fit_and_the_global_random_state_is_untouched():
    state = torch.random.get_rng_state()
    a, b, c = (SemiNMF(4, seed=seed).fit(data()) for seed in (1, 1, 2))
    assert torch.equal(a.components_, b.components_)
    assert not torch.equal(a.components_, c.components_)
    assert torch.equal(state, torch.random.get_rng_state())


def test_transform_codes_rows_as_well_as_the_fit_did():
    x = data()
    fit = SemiNMF(4).fit(x)
    codes = fit.transform(x)
    rest = x - fit.mean_ - codes @ fit.components_
    assert (codes >= 0).all()
    assert float(rest.square().sum() / (x - fit.mean_).square().sum()) <= 1.001 * fit.error_


def test_dependent_concepts_lower_the_rank():
    flat = torch.cat([data(d=2), torch.zeros(400, 3, dtype=torch.float64)], dim=1)
    assert SemiNMF(4).fit(flat).subspace().rank == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_short_formats_are_taken(dtype):
    assert SemiNMF(3).fit(data().to(dtype)).error_ == pytest.approx(SemiNMF(3).fit(data()).error_, rel=0.02)


@pytest.mark.parametrize(
    ("x", "k", "says"),
    [
        (torch.zeros(9, 4), 2, "all are equal"),
        (torch.ones(9, 4), 2, "all are equal"),
        (data(5, 8), 6, "between 1 and 5, the smaller side of the (5, 8) rows, but is 6"),
        (data(), 0, "between 1 and 20"),
        (torch.full((4, 4), float("nan")), 2, "NaN or Inf"),
    ],
)
def test_bad_input_says_what_to_do(x, k, says):
    with pytest.raises(InputError) as error:
        SemiNMF(k).fit(x)
    assert says in str(error.value)


def test_an_unfitted_one_says_so():
    with pytest.raises(InputError, match="call fit"):
        SemiNMF(3).subspace()


def test_transform_is_scipys_non_negative_least_squares():
    x = data(60, 8)
    fit = SemiNMF(4).fit(x)
    expected = [nnls(fit.components_.T.numpy(), row)[0] for row in (x - fit.mean_).numpy()]
    np.testing.assert_allclose(fit.transform(x), expected, atol=0.01, rtol=1e-3)


def test_the_error_counts_what_the_projection_left_out():
    x = data(300, 60)
    fit = SemiNMF(3).fit(x)
    rest = x - fit.mean_ - fit.codes_ @ fit.components_
    assert fit.error_ == pytest.approx(float(rest.square().sum() / (x - fit.mean_).square().sum()), rel=1e-9)


def test_a_concepts_length_does_not_decide_the_rank():
    fit = SemiNMF(3).fit(data())
    fit.components_ = fit.components_ * torch.tensor([[1.0], [1e-9], [1e9]])
    assert fit.subspace().rank == 3


def test_exactly_low_rank_rows_are_fitted_to_no_less_than_zero():
    x = (data(200, 2) @ torch.randn(2, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).float()
    assert 0 <= SemiNMF(4).fit(x).error_ < 1e-5


def test_equal_rows_are_equal_also_where_their_mean_is_rounded():
    with pytest.raises(InputError, match="all are equal"):
        SemiNMF(2).fit(torch.full((7, 3), 0.1))
    with pytest.raises(InputError, match="max_iter must be at least 1"):
        SemiNMF(2, max_iter=0).fit(data())


def test_a_warm_start_does_not_begin_above_the_fit_it_starts_from():
    x = data(2000, 50)
    fit = SemiNMF(12, tol=SPAN_TOL).fit(x)
    assert SemiNMF(12, max_iter=1).fit(x, init=fit).error_ <= 1.01 * fit.error_


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e20])
def test_subspace_and_transform_do_not_depend_on_the_scale(scale):
    x = data().float()
    plain, scaled = SemiNMF(4).fit(x), SemiNMF(4).fit(x * scale)
    assert scaled.subspace().overlap(plain.subspace()) > 0.99
    assert (scaled.dominant(x * scale) == plain.dominant(x)).float().mean() > 0.98


def test_transform_says_what_to_do():
    with pytest.raises(InputError, match="call fit"):
        SemiNMF(3).transform(data())
    with pytest.raises(InputError, match="call fit"):
        SemiNMF(3).dominant(data())
    with pytest.raises(InputError, match="call fit"):
        SemiNMF(3).fit(data(), init=SemiNMF(3))
    with pytest.raises(InputError, match="must have 20 features, as those that were fitted, but have 8"):
        SemiNMF(3).fit(data()).transform(data(9, 8))


def test_a_few_very_long_rows_do_not_end_the_fit_before_the_others_are_fitted():
    """They have nearly all energy, so an error that is small beside it says nothing of the other rows."""

    def overlap(factor, seed):
        make = torch.Generator().manual_seed(seed)
        spread = torch.arange(1, 129, dtype=torch.float64) ** -0.35
        rows = torch.randn(4096, 128, generator=make, dtype=torch.float64) * spread
        rows[:33] += factor * rows.norm(dim=1).median() * normalize(rows[-1], dim=0)
        centred = (rows - rows.mean(dim=0)).double()
        leading = Subspace(torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -16:])
        return SemiNMF(16, seed=seed).fit(rows.float()).subspace().overlap(leading)

    clean, massive = (sum(overlap(factor, seed) for seed in range(4)) / 4 for factor in (0, 200))
    assert massive > clean - 0.025


def objective(fit, x):
    """What a fit under a penalty minimises, written out: concepts of length 1, rows of rms length 1."""
    scale = (x - fit.mean_).square().sum(dim=1).mean().sqrt()
    lengths = fit.components_.norm(dim=1)
    rest = (x - fit.mean_ - fit.codes_ @ fit.components_) / scale
    return float(rest.square().sum() / 2 + fit.sparsity * (fit.codes_ * lengths / scale).sum()) / len(x)


@pytest.mark.parametrize("sparsity", [0.02, 0.2])
def test_under_a_penalty_the_objective_never_rises_over_sweeps(sparsity):
    fits = [SemiNMF(6, max_iter=sweeps, tol=0, sparsity=sparsity).fit(data()) for sweeps in (1, 2, 3, 4, 6, 9, 14)]
    objectives = [objective(fit, data()) for fit in fits]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(objectives))
    assert objectives[-1] < objectives[0]
    # The error alone is another objective, and a fit without penalty does better in it and worse in this one.
    plain = SemiNMF(6, max_iter=14, tol=0).fit(data())
    plain.sparsity = sparsity
    assert plain.error_ < fits[-1].error_
    assert objective(plain, data()) > objectives[-1]


def test_codes_get_sparser_and_the_error_grows_with_the_penalty():
    x, _ = planted(16, n=1000, on=0.15)
    fits = [SemiNMF(16, sparsity=sparsity).fit(x) for sparsity in (0.0, 0.01, 0.03, 0.1, 0.3)]
    for codes in ([fit.codes_ for fit in fits], [fit.transform(x) for fit in fits]):
        used = [float((of > 0).double().mean()) for of in codes]
        assert all(later < earlier for earlier, later in itertools.pairwise(used))
    assert all(later.error_ > earlier.error_ for earlier, later in itertools.pairwise(fits))


def test_no_penalty_is_the_fit_as_it_always_was():
    """Numbers of the first version, before there was a penalty that stays."""
    fit = SemiNMF(6, sparsity=0.0, tol=SPAN_TOL).fit(data())
    assert fit.n_iter_ == 8
    assert fit.error_ == pytest.approx(0.39316939170720816, rel=1e-9)


@pytest.mark.parametrize(("scale", "copies"), [(1e-9, 1), (1e6, 1), (1.0, 3)])
def test_a_penalty_means_the_same_for_any_scale_and_number_of_rows(scale, copies):
    x = planted(6, n=500)[0]
    many = torch.cat([x] * copies) * scale
    once, again = SemiNMF(6, sparsity=0.1, tol=1e-6).fit(x), SemiNMF(6, sparsity=0.1, tol=1e-6).fit(many)
    assert again.error_ == pytest.approx(once.error_, rel=0.01 if copies == 1 else 0.1)
    used = [float((fit.transform(rows) > 0).double().mean()) for fit, rows in ((once, x), (again, many))]
    assert used[1] == pytest.approx(used[0], rel=0.02 if copies == 1 else 0.1)


def test_transform_under_a_penalty_is_the_lasso_without_negative_codes():
    """As coordinate descent solves it, one code after the other."""
    x = data(60, 8)
    fit = SemiNMF(4, sparsity=0.1).fit(x)
    lengths = fit.components_.norm(dim=1)
    unit, points = fit.components_ / lengths[:, None], (x - fit.mean_) / fit.scale_
    assert fit.scale_ == pytest.approx(float((x - fit.mean_).square().sum(dim=1).mean().sqrt()))
    codes = torch.zeros(60, 4, dtype=x.dtype)
    for _ in range(500):
        for k in range(4):
            rest = points - codes @ unit + codes[:, k : k + 1] * unit[k]
            codes[:, k] = (rest @ unit[k] - 0.1).clamp_min(0)
    np.testing.assert_allclose(fit.transform(x) * lengths / fit.scale_, codes, atol=1e-3)


def test_a_penalty_that_nothing_can_pay_leaves_no_concept_and_one_below_zero_is_refused():
    assert not SemiNMF(3, sparsity=50.0).fit(data()).components_.any()
    with pytest.raises(InputError, match="the vectors must span 1 dimensions"):
        SemiNMF(3, sparsity=50.0).fit(data()).subspace()
    for sparsity in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="sparsity must be a number from 0 on"):
            SemiNMF(3, sparsity=sparsity).fit(data())


def test_stopping_early_changes_the_span_less_than_another_seed_does():
    """Why a proxy need not converge: see `SPAN_TOL`."""
    x = data(3000, 60)
    early, late, other = (
        SemiNMF(8, seed=seed, tol=tol).fit(x) for seed, tol in ((0, SPAN_TOL), (0, SemiNMF(8).tol), (1, SPAN_TOL))
    )
    assert late.error_ < early.error_
    assert early.subspace().overlap(late.subspace()) > early.subspace().overlap(other.subspace())
