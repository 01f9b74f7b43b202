import math

import numpy as np
import pytest
import torch

from tangentlens import InputError, Subspace, chance, share


def gradients(spectrum, generator):
    d = len(spectrum)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    return torch.as_tensor(spectrum, dtype=torch.float64).sqrt().diag() @ rotation


def drawn_shares(moment, rank, order, n, generator, within=None):
    """Shares of many random subspaces by their definition."""
    room = torch.eye(len(moment), dtype=torch.float64) if within is None else within.basis
    bases = room @ torch.linalg.qr(torch.randn(n, room.shape[1], rank, generator=generator, dtype=torch.float64)).Q
    values, vectors = torch.linalg.eigh(moment / moment.trace())
    power = (values == values.max()).double() if order == math.inf else values**order
    taken = (vectors.T @ bases).square().sum(dim=2)
    return (taken @ power / power.sum()).numpy()


def haar(rank, generator, within=None, dim=None):
    vectors = torch.randn(rank, within.rank if within else dim, generator=generator, dtype=torch.float64)
    return Subspace.span(vectors @ within.basis.T if within else vectors)


SPECTRA = {"power law": torch.arange(1, 13) ** -1.0, "flat": torch.ones(12), "one": torch.eye(12)[0]}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("order", [1, 2, math.inf])
@pytest.mark.parametrize("inside", [False, True])
def test_mean_and_spread_are_those_of_drawn_subspaces(name, order, inside, generator):
    if name == "flat" and order == math.inf:
        pytest.skip("a flat spectrum has no leading direction")
    g = gradients(SPECTRA[name], generator)
    within = haar(8, generator, dim=12) if inside else None
    expected = chance(g, 3, order, within)
    moment = g.T @ g / len(g)
    draws = drawn_shares(moment, 3, order, 4000, generator, within)
    assert draws.mean() == pytest.approx(expected.mean, abs=4 * draws.std() / 4000**0.5 + 1e-9)
    assert draws.std() == pytest.approx(expected.std, rel=0.06, abs=1e-7)


@pytest.mark.parametrize("order", [1, 2])
def test_p_values_are_uniform_for_random_subspaces(order, generator):
    g = gradients(torch.arange(1, 33) ** -1.5, generator)
    known = chance(g, 5, order)
    p = np.array([known.p_value(one) for one in drawn_shares(g.T @ g, 5, order, 2000, generator)])
    assert (p < 0.05).mean() == pytest.approx(0.05, abs=0.016)
    assert (p < 0.5).mean() == pytest.approx(0.5, abs=0.05)


def test_p_value_at_the_edges():
    g = gradients(torch.ones(6), torch.Generator().manual_seed(0))
    flat = chance(g, 2)
    assert flat.p_value(2 / 6) == 1
    assert flat.p_value(0.5) == 0
    one = chance(gradients(torch.eye(6)[0], torch.Generator().manual_seed(0)), 2)
    assert one.p_value(1.0) == pytest.approx(0, abs=1e-12)
    assert one.p_value(0.0) == pytest.approx(1)


def test_chance_is_rank_over_dimension_at_every_order(generator):
    g = torch.randn(40, 10, generator=generator)
    assert [chance(g, 4, order).mean for order in (1, 2, 7, math.inf)] == pytest.approx([0.4] * 4)


def test_the_normal_control_has_what_the_proxy_leaves(generator):
    g, q = torch.randn(40, 10, generator=generator), haar(3, generator, dim=10)
    for order in (1, 2):
        left = (1 - share(g, q, order)) * 3 / 7
        assert chance(g, 3, order, within=q.complement()).mean == pytest.approx(left)


def test_a_rank_beyond_the_room_is_refused(generator):
    with pytest.raises(InputError, match="between 1 and 4, the dimension of the space it is drawn in, but is 5"):
        chance(torch.randn(9, 6, generator=generator), 5, within=haar(4, generator, dim=6))


def test_p_values_against_the_normal_control_are_uniform_for_subspaces_in_its_room(generator):
    g, proxy = gradients(torch.arange(1, 25) ** -1.0, generator), haar(4, generator, dim=24)
    room = proxy.complement()
    known = chance(g, 4, 1, room)
    p = np.array([known.p_value(one) for one in drawn_shares(g.T @ g, 4, 1, 2000, generator, room)])
    assert (p < 0.05).mean() == pytest.approx(0.05, abs=0.016)
    assert (p < 0.5).mean() == pytest.approx(0.5, abs=0.05)


def test_the_rank_may_be_anything_from_one_direction_to_the_whole_space():
    rows = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    assert chance(rows, 1).mean == pytest.approx(1 / 3)
    assert (chance(rows, 3).mean, chance(rows, 3).std) == pytest.approx((1.0, 0.0))
    for rank in (0, 4):
        with pytest.raises(InputError, match=f"rank must be between 1 and 3, .* but is {rank}"):
            chance(rows, rank)
