import math

import pytest
import torch

from tangentlens import InputError, manifolds

MAKERS = {
    "linear": lambda **options: manifolds.linear(400, 3, 12, **options),
    "cube": lambda **options: manifolds.cube(400, 3, 12, **options),
    "ball": lambda **options: manifolds.ball(400, 3, 12, **options),
    "sphere": lambda **options: manifolds.sphere(400, 3, 12, **options),
    "ellipsoid": lambda **options: manifolds.ellipsoid(400, [1, 2, 3], 12, **options),
    "cylinder": lambda **options: manifolds.cylinder(400, 3, 12, **options),
    "torus": lambda **options: manifolds.torus(400, 3, 12, **options),
    "swiss roll": lambda **options: manifolds.swiss_roll(400, 12, **options),
    "quadratic": lambda **options: manifolds.quadratic(400, 3, 12, **options),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_gives_the_same_rows_and_noise_blurs_them(name):
    first, again, other = MAKERS[name](), MAKERS[name](), MAKERS[name](seed=1)
    assert torch.equal(first.rows, again.rows)
    assert not torch.equal(first.rows, other.rows)
    assert first.name == name
    assert torch.linalg.matrix_rank(first.rows) < 12
    assert torch.linalg.matrix_rank(MAKERS[name](noise=0.1).rows) == 12


def test_noise_has_the_standard_deviation_asked_for():
    clean, noisy = manifolds.cube(4000, 2, 30), manifolds.cube(4000, 2, 30, noise=0.2)
    assert float((noisy.rows - clean.rows).std()) == pytest.approx(0.2, rel=0.01)


def test_too_few_dimensions_are_refused():
    with pytest.raises(InputError, match="sphere of dimension 3 needs dim of at least 4, but it is 3"):
        manifolds.sphere(10, 3, 3)


def numerical_curvature(place, at, step=1e-3):
    """Root mean square of |II(u, u)| by finite differences of a chart, over many unit tangents."""
    m = len(at)
    eye = torch.eye(m, dtype=torch.float64) * step
    first = torch.stack([(place(at + e) - place(at - e)) / (2 * step) for e in eye], dim=1)
    second = torch.stack(
        [
            torch.stack([(place(at + a + b) - place(at + a - b) - place(at - a + b) + place(at - a - b)) for b in eye])
            for a in eye
        ]
    ) / (4 * step**2)
    q, r = torch.linalg.qr(first)
    normal = second - second @ q @ q.T
    angles = torch.nn.functional.normalize(
        torch.randn(200_000, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    # Coordinates of unit tangents in the chart.
    u = torch.linalg.solve_triangular(r, angles.T, upper=True).T
    bent = torch.einsum("abx,na,nb->nx", normal, u, u)
    return float(bent.square().sum(dim=1).mean().sqrt())


def test_the_curvature_of_a_quadratic_graph_is_that_of_its_chart():
    made = manifolds.quadratic(5, 2, 6, normals=3, seed=2)
    draw = manifolds._Draw(2)
    u = torch.nn.functional.normalize(draw.normal(5, 2), dim=1) * draw.uniform(5, 1) ** 0.5
    half = draw.normal(3, 4).reshape(3, 2, 2)
    form = (half + half.transpose(1, 2)) / math.sqrt(2)

    def place(v):
        return torch.cat([v, torch.einsum("pab,a,b->p", form, v, v) / 2])

    for i in range(5):
        assert float(made.curvature[i]) == pytest.approx(numerical_curvature(place, u[i]), rel=0.01)


def test_the_curvature_of_an_ellipsoid_is_that_of_its_chart_and_places_are_even_by_area():
    made = manifolds.ellipsoid(4000, [1.0, 2.0, 3.0], 3)
    points = made.rows @ made.rotation
    assert float((points / torch.tensor([1.0, 2.0, 3.0])).norm(dim=1).sub(1).abs().max()) < 1e-9

    def place(v):
        # Over the first two coordinates, on the upper half.
        return torch.cat([v, 3 * (1 - v[:1] ** 2 - (v[1:] / 2) ** 2).sqrt()])

    for i in (points[:, 2] > 1).nonzero()[:5, 0].tolist():
        assert float(made.curvature[i]) == pytest.approx(numerical_curvature(place, points[i, :2]), rel=0.01)
    # Of a spheroid, the part of the area beyond a height is an integral of one number.
    made = manifolds.ellipsoid(20_000, [1.0, 1.0, 3.0], 3)
    height = ((made.rows @ made.rotation)[:, 2] / 3).abs()
    z = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    band = (1 + (1 / 9 - 1) * z**2).sqrt()
    for limit in (0.3, 0.6, 0.9):
        expected = float(band[z > limit].sum() / band.sum())
        assert float((height > limit).double().mean()) == pytest.approx(expected, abs=0.01)


def test_the_curvature_of_a_torus_is_that_of_its_chart():
    made = manifolds.torus(1, 3, 6, radius=2.0)
    chart = numerical_curvature(lambda v: 2 * torch.cat([v.cos(), v.sin()]), torch.zeros(3, dtype=torch.float64))
    assert float(made.curvature[0]) == pytest.approx(chart, rel=0.01)


def test_the_curvature_of_a_roll_is_that_of_its_chart():
    made = manifolds.swiss_roll(1, 3, seed=3)
    # The curvature falls with t, so it tells t.
    grid = torch.linspace(1.5 * math.pi, 4.5 * math.pi, 10_001, dtype=torch.float64)
    bend = math.sqrt(3 / 8) * (grid**2 + 2) / (grid**2 + 1) ** 1.5
    t = float(grid[(bend - made.curvature[0]).abs().argmin()])

    def place(v):
        return torch.stack([v[0] * v[0].cos(), v[0] * v[0].sin(), v[1]])

    at = torch.tensor([t, 0.0], dtype=torch.float64)
    assert float(made.curvature[0]) == pytest.approx(numerical_curvature(place, at), rel=0.01)


def test_a_roll_is_uniform_by_area():
    """Equal lengths of the spiral hold equally many rows."""
    rows = manifolds.swiss_roll(20_000, 3, height=1e-9).rows
    t = rows.norm(dim=1)
    length = (t * (1 + t**2).sqrt() + t.asinh()) / 2
    counts = length.histogram(bins=10).hist
    assert float(counts.min() / counts.max()) > 0.9


def test_the_curvature_of_a_cylinder_is_that_of_its_chart():
    made = manifolds.cylinder(1, 3, 6, radius=2.0)
    chart = numerical_curvature(
        lambda v: torch.stack([2 * (v[0] / 2).cos(), 2 * (v[0] / 2).sin(), v[1], v[2]]),
        torch.zeros(3, dtype=torch.float64),
    )
    assert float(made.curvature[0]) == pytest.approx(chart, rel=0.01)


@pytest.mark.parametrize("name", MAKERS)
def test_tangent_planes_are_where_the_nearest_rows_lie(name):
    """A naive estimate: the nearest of very many rows differ from a row along its plane."""
    makers = {
        "swiss roll": lambda: manifolds.swiss_roll(60_000, 8),
        "ellipsoid": lambda: manifolds.ellipsoid(60_000, [1, 2, 3], 8),
    }
    made = makers[name]() if name in makers else getattr(manifolds, name)(60_000, 2, 8)
    planes = made.tangents(torch.arange(20))
    torch.testing.assert_close(planes.transpose(1, 2) @ planes, torch.eye(2).double().expand(20, 2, 2))
    steps = made.rows - made.rows[:20, None]
    near = steps.norm(dim=2).topk(8, dim=1, largest=False).indices[:, 1:]
    near_steps = steps.gather(1, near[:, :, None].expand(-1, -1, 8))
    inside = (near_steps @ planes).square().sum(dim=(1, 2)) / near_steps.square().sum(dim=(1, 2))
    assert inside.min() > 0.99
