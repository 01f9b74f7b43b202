"""The verdict of the audit on manifolds whose tangent planes are known, and gradients made to be something."""

import pytest
import torch
from torch.nn.functional import normalize

from tangentlens import manifolds
from tangentlens.alignment.audit_data import AuditData
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_planes import VERDICTS, in_tangent_planes


def normals_of(sphere):
    """The direction from the centre of the sphere, which lies in the space that the sphere spans."""
    return normalize(sphere.rows @ sphere.rotation @ sphere.rotation.T, dim=1)


def tangents_of(sphere, seed=0):
    draws = torch.randn(sphere.rows.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    frames = sphere.tangents(torch.arange(len(draws)))
    return normalize(torch.einsum("ndm,nem,ne->nd", frames, frames, draws), dim=1)


def verdict(rows, gradients):
    fit, test = TokenRows.of(rows, gradients, torch.arange(len(rows)) // 20).halves()
    return in_tangent_planes(AuditData(fit, test, rank=4, dimension=None, seed=0))


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
def test_gradients_normal_to_a_noisy_sphere_are_called_normal(noise):
    """Noise adds dimensions at the scale of the nearest neighbours, and planes of too many hold the normals as well."""
    for seed in range(4):
        sphere = manifolds.sphere(2000, dimension=2, dim=64, noise=noise, seed=seed)
        found = verdict(sphere.rows, normals_of(sphere))
        assert found.says == "normal", found


def test_where_noise_hides_the_planes_normal_gradients_are_still_seen_to_avoid_their_own():
    for seed in range(4):
        sphere = manifolds.sphere(2000, dimension=2, dim=64, noise=0.02, seed=seed)
        found = verdict(sphere.rows, normals_of(sphere))
        assert found.says == "avoiding", found


def test_a_share_above_chance_but_far_below_that_elsewhere_is_no_sign_of_variance():
    """A tenth of the energy is tangent: three times chance, and a sixth of the share in the planes of other places."""
    for seed in range(4):
        sphere = manifolds.sphere(2000, dimension=2, dim=64, seed=seed)
        found = verdict(sphere.rows, 0.9**0.5 * normals_of(sphere) + 0.1**0.5 * tangents_of(sphere))
        to_chance, elsewhere = (found.estimates[f"log_ratio to {name}"].exp() for name in ("chance", "other places"))
        assert to_chance.value == pytest.approx(3.2, rel=0.05)
        # In R^3, two thirds of anything lie in the plane of a random place, so 0.1 / (2 / 3) is expected.
        assert elsewhere.value == pytest.approx(0.15, rel=0.05)
        assert found.says == "avoiding", found
        assert VERDICTS["avoiding"] in found.means
