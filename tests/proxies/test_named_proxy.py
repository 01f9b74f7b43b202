from functools import partial

import pytest
import torch

from tangentlens import InputError, Lens, Subspace, audit, tangent_test
from tangentlens.proxies import PROXIES, named_proxy
from tangentlens.proxies.pca import pca
from tangentlens.proxies.principal import Principal
from tangentlens.proxies.random import random
from tiny import tiny_model

ROWS = torch.randn(400, 12, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.arange(400) // 20


def leading(rows, rank, seed):
    """A proxy of one's own, on plain rows."""
    centred = rows - rows.mean(dim=0)
    return Subspace.span(torch.linalg.svd(centred.double(), full_matrices=False).Vh[:rank], rank=rank)


@pytest.mark.parametrize("name", PROXIES)
def test_every_rival_may_be_the_proxy(name):
    test = tangent_test(ROWS, ROWS.sin(), SEQUENCES, rank=3, controls=["normal", "pca", "semi_nmf"], proxy=name)
    assert test.proxy == name
    assert name in test.variants[:1]
    # A comparison with itself is left out.
    assert set(test.variants[1:]) == {"normal", "pca", "semi_nmf"} - {name}


def test_a_function_is_as_good_as_a_name():
    own, named = (tangent_test(ROWS, ROWS.sin(), SEQUENCES, rank=3, proxy=proxy) for proxy in (leading, "pca"))
    assert own.proxy == "leading"
    assert own.share().value == pytest.approx(named.share().value, rel=1e-4)
    assert own.log_ratio("pca").value == pytest.approx(0, abs=1e-4)
    assert audit(ROWS, ROWS.sin(), SEQUENCES, rank=3, proxy=leading).test.proxy == "leading"


def test_a_function_is_called_with_plain_rows():
    seen = []

    def watching(rows, rank, seed):
        seen.append(type(rows))
        return pca(rows, rank)

    named_proxy(watching)[1](Principal.of(ROWS), 3, 0)
    assert seen == [torch.Tensor]


def test_a_partial_has_the_name_of_its_function_and_a_lens_wants_a_name(tmp_path):
    assert named_proxy(partial(leading, seed=0))[0] == "leading"
    with pytest.raises(InputError, match="must have a name, by which a run is continued"):
        Lens(tiny_model(), run=tmp_path / "run", proxy=lambda rows, rank, seed: leading(rows, rank, seed))
    assert not (tmp_path / "run").exists()


def test_a_function_that_changes_its_rows_changes_a_copy():
    def careless(rows, rank, seed):
        rows -= rows.mean(dim=0)
        return leading(rows, rank, seed)

    rows = ROWS.double() + 5
    before = rows.clone()
    tangent_test(rows, rows.sin(), SEQUENCES, rank=3, fit_on=rows, proxy=careless)
    assert torch.equal(rows, before)


def test_the_audit_of_another_proxy_leaves_out_what_is_of_semi_nmf_alone():
    page = audit(ROWS, ROWS.sin(), SEQUENCES, rank=3, proxy="pca")
    told = next(check.found for check in page.checks if check.name == "centred or raw")
    assert "not done" in told


def first_axis(rows, rank, seed):
    return Subspace(torch.eye(rows.shape[1], dtype=torch.float64)[:, :1])


def test_a_proxy_may_have_a_lower_rank_than_asked_for():
    found = tangent_test(ROWS, ROWS.sin(), SEQUENCES, rank=3, proxy=first_axis)
    assert found.subspaces["first_axis"].rank == 1


def too_large(rows, rank, seed):
    return pca(rows, rank + 1)


def no_subspace(rows, rank, seed):
    return torch.eye(12)[:, :rank]


@pytest.mark.parametrize(
    ("proxy", "says"),
    [
        ("semi-nmf", "proxy must be one of semi_nmf, pca"),
        (pca, "must have a name of its own, but 'pca' is taken"),
        (random, "must have a name of its own, but 'random' is taken"),
        (too_large, r"too_large must return a Subspace of R\^12 of rank 1 to 3"),
        (no_subspace, "no_subspace must return a Subspace"),
    ],
)
def test_what_is_no_proxy_says_what_to_do(proxy, says):
    with pytest.raises(InputError, match=says):
        tangent_test(ROWS, ROWS.sin(), SEQUENCES, rank=3, proxy=proxy)
