"""Curvature where it is known, against a naive fit, and where it cannot be told."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError, Subspace, local_geometry, manifolds
from tangentlens.geometry.curvature.patches import Patches
from tangentlens.geometry.curvature.second_form import SecondForms, second_forms

# Dimension, width, noise, rows.
SIZES = [(2, 10, 0.0, 2000), (2, 100, 0.01, 6000), (3, 50, 0.01, 8000), (4, 200, 0.01, 8000), (5, 100, 0.01, 16000)]
CURVED = {
    **{f"sphere {m} in {d}": lambda m=m, d=d, s=s, n=n: manifolds.sphere(n, m, d, noise=s) for m, d, s, n in SIZES},
    **{f"torus {m} in {d}": lambda m=m, d=d, s=s, n=n: manifolds.torus(n, m, d, noise=s) for m, d, s, n in SIZES[:3]},
    **{
        f"cylinder {m} in {d}": lambda m=m, d=d, s=s, n=n: manifolds.cylinder(n, m, d, noise=s)
        for m, d, s, n in SIZES[:3]
    },
    **{
        f"quadratic {m} in {d}": lambda m=m, d=d, s=s, n=n: manifolds.quadratic(n, m, d, noise=s / 2, bend=0.5)
        for m, d, s, n in SIZES
    },
    "swiss roll": lambda: manifolds.swiss_roll(8000, 20, noise=0.02),
}
FLAT = {
    f"{name} {m} in {d}": lambda name=name, m=m, d=d, s=s, n=n: getattr(manifolds, name)(n, m, d, noise=s)
    for name in ("linear", "cube")
    for m, d, s, n in SIZES
}


# These hold every kind of surface, and every size; the whole grid is among the calibrations.
EVERY_TIME = {
    *(f"sphere {m} in {d}" for m, d, _, _ in SIZES),
    *("torus 2 in 10", "torus 3 in 50", "cylinder 2 in 10", "cylinder 2 in 100", "swiss roll"),
    *("quadratic 2 in 10", "quadratic 3 in 50", "quadratic 5 in 100"),
    *("linear 2 in 10", "linear 3 in 50", "linear 5 in 100", "cube 2 in 10", "cube 2 in 100", "cube 4 in 200"),
}


def each(names):
    """Some names every time; the calibration has all of them."""
    long = pytest.mark.calibration
    return pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in EVERY_TIME else long) for n in names])


@pytest.fixture(scope="module")
def spheres():
    """Twenty noisy unit spheres, each with its geometry."""
    made = [manifolds.sphere(2000, 2, 20, noise=0.02, seed=seed) for seed in range(20)]
    return [local_geometry(one.rows, n_anchors=128, dimension=2, seed=seed) for seed, one in enumerate(made)]


def degrees(found, made):
    """The largest principal angle between estimated and true planes, median over anchors."""
    truth = made.tangents(found.anchors)
    cosines = torch.linalg.svdvals(found.tangents.double().transpose(1, 2) @ truth).clamp(0, 1)
    return float(cosines.acos().rad2deg().amax(dim=1).median())


# The default number of anchors takes three times as long.
@pytest.mark.parametrize("n_anchors", [96, pytest.param(256, marks=pytest.mark.calibration)])
@each(CURVED)
def test_curvature_is_known_to_ten_per_cent_and_planes_to_five_degrees(name, n_anchors):
    made = CURVED[name]()
    found = local_geometry(made.rows, n_anchors=n_anchors, dimension=made.dimension)
    truth = float(made.curvature[found.anchors].square().mean().sqrt())
    assert found.rms_curvature.value == pytest.approx(truth, rel=0.1)
    assert found.rms_curvature.ci_low <= truth <= found.rms_curvature.ci_high
    assert found.resolved
    assert degrees(found, made) < 5


@pytest.mark.parametrize("axes", [(1, 1, 2), (1, 2, 3), (1, 1, 0.5), (1, 1, 1, 2), (1, 2, 3, 4)])
def test_curvature_that_differs_from_place_to_place_is_in_its_interval(axes):
    made = manifolds.ellipsoid(8000, axes, 30, noise=0.01)
    found = local_geometry(made.rows, dimension=made.dimension)
    truth = float(made.curvature[found.anchors].square().mean().sqrt())
    assert found.rms_curvature.ci_low <= truth <= found.rms_curvature.ci_high
    assert found.rms_curvature.value == pytest.approx(truth, rel=0.25)


@each(FLAT)
def test_flat_reads_as_flat(name):
    made = FLAT[name]()
    found = local_geometry(made.rows, n_anchors=96, dimension=made.dimension)
    assert found.rms_curvature.ci_low == 0


def test_the_curvatures_of_a_sphere_a_cylinder_and_a_torus():
    kinds = {"sphere": (0.5, [0.5, 0.5]), "cylinder": (0.25, [0.5, 0.0]), "torus": (math.sqrt(0.125), [0.5, 0.5])}
    for name, (mean, principal) in kinds.items():
        made = getattr(manifolds, name)(6000, 2, 12, radius=2.0, noise=0.01)
        found = local_geometry(made.rows, dimension=2)
        assert found.mean_curvature.value == pytest.approx(mean, rel=0.05), name
        assert [one.value for one in found.principal_curvatures] == pytest.approx(principal, rel=0.1, abs=0.06), name
        assert found.noise == pytest.approx(0.01, rel=0.1)


def test_tangents_and_normals_are_the_whole_space():
    made = manifolds.sphere(1000, 2, 6)
    found = local_geometry(made.rows, n_anchors=16, k=40, dimension=2)
    normals = found.normal_space(3)
    assert normals.rank == 4
    outward = made.rows[found.anchors[3]]
    assert float((normals.basis.T @ outward).norm()) == pytest.approx(1, abs=1e-3)
    assert float((normals.basis.T @ found.tangents[3]).abs().max()) < 1e-9


def test_curvature_along_directions_is_that_of_what_is_tangent_of_them():
    made = manifolds.cylinder(6000, 2, 12, noise=0.002)
    found = local_geometry(made.rows, dimension=2)
    round_, flat = Subspace.span(made.rotation[:, :2].T), Subspace.span(made.rotation[:, 2:].T)
    assert found.along(round_).value == pytest.approx(1, rel=0.05)
    assert found.along(flat).value < 0.1
    whole = Subspace.span(torch.eye(12))
    assert found.along(whole).value == pytest.approx(found.rms_curvature.value, rel=1e-6)


def naive(patch, noise_off):
    """One anchor: ordinary least squares of numpy on explicit monomials, and the mean of |II(v, v)|^2 over drawn v."""
    u, rows, weights = (part[0].double().numpy() for part in (patch.coordinates, patch.rows, patch.weights))
    k, m = u.shape
    columns = [np.ones(k), *u.T] + [u[:, a] * u[:, b] for a in range(m) for b in range(a, m)]
    design = np.stack(columns, axis=1)
    root = np.sqrt(weights)[:, None]
    solve = np.linalg.pinv(root * design) * root.T
    fitted = solve @ rows
    drawn = np.random.default_rng(0).normal(size=(200_000, m))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    quadratic = np.stack([drawn[:, a] * drawn[:, b] for a in range(m) for b in range(a, m)], axis=1)
    # II(v, v) is twice the quadratic part of the fit.
    square = np.sum((2 * quadratic @ fitted[m + 1 :]) ** 2, axis=1).mean()
    if noise_off:
        hat = design @ solve
        left = np.sum(weights * np.sum((rows - hat @ rows) ** 2, axis=1))
        rest = np.eye(k) - hat
        noise = left / np.trace(np.diag(weights) @ rest @ rest.T)
        square -= 4 * noise * np.mean(np.sum((quadratic @ solve[m + 1 :]) ** 2, axis=1))
    return square


def one_patch(noise, weights=None, k=60, d=12):
    make = torch.Generator().manual_seed(1)
    u = torch.randn(1, k, 2, generator=make, dtype=torch.float64)
    form = torch.randn(d - 2, 2, 2, generator=make, dtype=torch.float64)
    height = torch.einsum("pab,nka,nkb->nkp", form + form.transpose(1, 2), u, u) / 4
    rows = torch.cat([u, height + noise * torch.randn(height.shape, generator=make, dtype=torch.float64)], dim=2)
    weights = torch.ones(1, k, dtype=torch.float64) if weights is None else weights
    plane = torch.eye(d, dtype=torch.float64)[None, :, :2]
    nothing = torch.zeros(1)
    patch = Patches(torch.arange(k)[None], rows, plane, nothing, u, weights)
    return patch, (form + form.transpose(1, 2)) / 2


@pytest.mark.parametrize("even", [True, False])
def test_the_form_is_that_of_a_naive_fit(even):
    weights = None if even else torch.rand(1, 60, generator=torch.Generator().manual_seed(2)).double() + 0.1
    patch, _ = one_patch(noise=0.0, weights=weights)
    found = second_forms(patch)
    assert float(found.mean_square()) == pytest.approx(naive(patch, noise_off=False), rel=0.01)
    patch, _ = one_patch(noise=0.3, weights=weights)
    assert float(second_forms(patch).mean_square()) == pytest.approx(naive(patch, noise_off=True), rel=0.01)


def test_all_curvatures_are_those_of_the_form_itself():
    patch, form = one_patch(noise=0.0)
    found = second_forms(patch)
    traces = form.diagonal(dim1=1, dim2=2).sum(dim=1)
    mean_square = (traces.square().sum() + 2 * form.square().sum()) / 8
    torch.testing.assert_close(found.mean_square()[0], mean_square)
    torch.testing.assert_close(found.mean_curvature_square()[0], traces.square().sum() / 4)
    principal = torch.linalg.eigvalsh(torch.einsum("pab,pbc->ac", form, form)).flip(0)
    torch.testing.assert_close(found.principal_squares()[0], principal)
    u = patch.coordinates[0]
    second = torch.einsum("pab,ka,kb->kp", form, u, u)
    torch.testing.assert_close(found.bends(patch.coordinates)[0], (second / 2).square().sum(dim=1))


def test_forms_in_turned_planes_are_the_same_forms():
    make = torch.Generator().manual_seed(0)
    form = torch.randn(4, 3, 3, generator=make, dtype=torch.float64)
    form = form + form.transpose(1, 2)
    planes = torch.linalg.qr(torch.randn(2, 7, 3, generator=make, dtype=torch.float64)).Q
    turn = torch.linalg.qr(torch.randn(2, 3, 3, generator=make, dtype=torch.float64)).Q
    first, second = torch.triu_indices(3, 3)

    def of(forms, tangents):
        pairs = forms[:, :, first, second].transpose(1, 2)
        return SecondForms(pairs @ pairs.transpose(1, 2), torch.zeros(2), tangents)

    here = of(form.expand(2, -1, -1, -1), planes)
    there = of(torch.einsum("nac,pab,nbd->npcd", turn, form, turn), planes @ turn)
    torch.testing.assert_close(there.onto(planes).products, here.products)
    torch.testing.assert_close(here.towards(there, 0.7).products, here.products)
    torch.testing.assert_close(here.principal_squares(of=there), there.principal_squares())


@pytest.mark.parametrize("even", [True, False])
def test_noise_alone_has_no_curvature_on_average(even):
    squares = []
    for seed in range(200):
        make = torch.Generator().manual_seed(seed)
        patch, _ = one_patch(0.0, None if even else torch.linspace(0.01, 1, 60).double()[None])
        rows = patch.rows.clone()
        rows[:, :, 2:] = torch.randn(rows[:, :, 2:].shape, generator=make, dtype=torch.float64)
        squares.append(float(second_forms(Patches(**{**vars(patch), "rows": rows})).mean_square()))
    error = np.std(squares) / math.sqrt(len(squares))
    assert abs(np.mean(squares)) < 3 * error


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.01, 0.02])
def test_without_a_dimension_that_of_patches_is_taken(noise):
    """By nearest neighbours noise would count as dimensions, and in a plane of three a sphere is flat."""
    made = manifolds.sphere(4000, 2, 10, radius=2.0, noise=noise)
    found = local_geometry(made.rows, n_anchors=64)
    assert found.dimension == 2
    assert found.rms_curvature.value == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("noise", [0.001, 0.003, 0.01])
def test_too_high_a_dimension_takes_the_bend_into_the_plane_and_is_told(noise):
    made = manifolds.sphere(4000, 2, 10, noise=noise)
    found = local_geometry(made.rows, n_anchors=64, dimension=3)
    assert not found.resolved or found.rms_curvature.ci_high > 0.9


def test_ratios_to_what_may_be_flat_are_not_told():
    make = torch.Generator().manual_seed(0)
    told = []
    for seed in range(8):
        made = manifolds.cube(2000, 3, 12, noise=0.01, seed=seed)
        found = local_geometry(made.rows, n_anchors=64, k=80, dimension=3)
        falling = torch.arange(1, 81).double().pow(-1).expand(64, -1)
        told += [found.visible_ratio(falling)]
        one, other = (Subspace.span(torch.randn(4, 12, generator=make, dtype=torch.float64)) for _ in range(2))
        told += [found.along_ratio(one, other)]
    unknown = [ratio for ratio in told if math.isnan(ratio.value)]
    assert len(unknown) >= 12
    assert all((ratio.ci_low, ratio.ci_high) == (0.0, math.inf) for ratio in unknown)


def test_noise_in_the_coordinates_does_not_flatten_the_patch():
    """A tenth of the variance in the plane is noise: chosen by the distance around it, rows would show a fifth less."""
    made = manifolds.sphere(4000, 2, 20, noise=0.05)
    found = local_geometry(made.rows, k=96, dimension=2)
    assert found.rms_curvature.value == pytest.approx(1, rel=0.08)


def test_intervals_hold_the_truth(spheres):
    held = Counter()
    for found in spheres:
        largest, smallest = found.principal_curvatures
        intervals = {"rms": found.rms_curvature, "mean": found.mean_curvature, "largest": largest, "smallest": smallest}
        held.update(name for name, one in intervals.items() if one.ci_low <= 1 <= one.ci_high)
    assert min(held.values()) >= 17


def test_the_interval_of_visible_curvature_holds_that_of_the_true_form(spheres):
    held = 0
    for found in spheres:
        # II(u, u) = |u|^2 outward.
        distances = found.coordinates.square().sum(dim=2)
        truth = float((distances / 2).square().sum() / distances.sum())
        held += found.visible_curvature.ci_low <= truth <= found.visible_curvature.ci_high
    assert held >= 17


def test_fitted_anew_the_interval_holds_the_limit_as_well(spheres):
    held = 0
    for found in spheres[:10]:
        even = found.refitted(torch.ones(found.neighbours.shape))
        held += even.ci_low <= 1 <= even.ci_high
    assert held >= 8


def test_turning_and_scaling_the_rows():
    made = manifolds.sphere(1500, 2, 6, noise=0.01)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    found = local_geometry(made.rows, n_anchors=64, dimension=2)
    for factor in (1e-12, 1.0, 1e12):
        again = local_geometry(factor * made.rows @ turn + 3 * factor, n_anchors=64, dimension=2)
        assert again.k == found.k
        assert again.rms_curvature.value * factor == pytest.approx(found.rms_curvature.value, rel=1e-3)
        assert again.visible_curvature.value == pytest.approx(found.visible_curvature.value, rel=1e-3)
        assert again.radius == pytest.approx(factor * found.radius, rel=1e-4)
        # A squared height grows with the square of the rows, and a coordinate with the rows.
        heights = (float(one.bends.median()) for one in (again, found))
        assert next(heights) == pytest.approx(factor**2 * next(heights), rel=1e-3)
        lengths = (float(one.coordinates.norm(dim=2).median()) for one in (again, found))
        assert next(lengths) == pytest.approx(factor * next(lengths), rel=1e-3)


@pytest.mark.parametrize(("m", "noise", "k"), [(2, 0.02, 24), (3, 0.03, 20), (4, 0.03, 30)])
def test_small_and_noisy_patches_are_not_too_flat_on_average(m, noise, k):
    squares = []
    for seed in range(10):
        made = manifolds.sphere(4000, m, 20, noise=noise, seed=seed)
        fit = local_geometry(made.rows, k=k, dimension=m, seed=seed)
        squares.append(float(fit.choice.fit.forms.mean_square().mean()) / fit.scale**2)
    assert np.mean(squares) == pytest.approx(1, abs=max(3 * np.std(squares) / math.sqrt(10), 0.1))


@pytest.mark.parametrize("noise", [0.0, 0.005])
@pytest.mark.parametrize("n", [500, 8000])
def test_curves_are_one_piece(n, noise):
    found = local_geometry(manifolds.sphere(n, 1, 5, noise=noise, radius=2.0).rows, dimension=1)
    assert found.rms_curvature.value == pytest.approx(0.5, rel=0.1)


def test_a_few_rows_that_nearly_repeat_others_do_no_harm():
    made = manifolds.sphere(2000, 2, 10, noise=0.005)
    rows = torch.cat([made.rows, made.rows + 1e-6 * torch.randn(2000, 10, generator=torch.Generator().manual_seed(0))])
    found = local_geometry(rows, n_anchors=64, k=96, dimension=2)
    assert found.rms_curvature.value == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("far", [1e2, 1e4])
def test_rows_in_two_places_far_from_each_other_in_fp32(far):
    """An anchor comes first of its patch, and its neighbours are near it, though their distances have few digits."""
    ball = manifolds.sphere(2000, 2, 10, noise=0.01).rows
    rows = torch.cat([ball, ball + far]).float()
    found = local_geometry(rows, n_anchors=64, k=96, dimension=2)
    assert torch.equal(found.neighbours[:, 0], found.anchors)
    assert float((rows[found.neighbours] - rows[found.anchors][:, None]).norm(dim=2).max()) < 2


def test_few_anchors_choose_a_size_as_many_do():
    made = manifolds.sphere(4000, 2, 10, noise=0.01)
    for n_anchors in (1, 3):
        found = local_geometry(made.rows, n_anchors=n_anchors, dimension=2)
        assert found.k > 24
        assert found.rms_curvature.value == pytest.approx(1, rel=0.15)
    assert math.isfinite(found.rms_curvature.ci_high)


def test_weights_that_only_larger_patches_can_take():
    made = manifolds.sphere(4000, 2, 10, noise=0.01)
    weights = torch.rand(4000, generator=torch.Generator().manual_seed(0)).double() ** -0.8
    found = local_geometry(made.rows, dimension=2, weights=weights)
    assert found.rms_curvature.ci_low <= 1.01
    assert found.rms_curvature.ci_high >= 0.99


def test_weights_that_have_nothing_to_do_with_the_place_change_nothing():
    """Around anchors that are heavy themselves, in a cloud where any plane is as good as another."""
    make = torch.Generator().manual_seed(0)
    cloud = torch.randn(3000, 30, generator=make)
    weights = torch.arange(1, 3001).double().pow(-1)[torch.randperm(3000, generator=make)]
    found = local_geometry(cloud, anchors=weights.multinomial(128, generator=make), k=80, dimension=3)
    for alpha in (0.0, 0.25, 0.5, 0.75):
        again = found.refitted(weights.pow(alpha)[found.neighbours])
        assert again.ci_low == 0 < again.ci_high, alpha
    assert found.refitted(torch.ones(found.neighbours.shape)).value == pytest.approx(found.rms_curvature.value)


def test_equal_rows_are_one_row_that_is_seen_more_often():
    made = manifolds.sphere(1000, 2, 6, noise=0.01)
    times = torch.randint(1, 4, (1000,), generator=torch.Generator().manual_seed(0))
    repeated = local_geometry(made.rows.repeat_interleave(times, dim=0), n_anchors=64, k=40, dimension=2)
    assert repeated.n_duplicates == int(times.sum()) - 1000
    once = local_geometry(made.rows, n_anchors=64, k=40, dimension=2)
    # Without weights each occurrence counts.
    weighted = local_geometry(made.rows, n_anchors=64, k=40, dimension=2, weights=times)
    assert repeated.rms_curvature.value == pytest.approx(weighted.rms_curvature.value, rel=1e-9)
    assert repeated.rms_curvature.value != once.rms_curvature.value


def test_a_radius_is_as_many_rows_as_it_holds():
    made = manifolds.sphere(4000, 2, 6)
    found = local_geometry(made.rows, n_anchors=64, radius=0.3, dimension=2)
    assert found.radius == pytest.approx(0.3, rel=0.05)
    assert found.reason.startswith("the only size that was asked for")


@given(st.integers(2, 5), st.integers(0, 10**6))
def test_weights_that_fall_with_the_distance_never_show_more_curvature(m, seed):
    """Any form, any radii, any directions at each of them, any falling weights: what the inequality is about."""
    make = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    pairs = m * (m + 1) // 2
    half = draw(1, pairs, 3)
    forms = SecondForms(half @ half.transpose(1, 2), torch.zeros(1), torch.eye(m).double()[None])
    radii = draw(7).exp().sort().values
    directions = torch.nn.functional.normalize(draw(9, m), dim=1)
    u = (radii[:, None, None] * directions).reshape(1, -1, m)
    falling = draw(7).abs().sort(descending=True).values.repeat_interleave(9)[None]
    bends, distances = forms.bends(u), u.square().sum(dim=2)
    seen = float((falling * bends).sum() / (falling * distances).sum())
    assert seen <= float(bends.sum() / distances.sum()) * (1 + 1e-9)


def test_patches_that_are_not_small_or_planes_that_do_not_stand_out_are_told():
    cloud = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
    found = local_geometry(cloud, n_anchors=64, dimension=2)
    assert not found.resolved
    assert "NOT RESOLVED" in repr(found)
    assert local_geometry(manifolds.sphere(300, 4, 30).rows, n_anchors=64, dimension=4, k=150).resolved is False


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_a_part_of_the_rows_that_is_no_surface_is_told(share):
    ball = manifolds.sphere(int(4000 * (1 - share)), 2, 10, noise=0.005).rows
    make = torch.Generator().manual_seed(0)
    blob = 3 + 0.3 * torch.randn(int(4000 * share), 10, generator=make, dtype=torch.float64)
    assert local_geometry(ball, n_anchors=128, dimension=2).resolved
    assert not local_geometry(torch.cat([ball, blob]), n_anchors=128, dimension=2).resolved


@pytest.mark.parametrize("factor", [1e-300, 1e-160, 1e160, 1e308])
def test_very_small_and_very_large_rows(factor):
    made = manifolds.sphere(1500, 2, 6, noise=0.01)
    one, other = (local_geometry(factor_ * made.rows, n_anchors=64, dimension=2) for factor_ in (1.0, factor))
    for name in ("rms_curvature", "mean_curvature"):
        expected, found = getattr(one, name), getattr(other, name)
        for end in ("value", "low", "high"):
            assert getattr(found, end) * factor == pytest.approx(getattr(expected, end), rel=1e-6)
    # What bends and what spreads are both squares.
    assert other.visible_curvature.ci_high == pytest.approx(one.visible_curvature.ci_high, rel=1e-6)
    assert other.radius == pytest.approx(factor * one.radius, rel=1e-6)


def drawn(n, d, through=None):
    make = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=make) if through is None else drawn(n, through) @ drawn(through, d)


def clusters():
    make = torch.Generator().manual_seed(0)
    return (100 * torch.randn(40, 1, 6, generator=make) + torch.randn(40, 30, 6, generator=make)).flatten(0, 1)


def line():
    return torch.linspace(0, 1, 1600)[:, None] * torch.ones(5)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (drawn(50, 8), {"dimension": 4}, r"dimension 4 needs at least 60 distinct rows, 4 .* 15 .* but 50 came"),
        (drawn(30, 20, through=6), {}, r"which is the intrinsic dimension of these rows needs at least"),
        (drawn(500, 4), {"dimension": 4}, "dimension must be at least 1 and below the width 4, but is 4"),
        (drawn(500, 8), {"dimension": 2, "k": 8}, r"between 12 rows .* and 250 .* but k is 8"),
        (drawn(500, 8), {"dimension": 2, "k": 300}, "but k is 300"),
        (drawn(500, 8), {"dimension": 2, "radius": 1e-3}, "the radius contains 1 of them in the median"),
        (drawn(500, 8), {"k": 20, "radius": 1.0}, "k or radius must be given, not both"),
        (clusters(), {"dimension": 2, "k": 60}, r"must be one piece, but in \d+ of 256 patches of 60 rows"),
        (line(), {"dimension": 2}, "12 rows of a patch must spread over all 6 monomials .* in 256 of 256 patches"),
        (drawn(500, 8), {"dimension": 2, "weights": torch.zeros(500)}, "a number above 0 for each of the 500"),
        (drawn(500, 8), {"dimension": 2, "weights": torch.ones(3)}, r"for each of the 500 rows, but .* \(3,\)"),
        (
            drawn(500, 8),
            {"dimension": 2, "k": 40, "weights": torch.logspace(0, 30, 500)},
            r"weights must leave more than 6 rows .* of 40 rows they leave",
        ),
        (drawn(500, 8), {"dimension": 2, "weights": -torch.ones(500)}, "a number above 0 for each of the 500"),
        (drawn(500, 8), {"dimension": 2, "weights": "often"}, "weights must be numbers in a tensor"),
        (drawn(500, 8), {"dimension": 2, "anchors": torch.ones(3).to_sparse()}, "anchors must be a dense tensor"),
        (drawn(500, 8), {"dimension": 2, "seed": -1}, "seed must be a whole number of at least 0, but is -1"),
        (drawn(500, 8) * 1j, {"dimension": 2}, "rows must be a dense tensor of real numbers, but is torch.complex64"),
        (drawn(500, 8), {"n_anchors": 0}, "n_anchors must be a whole number of at least 1, but is 0"),
        (drawn(500, 8), {"dimension": 2, "anchors": torch.ones(500).bool()}, "anchors must be indices of rows"),
        (drawn(500, 8), {"dimension": 2, "radius": -1.0}, "radius must be a number above 0, but is -1.0"),
        (torch.full((500, 8), torch.nan), {"dimension": 2}, "every value must be finite"),
        (torch.ones(500, 8), {"dimension": 2}, "but 1 came .499 more were duplicates"),
    ],
)
def test_what_cannot_be_told_is_refused_with_numbers(rows, options, message):
    with pytest.raises(InputError, match=message):
        local_geometry(rows, **options)


def test_what_is_asked_of_a_geometry_must_fit_it():
    found = local_geometry(drawn(500, 8), n_anchors=32, k=40, dimension=2)
    anchors_alone = torch.eye(40)[0].expand(32, -1)
    for weights in (
        torch.ones(3),
        -torch.ones(32, 40),
        torch.zeros(32, 40),
        anchors_alone,
        torch.full((32, 40), math.nan),
    ):
        with pytest.raises(InputError, match=r"for each of \(32, 40\) rows of patches"):
            found.visible(weights)
        with pytest.raises(InputError, match=r"for each of \(32, 40\) rows of patches"):
            found.visible_ratio(weights)
    with pytest.raises(InputError, match=r"must lie in R\^8, the space of the rows, but lie in R\^5"):
        found.along(Subspace.span(torch.eye(5)))
