import pytest
import torch

from tangentlens import InputError, audit, manifolds
from tangentlens.alignment.audit_data import AuditData
from tangentlens.alignment.checks import CHECKS, against, curvature_along_the_proxy, own_and_swapped_charts
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_planes import in_tangent_planes
from tangentlens.geometry.curvature.tangents import local_tangents


def noise(rows, seed=1):
    return torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed), dtype=rows.dtype)


def sphere(noise_level=0.0, seed=0):
    """Rows, and for each an exact basis of its tangent plane, from the radius and the space the sphere lies in."""
    rows = manifolds.sphere(3000, dimension=3, dim=24, noise=noise_level, seed=seed).rows
    span = torch.linalg.svd(rows, full_matrices=False).Vh[:4]
    outward = torch.nn.functional.normalize(rows @ span.T @ span, dim=1)
    tangent = span.T @ span - outward[:, :, None] * outward[:, None, :]
    return rows, tangent


def flat(seed=0):
    rows = manifolds.cube(3000, dimension=3, dim=24, seed=seed).rows
    span = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False).Vh[:3]
    return rows, (span.T @ span).expand(3000, 24, 24)


def estimated(rows, dimension):
    """Where no formula is at hand: planes of a cloud 10 times as dense, which the audit does not see."""
    planes = local_tangents(rows, rows[:3000], dimension, k=20)
    return rows[:3000], planes @ planes.transpose(1, 2)


CASES = {
    "sphere": sphere,
    "noisy sphere": lambda: sphere(noise_level=0.01),
    "cube": flat,
    "torus": lambda: estimated(manifolds.torus(30000, dimension=3, dim=24).rows, 3),
    "swiss roll": lambda: estimated(manifolds.swiss_roll(30000, dim=24).rows, 2),
    "quadratic": lambda: estimated(manifolds.quadratic(30000, dimension=3, dim=24).rows, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_says_what_the_gradients_were_made_to_be(name):
    rows, projector = CASES[name]()
    any_direction = noise(rows)
    tangent = torch.einsum("nij,nj->ni", projector, any_direction)
    made = {
        "tangent": tangent + 0.1 * noise(rows, 2),
        "normal": any_direction - tangent,
        "indifferent": any_direction,
    }
    for expected, gradients in made.items():
        found = in_tangent_planes(audited(rows, gradients, length=30, dimension=None))
        assert found.says == expected, found


def test_gradients_along_the_space_around_a_curved_sheet_are_not_called_tangent():
    """They lie in the 4 dimensions of the sphere, of which 3 are tangent anywhere: other places do as well."""
    rows, _ = sphere()
    span = torch.linalg.svd(rows, full_matrices=False).Vh[:4]
    on = audited(rows, noise(rows) @ span.T @ span, length=30, dimension=None)
    assert in_tangent_planes(on).says == "variance"


def test_every_check_is_done_and_its_numbers_say_what_they_are_over():
    rows, projector = sphere()
    gradients = torch.einsum("nij,nj->ni", projector, noise(rows))
    sequences = torch.arange(3000) // 30
    found = audit(rows, gradients, sequences, rank=4, others={"noise": (rows, noise(rows), sequences)})
    assert [check.name for check in found.checks] == [*CHECKS, "against noise", "active concepts of noise"]
    assert not [check.name for check in found.checks if check.found.startswith("not done")]
    assert set(found.table["ci_over"]) == {"sequences", "seeds", "resampled sequences", "anchors"}
    assert (found.table["ci_low"] <= found.table["value"] + 1e-9).all()
    assert (found.table["value"] <= found.table["ci_high"] + 1e-9).all()
    page = repr(found)
    assert page.count("found: ") == page.count("means: ") == len(found.checks)


def test_charts_prefer_their_own_plane_where_gradients_are_tangent_and_none_once_they_are_permuted():
    rows, projector = sphere()
    gradients = torch.einsum("nij,nj->ni", projector, noise(rows))
    found = own_and_swapped_charts(audited(rows, gradients, length=30, rank=6)).estimates
    assert found["log_ratio"].ci_low > 0
    permuted = found["log_ratio of permuted gradients"]
    assert permuted.ci_low < 0 < permuted.ci_high + 0.05


def test_another_step_is_told_apart_from_this_one(generator):
    """Activations spread along other axes there, and gradients follow the activations of their own step."""
    scale = torch.ones(24, dtype=torch.float64)
    scale[:4] = 8

    def step(scale):
        return (torch.randn(2000, 24, generator=generator, dtype=torch.float64) * scale for _ in range(2))

    here, there = audited(*step(scale), length=20), TokenRows.of(*step(scale.flip(0)), torch.arange(2000) // 20)
    value = {name: found.value for name, found in against(here, "another step", there).estimates.items()}
    assert value["this proxy on these gradients"] > 0.9 > 0.1 > value["that of another step on these gradients"]
    assert value["this proxy on those of another step"] < 0.1
    assert value["that of another step on those of another step"] > 0.9


def test_what_rows_do_not_allow_is_told_in_its_place():
    rows, _ = sphere()
    found = audit(rows[:60], noise(rows)[:60], torch.arange(60) // 6, rank=4)
    charts = next(check for check in found.checks if check.name == "charts")
    assert charts.found.startswith("not done: at least 2 charts")
    assert next(check for check in found.checks if check.name == "stability").estimates


def test_same_seed_same_page():
    rows, _ = sphere()
    a, b = (audit(rows[:600], noise(rows)[:600], torch.arange(600) // 30, rank=4, seed=3) for _ in range(2))
    assert repr(a) == repr(b)


def test_bad_input_says_what_to_do():
    rows, sequences = noise(torch.zeros(200, 8)), torch.arange(200) // 10
    with pytest.raises(
        InputError, match=r"gradients must be \(200, 8\), a row for each activation, but came as \(199, 8\)"
    ):
        audit(rows, rows[1:], sequences)
    with pytest.raises(InputError, match="between 1 and 4, half the width, but is 16"):
        audit(rows, rows, sequences)
    with pytest.raises(InputError, match="between 1 and 7, below the width, but is 8"):
        audit(rows, rows, sequences, rank=2, dimension=8)
    with pytest.raises(InputError, match="must not be zero"):
        audit(rows, torch.zeros_like(rows), sequences, rank=2)
    with pytest.raises(InputError, match="at least 4 sequences"):
        audit(rows, rows, sequences // 10, rank=2)


def audited(rows, gradients, length, rank=4, dimension=3):
    fit, test = TokenRows.of(rows, gradients, torch.arange(len(rows)) // length).halves()
    return AuditData(fit, test, rank, dimension, seed=0)


def unrelated(n, d, power, seed):
    """Gradients that know nothing of the activations, but have directions they like."""
    make = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(d, d, generator=make, dtype=torch.float64)).Q
    spread = torch.arange(1, d + 1, dtype=torch.float64) ** -power
    return torch.randn(n, d, generator=make, dtype=torch.float64) * spread @ axes.T


@pytest.mark.parametrize(("shape", "power"), [("cube", 1.0), ("sphere", 2.0)])
def test_unrelated_gradients_with_directions_of_their_own_are_called_neither_tangent_nor_normal(shape, power):
    said = []
    for seed in range(12):
        rows = getattr(manifolds, shape)(900, dimension=3, dim=24, seed=seed).rows
        said.append(in_tangent_planes(audited(rows, unrelated(900, 24, power, seed + 100), length=10)).says)
    assert set(said) <= {"indifferent", "unknown"}, said


def test_charts_of_uneven_size_prefer_nothing_if_gradients_are_unrelated():
    """Were big charts to count more, their planes would be one's own more often than another's."""
    claimed = 0
    for seed in range(8):
        make = torch.Generator().manual_seed(seed)
        cluster = torch.multinomial(torch.arange(1.0, 9.0), 3000, replacement=True, generator=make)
        centers = 6 * torch.randn(8, 32, generator=make, dtype=torch.float64)
        rows = centers[cluster] + torch.randn(3000, 32, generator=make, dtype=torch.float64)
        check = own_and_swapped_charts(audited(rows, unrelated(3000, 32, 1.0, seed + 100), length=30, rank=8))
        mean, _, _ = check.means.partition(". Chart by chart")
        claimed += "significantly above" in mean or "significantly below" in mean
    assert claimed <= 2


def test_what_cannot_be_told_is_not_called_indifferent():
    rows, _ = sphere()
    few = in_tangent_planes(audited(rows[:60], noise(rows)[:60], length=15))
    assert few.says == "unknown", few.found


def test_dimension_of_the_whole_space_leaves_no_normals():
    rows = noise(torch.zeros(600, 4))
    found = audit(rows, noise(rows, 2), torch.arange(600) // 10, rank=2)
    check = next(check for check in found.checks if check.name == "proxy and tangents")
    assert "nan" not in repr(found)
    assert (
        check.found.startswith("not done") or found.table.filter(check="proxy and tangents")["value"].is_finite().all()
    )


def scaled_audit(scale):
    rows = sphere()[0][:1500]
    return audit((rows * scale).float(), (noise(rows) * scale).float(), torch.arange(1500) // 30, rank=4)


@pytest.fixture(scope="module")
def plain():
    return scaled_audit(1.0)


@pytest.mark.parametrize("scale", [2.0**-70, 2.0**50])
def test_scale_changes_nothing(scale, plain):
    scaled = scaled_audit(scale)
    assert plain.says == scaled.says
    # A curvature is one over a length.
    length = plain.table["quantity"].str.starts_with("curvature").to_list()
    values = zip(plain.table["value"], scaled.table["value"], length, strict=True)
    for a, b in ((a, b * scale if is_length else b) for a, b, is_length in values):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-3)


def test_curvature_along_the_proxy_is_that_of_its_own_directions():
    """A long cylinder: most of its variance, and so the proxy, lies along the axis, where it does not bend."""
    make = torch.Generator().manual_seed(0)
    angle = 2 * torch.pi * torch.rand(4000, 1, generator=make)
    axis = 12 * torch.rand(4000, 1, generator=make)
    rows = torch.cat([angle.cos(), angle.sin(), axis, torch.zeros(4000, 9)], dim=1)
    rows = rows + 0.01 * torch.randn(4000, 12, generator=make)
    on = audited(rows, torch.randn(4000, 12, generator=make), length=20, rank=1, dimension=2)
    check = curvature_along_the_proxy(on)
    assert check.estimates["curvature along the proxy"].value < 0.15
    assert check.estimates["curvature"].value == pytest.approx((3 / 8) ** 0.5, rel=0.1)
    assert check.means == "the curvature along the proxy is significantly below that along random directions"
    assert check.estimates["ratio to pca"].ci_low <= 1 <= check.estimates["ratio to pca"].ci_high
