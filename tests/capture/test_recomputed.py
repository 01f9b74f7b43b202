import torch

from tangentlens.capture.recomputed import RecomputedPasses, in_backward
from tokens_only import batch


def test_a_pass_that_runs_again_is_known_by_its_values():
    passes = RecomputedPasses()
    first, second = batch(4), batch(4)
    one, other = torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    passes.wait("resid.1", first, one)
    passes.wait("resid.1", second, other)
    assert passes.match("resid.1", torch.randn(1, 4, 8)) is None
    assert passes.match("resid.1", 1.01 * one) is None
    assert passes.match("resid.2", one) is None
    assert passes.match("resid.1", other.clone()) is second
    assert passes.match("resid.1", other.clone()) is None, "it waits no longer"
    assert passes.match("resid.1", one * (1 + 1e-6)) is first, "kernels may round differently"


def test_a_pass_that_overflowed_is_matched_too():
    passes, waiting = RecomputedPasses(), batch(2)
    passes.wait("resid.1", waiting, torch.full((1, 2, 4), torch.nan))
    assert passes.match("resid.1", torch.full((1, 2, 4), torch.nan)) is waiting


def test_what_is_forgotten_matches_nothing():
    passes = RecomputedPasses()
    passes.wait("resid.1", batch(2), torch.ones(1, 2, 4))
    passes.clear()
    assert passes.match("resid.1", torch.ones(1, 2, 4)) is None


def test_a_hook_knows_that_it_runs_in_a_backward_pass():
    seen = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: seen.append(in_backward()))
    x.sum().backward()
    assert seen == [True]
    assert not in_backward()
