"""While something is measured, fp32 has all of its digits; afterwards a training has what it had chosen."""

import pytest
import torch
from torch import backends

from tangentlens import Moments, intrinsic_dimension
from tangentlens.engine.side_by_side import side_by_side
from tangentlens.geometry.neighbours import _Cloud
from tangentlens.geometry.precision import full_precision


def chosen():
    """What PyTorch says of each setting; some ask in vain where older and newer settings are mixed."""

    def asked(setting):
        try:
            return setting()
        except RuntimeError:
            return "mixed"

    settings = (
        torch.get_float32_matmul_precision,
        lambda: backends.cuda.matmul.allow_tf32,
        lambda: backends.cuda.matmul.fp32_precision,
        lambda: backends.mkldnn.matmul.fp32_precision,
        lambda: backends.fp32_precision,
    )
    return [asked(setting) for setting in settings]


WAYS = {
    "nothing": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "the older switch": lambda: setattr(backends.cuda.matmul, "allow_tf32", True),
    "one backend": lambda: setattr(backends.cuda.matmul, "fp32_precision", "tf32"),
    "another backend": lambda: setattr(backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "all backends": lambda: setattr(backends, "fp32_precision", "tf32"),
}


@pytest.fixture(params=WAYS)
def allowed(request):
    """Less precision, allowed in each of the ways that there are."""
    at_first = chosen()
    WAYS[request.param]()
    yield chosen()
    backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for backend in (backends.cuda.matmul, backends.mkldnn.matmul):
        backend.fp32_precision = "none"
    assert chosen() == at_first


def is_full():
    return not {backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision} & {"tf32", "bf16"}


def test_inside_it_is_full_and_afterwards_what_it_was(allowed):
    with full_precision():
        assert is_full()
        # One inside of the other changes nothing either.
        with full_precision():
            assert is_full()
        assert is_full()
    assert chosen() == allowed


def test_so_it_is_after_an_error(allowed):
    with pytest.raises(ZeroDivisionError), full_precision():
        1 / 0  # noqa: B018
    assert chosen() == allowed


def test_the_setting_for_all_backends_goes_on_to_hold_for_each():
    backends.fp32_precision = "tf32"
    with full_precision():
        assert is_full()
    backends.fp32_precision = "none"
    assert is_full()


def test_neighbours_are_searched_in_full_precision(allowed, monkeypatch):
    seen, search = [], _Cloud.search
    monkeypatch.setattr(_Cloud, "search", lambda cloud, keep: (seen.append(is_full()), search(cloud, keep))[1])
    intrinsic_dimension(torch.randn(100, 4, generator=torch.Generator().manual_seed(0)))
    assert seen == [True]
    assert chosen() == allowed


def test_what_is_measured_at_sites_is_measured_in_full_precision(allowed):
    def part():
        Moments(2).update(torch.ones(3, 2))
        return is_full()

    assert list(side_by_side([[part], [part]], torch.device("cpu"))) == [[True], [True]]
    assert chosen() == allowed
