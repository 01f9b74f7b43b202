"""Test manifolds whose dimension, curvature and entropy are known: the ground truth for estimators.

Each function samples `n` points of a manifold, rotates them into R^dim by a random rotation, and adds Gaussian noise of
standard deviation `noise` to every coordinate. With the second fundamental form II, the curvature at a row is the root
mean square of |II(u, u)| over unit tangents u (docs/measures/curvature.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError


@dataclass(frozen=True, eq=False)
class Manifold:
    """Rows drawn from a manifold, and the truth about the manifold without noise.

    Attributes:
        name: What manifold it is.
        rows: The sampled points `(n, d)`, rotated into R^d, with noise.
        dimension: The dimension m of the manifold.
        curvature: The root mean square of |II(u, u)| over unit tangents u, at each row.
        entropy: The differential entropy of the sampling density on the manifold, in nats; None if it is not known.
        rotation: Orthonormal columns `(d, a)` that place R^a, in which the manifold is defined, into R^d.
        frames: An orthonormal basis `(a, m)` of the tangent plane at each row, before the rotation.
    """

    name: str
    rows: Float[Tensor, "n d"]
    dimension: int
    curvature: Float[Tensor, "n"]
    entropy: float | None
    rotation: Float[Tensor, "d a"]
    frames: Float[Tensor, "n a m"]

    def tangents(self, which: Int[Tensor, "k"]) -> Float[Tensor, "k d m"]:
        """Return an orthonormal basis `(d, m)` of the tangent plane at each of the rows `which`."""
        return self.rotation @ self.frames[which]

    def __repr__(self) -> str:
        n, d = self.rows.shape
        return f"Manifold({self.name}, dimension {self.dimension}, {n} rows in R^{d})"


def linear(n: int, dimension: int, dim: int, noise: float = 0.0, seed: int = 0) -> Manifold:
    """Return a standard Gaussian sample of a linear subspace.

    Args:
        n: Number of rows.
        dimension: Dimension m of the subspace.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the sample, the rotation and the noise.

    >>> linear(100, dimension=2, dim=5)
    Manifold(linear, dimension 2, 100 rows in R^5)
    """
    draw = _Draw(seed)
    entropy = dimension / 2 * math.log(2 * math.pi * math.e)
    return draw.placed(
        "linear", draw.normal(n, dimension), dimension, dim, noise, torch.zeros(n), entropy, _flat(n, dimension)
    )


def cube(n: int, dimension: int, dim: int, noise: float = 0.0, seed: int = 0) -> Manifold:
    """Return a uniform sample of the unit cube [0, 1]^m.

    Args:
        n: Number of rows.
        dimension: Dimension m of the cube.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the sample, the rotation and the noise.
    """
    draw = _Draw(seed)
    return draw.placed(
        "cube", draw.uniform(n, dimension), dimension, dim, noise, torch.zeros(n), 0.0, _flat(n, dimension)
    )


def ball(n: int, dimension: int, dim: int, noise: float = 0.0, seed: int = 0, radius: float = 1.0) -> Manifold:
    """Return a uniform sample of a solid ball in R^m.

    Args:
        n: Number of rows.
        dimension: Dimension m of the ball.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the sample, the rotation and the noise.
        radius: Radius of the ball.
    """
    draw = _Draw(seed)
    direction = torch.nn.functional.normalize(draw.normal(n, dimension), dim=1)
    points = radius * direction * draw.uniform(n, 1) ** (1 / dimension)
    entropy = _log_ball(dimension) + dimension * math.log(radius)
    return draw.placed("ball", points, dimension, dim, noise, torch.zeros(n), entropy, _flat(n, dimension))


def sphere(n: int, dimension: int, dim: int, noise: float = 0.0, seed: int = 0, radius: float = 1.0) -> Manifold:
    """Return a uniform sample of a sphere, the surface of a ball in R^(dimension + 1).

    Its curvature is 1 / radius.

    Args:
        n: Number of rows.
        dimension: Dimension m of the sphere.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the sample, the rotation and the noise.
        radius: Radius of the sphere.
    """
    draw = _Draw(seed)
    points = radius * torch.nn.functional.normalize(draw.normal(n, dimension + 1), dim=1)
    entropy = math.log(dimension + 1) + _log_ball(dimension + 1) + dimension * math.log(radius)
    return draw.placed("sphere", points, dimension, dim, noise, torch.full((n,), 1 / radius), entropy, _beside(points))


def ellipsoid(n: int, axes: Sequence[float], dim: int, noise: float = 0.0, seed: int = 0) -> Manifold:
    """Return a sample of the surface sum (x_i / axes_i)^2 = 1, uniform by area.

    Its curvature differs from place to place. With the gradient g of that sum and its second derivatives H,
    II(u, u) = u H u / |g| along the normal g / |g|.

    Args:
        n: Number of rows.
        axes: Half the length of each axis; the surface has one dimension fewer than there are axes.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the sample, the rotation and the noise.
    """
    draw = _Draw(seed)
    half = torch.tensor(axes, dtype=torch.float64)
    # The map from the unit sphere stretches area at v by |v / axes|, up to a constant. Rejection with that probability
    # makes points uniform by area.
    points = torch.zeros(0, len(half), dtype=torch.float64)
    while len(points) < n:
        v = torch.nn.functional.normalize(draw.normal(n, len(half)), dim=1)
        kept = draw.uniform(n, 1)[:, 0] < (v / half).norm(dim=1) * half.amin()
        points = torch.cat([points, half * v[kept]])[:n]
    slope = points / half.square()
    frames = _beside(slope)
    second = frames.transpose(1, 2) @ (frames / half.square()[:, None]) / slope.norm(dim=1)[:, None, None]
    m = len(half) - 1
    trace = second.diagonal(dim1=1, dim2=2).sum(dim=1)
    curvature = ((trace.square() + 2 * second.square().sum(dim=(1, 2))) / (m * (m + 2))).sqrt()
    return draw.placed("ellipsoid", points, m, dim, noise, curvature, None, frames)


def cylinder(n: int, dimension: int, dim: int, noise: float = 0.0, seed: int = 0, radius: float = 1.0) -> Manifold:
    """Return a uniform sample of the product of a circle and a flat cube whose sides are as long as the circle.

    II(u, u) = u_1^2 / radius, so the mean of its square is 3 / (m (m + 2) radius^2).

    Args:
        n: Number of rows.
        dimension: Dimension m of the product, the circle included.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the sample, the rotation and the noise.
        radius: Radius of the circle.
    """
    draw = _Draw(seed)
    angle = 2 * math.pi * draw.uniform(n, 1)
    flat = 2 * math.pi * radius * draw.uniform(n, dimension - 1) if dimension > 1 else draw.uniform(n, 1)[:, :0]
    points = torch.cat([radius * angle.cos(), radius * angle.sin(), flat], dim=1)
    curvature = torch.full((n,), math.sqrt(3 / (dimension * (dimension + 2))) / radius)
    entropy = dimension * math.log(2 * math.pi * radius)
    frames = torch.zeros(n, dimension + 1, dimension, dtype=torch.float64)
    frames[:, 0, :1], frames[:, 1, :1] = -angle.sin(), angle.cos()
    frames[:, 2:, 1:] = _flat(n, dimension - 1)
    return draw.placed("cylinder", points, dimension, dim, noise, curvature, entropy, frames)


def torus(n: int, dimension: int, dim: int, noise: float = 0.0, seed: int = 0, radius: float = 1.0) -> Manifold:
    """Return a uniform sample of the flat torus, a product of `dimension` circles, which has no boundary.

    II(u, u) has the entries u_i^2 / radius, so the mean of its square is 3 / ((m + 2) radius^2).

    Args:
        n: Number of rows.
        dimension: Dimension m of the torus.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the sample, the rotation and the noise.
        radius: Radius of each circle.
    """
    draw = _Draw(seed)
    angle = 2 * math.pi * draw.uniform(n, dimension)
    points = radius * torch.cat([angle.cos(), angle.sin()], dim=1)
    curvature = torch.full((n,), math.sqrt(3 / (dimension + 2)) / radius)
    entropy = dimension * math.log(2 * math.pi * radius)
    frames = torch.cat([(-angle.sin()).diag_embed(), angle.cos().diag_embed()], dim=1)
    return draw.placed("torus", points, dimension, dim, noise, curvature, entropy, frames)


def swiss_roll(n: int, dim: int, noise: float = 0.0, seed: int = 0, height: float = 20.0) -> Manifold:
    """Return a sample of a sheet rolled along the spiral r = t from t = 1.5 pi to 4.5 pi, uniform by area.

    The spiral has the curvature k = (t^2 + 2) / (t^2 + 1)^(3/2), and the sheet is straight across it, so
    II(u, u) = k u_1^2.

    Args:
        n: Number of rows.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the sample, the rotation and the noise.
        height: Width of the sheet, across the spiral.
    """
    draw = _Draw(seed)
    # The arc length of the spiral up to t is inverted on a fine grid.
    grid = torch.linspace(1.5 * math.pi, 4.5 * math.pi, 100_001, dtype=torch.float64)
    lengths = (grid * (1 + grid**2).sqrt() + grid.asinh()) / 2
    length = lengths[0] + (lengths[-1] - lengths[0]) * draw.uniform(n, 1)[:, 0]
    right = torch.searchsorted(lengths, length).clamp(1, len(grid) - 1)
    fraction = (length - lengths[right - 1]) / (lengths[right] - lengths[right - 1])
    t = grid[right - 1] + fraction * (grid[right] - grid[right - 1])
    points = torch.stack([t * t.cos(), t * t.sin(), height * draw.uniform(n, 1)[:, 0]], dim=1)
    bend = (t**2 + 2) / (t**2 + 1) ** 1.5
    entropy = math.log(float(lengths[-1] - lengths[0]) * height)
    frames = torch.zeros(n, 3, 2, dtype=torch.float64)
    along = torch.stack([t.cos() - t * t.sin(), t.sin() + t * t.cos()], dim=1)
    frames[:, :2, 0], frames[:, 2, 1] = torch.nn.functional.normalize(along, dim=1), 1
    return draw.placed("swiss roll", points, 2, dim, noise, math.sqrt(3 / 8) * bend, entropy, frames)


def quadratic(
    n: int, dimension: int, dim: int, noise: float = 0.0, seed: int = 0, normals: int = 4, bend: float = 1.0
) -> Manifold:
    """Return a sample of the graph u -> (u, A(u, u) / 2) of a random quadratic form over the unit ball.

    Args:
        n: Number of rows; u is uniform in the ball.
        dimension: Dimension m of the graph.
        dim: Dimension of the space into which it is rotated.
        noise: Standard deviation of the noise in every coordinate.
        seed: Seed of the form, the sample, the rotation and the noise.
        normals: Number of dimensions into which A maps.
        bend: Standard deviation of the entries of A.
    """
    draw = _Draw(seed)
    direction = torch.nn.functional.normalize(draw.normal(n, dimension), dim=1)
    u = direction * draw.uniform(n, 1) ** (1 / dimension)
    half = draw.normal(normals, dimension * dimension).reshape(normals, dimension, dimension)
    form = bend * (half + half.transpose(1, 2)) / math.sqrt(2)
    height = torch.einsum("pab,na,nb->np", form, u, u) / 2
    curvature = _graph_curvature(form, u)
    slope = torch.einsum("pab,nb->npa", form, u)
    frames = torch.linalg.qr(torch.cat([_flat(n, dimension), slope], dim=1)).Q
    return draw.placed("quadratic", torch.cat([u, height], dim=1), dimension, dim, noise, curvature, None, frames)


def _graph_curvature(form: Float[Tensor, "p m m"], u: Float[Tensor, "n m"]) -> Float[Tensor, "n"]:
    """Return the root mean square of |II(v, v)| over unit tangents v of the graph of a quadratic form, at each u."""
    m = u.shape[1]
    slope = torch.einsum("pab,nb->npa", form, u)
    metric = torch.eye(m, dtype=u.dtype) + slope.transpose(1, 2) @ slope
    values, vectors = torch.linalg.eigh(metric)
    frame = vectors * values[:, None].rsqrt() @ vectors.transpose(1, 2)
    second = torch.einsum("pab,nac,nbd->npcd", form, frame, frame)
    # The tangential part of the second derivatives is not curvature.
    along = torch.einsum("nap,npcd->nacd", (slope @ frame).transpose(1, 2), second)

    def mean_square(tensor: Tensor) -> Tensor:
        """Return the mean over unit vectors v of the square of tensor(v, v)."""
        trace = tensor.diagonal(dim1=2, dim2=3).sum(dim=2)
        return (trace.square().sum(dim=1) + 2 * tensor.square().sum(dim=(1, 2, 3))) / (m * (m + 2))

    return (mean_square(second) - mean_square(along)).clamp_min(0).sqrt()


def _beside(normals: Float[Tensor, "n a"]) -> Float[Tensor, "n a m"]:
    """Return an orthonormal basis of the orthogonal complement of each of `n` normals."""
    a = normals.shape[1]
    space = torch.eye(a, dtype=torch.float64).expand(len(normals), -1, -1)
    return torch.linalg.qr(torch.cat([normals[:, :, None], space], dim=2)).Q[:, :, 1:a]


def _flat(n: int, m: int) -> Float[Tensor, "n m m"]:
    """Return the same basis, that of the coordinates, `n` times."""
    return torch.eye(m, dtype=torch.float64).expand(n, m, m)


def _log_ball(m: int) -> float:
    """Return the logarithm of the volume of the unit ball in R^m."""
    return m / 2 * math.log(math.pi) - float(scipy.special.gammaln(m / 2 + 1))


class _Draw:
    """A seeded source of random numbers, in fp64."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, n: int, d: int) -> Float[Tensor, "n d"]:
        """Return numbers that are uniform between 0 and 1."""
        return torch.rand(n, d, generator=self.generator, dtype=torch.float64)

    def normal(self, n: int, d: int) -> Float[Tensor, "n d"]:
        """Return standard normal numbers."""
        return torch.randn(n, d, generator=self.generator, dtype=torch.float64)

    def placed(
        self,
        name: str,
        points: Float[Tensor, "n a"],
        dimension: int,
        dim: int,
        noise: float,
        curvature: Float[Tensor, "n"],
        entropy: float | None,
        frames: Float[Tensor, "n a m"],
    ) -> Manifold:
        """Return the manifold with its points rotated into R^dim, and noise added."""
        needed = points.shape[1]
        if dim < needed:
            raise InputError(f"a {name} of dimension {dimension} needs dim of at least {needed}, but it is {dim}")
        rotation = torch.linalg.qr(self.normal(dim, needed)).Q
        rows = points @ rotation.T + noise * self.normal(len(points), dim)
        return Manifold(name, rows, dimension, curvature.double(), entropy, rotation, frames)
