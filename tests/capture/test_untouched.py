"""A model that was run between two steps is as it was: modes, buffers, random states, precision, hooks."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from tangentlens.capture.untouched import untouched


class Careless(nn.Module):
    """A model that does in evaluation mode all that it should not."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(2))
        self.register_buffer("empty", None)
        self.told = []

    def train(self, mode=True):
        # As adapters do that are merged into weights for evaluation.
        self.told.append(mode)
        return super().train(mode)

    def forward(self, x):
        self.calls += 1
        self.cache = torch.ones(3)
        self.empty = torch.ones(1)
        return self.dropout(self.norm(self.linear(x))) + torch.rand(()) + np.random.rand() + random.random()


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Careless()
    model.told.clear()
    return model


def test_modes_of_all_modules_are_restored_exactly(model):
    model.norm.eval()
    model.dropout.training = True
    modes = [module.training for module in model.modules()]
    with untouched(model):
        assert not any(module.training for module in model.modules())
        model(torch.ones(2, 4))
    assert [module.training for module in model.modules()] == modes == [True, True, False, True]
    assert model.told == [], "its own train and eval are not called"


def test_they_are_restored_after_an_exception_too(model):
    model.dropout.forward = None
    with pytest.raises(TypeError), untouched(model):
        model(torch.ones(2, 4))
    assert all(module.training for module in model.modules())
    assert model.calls == 0
    assert torch.is_grad_enabled()


def test_buffers_are_the_same_objects_with_the_same_values(model):
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    with untouched(model):
        model(torch.ones(2, 4))
        assert model.calls == 1
    assert model.empty is None
    for name, buffer in model.named_buffers():
        assert buffer is before[name][0]
        assert torch.equal(buffer, before[name][1])
    assert model.norm.num_batches_tracked == 0


def test_a_buffer_that_did_not_change_is_not_written_to(model):
    """A graph that is still in use may hold it, and would refuse to be back-propagated."""
    version = model.norm.running_mean._version
    with untouched(model):
        model(torch.ones(2, 4))
    assert model.norm.running_mean._version == version


def test_random_states_are_those_from_before(model):
    random.seed(1)
    np.random.seed(1)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with untouched(model):
        model(torch.ones(2, 4))
        assert not torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]


def test_precision_and_gradients_are_off_inside_and_as_before_outside(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with untouched(model):
            assert not torch.is_autocast_enabled("cpu")
            out = model(torch.ones(2, 4))
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert out.dtype == torch.float32
    assert not out.requires_grad
    assert torch.is_grad_enabled()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_run_uncompiled():
    """Compiled for one shape and then for another, a block is compiled for any shape, and rounds differently."""
    compiled = []

    def backend(graph, example):
        compiled.append([one for one in example if not isinstance(one, torch.Tensor)])
        return graph.forward

    model = nn.Sequential(Block())
    model[0].compile(backend=backend)
    with untouched(model):
        model(torch.ones(5, 4))
    assert compiled == []
    model(torch.ones(2, 4))
    assert compiled == [[]], "compiled for this very shape: no size is a variable"
