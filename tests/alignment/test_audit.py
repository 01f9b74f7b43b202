import pytest
import torch

from tangentlens import InputError, audit, manifolds
from tangentlens.alignment.checks import CHECKS
from tangentlens.geometry.tangents import local_tangents


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
    any_direction, sequences = noise(rows), torch.arange(3000) // 30
    tangent = torch.einsum("nij,nj->ni", projector, any_direction)
    made = {
        "tangent": tangent + 0.1 * noise(rows, 2),
        "normal": any_direction - tangent,
        "indifferent": any_direction,
    }
    dimension = 2 if name == "swiss roll" else 3
    given = dimension if name == "noisy sphere" else None
    for expected, gradients in made.items():
        found = audit(rows, gradients, sequences, rank=4, dimension=given)
        assert found.says == expected, found


def test_gradients_along_the_space_around_a_curved_sheet_are_not_called_tangent():
    """They lie in the 4 dimensions of the sphere, of which 3 are tangent anywhere: other places do as well."""
    rows, _ = sphere()
    span = torch.linalg.svd(rows, full_matrices=False).Vh[:4]
    assert audit(rows, noise(rows) @ span.T @ span, torch.arange(3000) // 30, rank=4).says == "variance"


def test_every_check_is_done_and_its_numbers_say_what_they_are_over():
    rows, projector = sphere()
    gradients = torch.einsum("nij,nj->ni", projector, noise(rows))
    sequences = torch.arange(3000) // 30
    found = audit(rows, gradients, sequences, rank=4, others={"noise": (rows, noise(rows), sequences)})
    assert [check.name for check in found.checks] == [*CHECKS, "against noise"]
    assert not [check.name for check in found.checks if check.found.startswith("not done")]
    assert set(found.table["ci_over"]) == {"sequences", "seeds", "resampled sequences"}
    assert (found.table["ci_low"] <= found.table["value"] + 1e-9).all()
    assert (found.table["value"] <= found.table["ci_high"] + 1e-9).all()
    page = repr(found)
    assert page.count("found: ") == page.count("means: ") == len(found.checks)


def test_charts_prefer_their_own_plane_where_gradients_are_tangent_and_none_once_they_are_dealt_out():
    rows, projector = sphere()
    gradients = torch.einsum("nij,nj->ni", projector, noise(rows))
    table = audit(rows, gradients, torch.arange(3000) // 30, rank=6).table.filter(check="charts")
    low, high = ({row["quantity"]: row[end] for row in table.iter_rows(named=True)} for end in ("ci_low", "ci_high"))
    assert low["log_ratio"] > 0
    assert low["log_ratio of dealt gradients"] < 0 < high["log_ratio of dealt gradients"] + 0.05


def test_another_step_is_told_apart_from_this_one(generator):
    """Activations spread along other axes there, and gradients follow the activations of their own step."""
    scale = torch.ones(24, dtype=torch.float64)
    scale[:4] = 8
    sequences = torch.arange(2000) // 20

    def step(scale):
        x, g = (torch.randn(2000, 24, generator=generator, dtype=torch.float64) * scale for _ in range(2))
        return x, g, sequences

    here, there = step(scale), step(scale.flip(0))
    found = audit(*here, rank=4, others={"another step": there})
    row = found.table.filter(check="against another step")
    value = dict(zip(row["quantity"], row["value"], strict=True))
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
    a, b = (audit(rows[:900], noise(rows)[:900], torch.arange(900) // 30, rank=4, seed=3) for _ in range(2))
    assert repr(a) == repr(b)


def test_bad_input_says_what_to_do():
    rows, sequences = noise(torch.zeros(200, 8)), torch.arange(200) // 10
    with pytest.raises(InputError, match=r"a row for each token, but are \(200, 8\), \(199, 8\) and \(200,\)"):
        audit(rows, rows[1:], sequences)
    with pytest.raises(InputError, match="between 1 and 4, half the width, but is 16"):
        audit(rows, rows, sequences)
    with pytest.raises(InputError, match="between 1 and 7, below the width, but is 8"):
        audit(rows, rows, sequences, rank=2, dimension=8)
    with pytest.raises(InputError, match="must not be zero"):
        audit(rows, torch.zeros_like(rows), sequences, rank=2)
    with pytest.raises(InputError, match="at least 4 sequences"):
        audit(rows, rows, sequences // 10, rank=2)
