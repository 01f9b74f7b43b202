"""A model whose second block is on another device, and what is captured there; run as a program, as devices are global.

The other device is made of tensors of this one. As on a real one, no operation takes tensors of both.
"""

import sys
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tangentlens.capture.backward import gradients
from tangentlens.capture.forward import activations
from tangentlens.capture.measurable import _has_fp64
from tangentlens.capture.sites import find_sites

FAR = "far:0"


class Far(torch.Tensor):
    has_fp64 = True

    @staticmethod
    def __new__(cls, near):
        shape = {"strides": near.stride(), "dtype": near.dtype, "device": torch.device(FAR)}
        return torch.Tensor._make_wrapper_subclass(cls, near.shape, **shape)

    def __init__(self, near):
        self.near = near

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return on_one_device(func, args, kwargs or {})


def on_one_device(func, args, kwargs):
    """Run an operation where its tensors are, or move them if it says so."""
    tensors = [one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    is_far = any(isinstance(one, Far) for one in tensors)
    if is_far and any(one.dim() and not isinstance(one, Far) for one in tensors):
        raise RuntimeError(f"expected all tensors on the same device in {func}")
    kwargs = dict(kwargs)
    device = kwargs.pop("device", None)
    wanted = is_far if device is None else torch.device(device).type == "far"
    args, kwargs = tree.tree_map_only(Far, lambda one: one.near, (args, kwargs))
    made = func(*args, **kwargs)
    if wanted and not Far.has_fp64 and made.dtype == torch.float64:
        raise TypeError("there is no fp64 on this device")
    return tree.tree_map_only(torch.Tensor, Far, made) if wanted else made


class Devices(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return on_one_device(func, args, kwargs or {})


class Block(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device

    def forward(self, hidden):
        return hidden.to(self.device).sin()


class Model(nn.Module):
    def __init__(self, devices):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList(Block(device) for device in devices)

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return SimpleNamespace(loss=(hidden.to("cpu") * torch.arange(8)).square().mean())


def captured(devices):
    torch.manual_seed(0)
    model, tokens = Model(devices), torch.arange(24).view(4, 6)
    sites = find_sites(model, ["blocks.0", "blocks.1"])
    keep, rows = tokens % 5 != 0, {}
    activations(model, sites, tokens, keep, lambda site, piece: rows.update({site.name: piece}))
    batch = {"input_ids": tokens, "labels": tokens}
    learned, _ = gradients(model, [batch, batch], sites, "causal", exclude=[3])
    return rows, learned


def check_same(near, far, device):
    """The same numbers, those of the second block on `device`."""
    for one, other in zip(near, far, strict=True):
        for name in one:
            at = torch.device(device if name == "blocks.1" else "cpu")
            for here, there in zip(tensors(one[name]), tensors(other[name]), strict=True):
                assert there.device == at
                assert torch.equal(here, there.cpu())


def tensors(rows):
    return [rows] if isinstance(rows, torch.Tensor) else list(vars(rows).values())


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend("far")
    near = captured(["cpu", "cpu"])
    with Devices():
        check_same(near, captured(["cpu", FAR]), FAR)
        Far.has_fp64 = False
        _has_fp64.cache_clear()
        check_same(near, captured(["cpu", FAR]), "cpu")
    sys.stdout.write("as on one device")
