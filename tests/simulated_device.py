"""A second device, made of the CPU's own memory, that is as strict as a GPU and counts when the host waits for it.

Its tensors are CPU memory under the name `sim`. Every operation on them passes through one Python function, which
runs it on the CPU and

- refuses what a GPU refuses: tensors of two devices in one operation (but numbers, 0-dim tensors on the CPU, may mix),
  and generators of the CPU;
- counts what makes the host wait for a GPU: reading a number, copies to and from the host, results whose size depends
  on values, and eigendecompositions, which check their own success;
- optionally refuses fp64, which Apple's GPUs lack.

To register a device cannot be undone and is seen by every library in the process (`torch.accelerator`), so tests on it
run in a process of their own; see tests/capture/test_device.py.
"""

import ctypes
from collections import Counter
from contextlib import contextmanager

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "sim"
KEY = "PrivateUse1"
# What DLPack calls the CPU and a device that is not its own.
_HOST, _DEVICE = 1, 12
# The CPU kernels of these work on the description of a tensor and never touch its numbers.
_VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "set_.source_Storage_storage_offset", "set_.source_Tensor")
# Operations for which the host waits on CUDA.
_WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_select",
    "equal",
    "bincount",
    "repeat_interleave",
    "_linalg_eigh",
    "_linalg_svd",
    "linalg_eig",
    "linalg_lstsq",
}

_waits: Counter[str] = Counter()
_refused: set[torch.dtype] = set()


@contextmanager
def waits():
    """Count the operations for which the host waits, by name, in a `Counter` that is complete when the context ends."""
    before, found = _waits.copy(), Counter()
    try:
        yield found
    finally:
        found.update(_waits - before)


@contextmanager
def without(dtype):
    """Let the device refuse a type of numbers."""
    _refused.add(dtype)
    try:
        yield
    finally:
        _refused.discard(dtype)


class _Tensor(ctypes.Structure):
    """The beginning of a tensor in DLPack: where its numbers are, and on which device."""

    _fields_ = (("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32))


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _renamed(tensor, device):
    """Return a tensor on another device with the same memory, which lives as long as either of them."""
    capsule = torch._C._to_dlpack(tensor.detach())
    found = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    found.device, found.number = device, 0
    return torch._C._from_dlpack(capsule)


def _on_device(tensor):
    if tensor.dtype in _refused:
        raise TypeError(f"{NAME} has no {tensor.dtype}")
    return _renamed(tensor, _DEVICE)


def _is_here(value):
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _run(op, *args, **kwargs):
    """Run an operation on the CPU; what it returns is on the device."""
    _count(op, args)
    # What the CPU computes with, and for its memory the tensor here.
    originals, empty = {}, []

    def there(value):
        if _is_here(value):
            # Memory of this device cannot grow, so a result that has none yet is given memory of the CPU first.
            grows = not value.numel() and any(value is one for one in kwargs.values())
            host = torch.empty(value.shape, dtype=value.dtype) if grows else _renamed(value, _HOST)
            originals[id(host)] = value, host
            if grows:
                empty.append((value, host))
            return host
        return torch.device("cpu") if isinstance(value, torch.device) else _checked(op, value)

    def back(value):
        if not isinstance(value, torch.Tensor):
            return value
        return originals[id(value)][0] if id(value) in originals else _on_device(value)

    result = op(*_mapped(there, args), **{name: _mapped(there, value) for name, value in kwargs.items()})
    for value, host in empty:
        if host.numel():
            _take(value, _on_device(host))
    return _mapped(back, result)


def _mapped(function, value):
    """Return what a function makes of a value, or of each entry of a list or tuple of them."""
    if isinstance(value, list | tuple):
        return type(value)(_mapped(function, one) for one in value)
    return function(value)


def _checked(op, value):
    """Return what is not on this device, or raise what a GPU would raise."""
    if isinstance(value, torch.Tensor) and value.ndim:
        raise RuntimeError(f"{op}: expected all tensors to be on {NAME}, but one of {value.shape} is on the CPU")
    if isinstance(value, torch.Generator):
        raise RuntimeError(f"{op}: expected a generator of {NAME}, but one of the CPU came")
    return value


def _count(op, args):
    """Count the operation if the host would wait for it."""
    name = op._schema.name.removeprefix("aten::")
    # What is read by a mask comes here as `nonzero`. What is written by one waits too, unless it is a single number.
    by_mask = name == "_index_put_impl_" and any(one is not None and one.dtype == torch.bool for one in args[1])
    if name in _WAITING or (by_mask and args[2].ndim):
        _waits[name] += 1


def _take(tensor, other):
    """Give a tensor the memory and shape of another."""
    storage = other.untyped_storage()
    _as_view(torch.ops.aten.set_.source_Storage_storage_offset)(tensor, storage, 0, other.shape, other.stride())
    return tensor


def _as_view(op):
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return lambda *args, **kwargs: op.redispatch(keys, *args, **kwargs)


def _copy(source, target, non_blocking=False):
    """Copy between devices, or on this one; a host that does not say otherwise waits for the former."""
    if source.device != target.device and not non_blocking:
        _waits["to host" if _is_here(source) else "from host"] += 1
    host, there = (_renamed(one, _HOST) if _is_here(one) else one for one in (source, target))
    there.copy_(host)
    return target


def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _on_device(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return _on_device(torch.empty_strided(size, stride, dtype=dtype))


def _resize(tensor, size, memory_format=None):
    new = _empty(size, tensor.dtype)
    kept = min(tensor.numel(), new.numel())
    new.flatten()[:kept].copy_(tensor.flatten()[:kept])
    return _take(tensor, new)


class _Module:
    """What `torch.sim` has to offer. Random numbers come from the CPU's generator."""

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def device_count():
        return 1

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def get_rng_state(device=None):
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state, device=None):
        torch.set_rng_state(state)

    @staticmethod
    def _is_in_bad_fork():
        return False

    @staticmethod
    def manual_seed_all(seed):
        pass

    @staticmethod
    def get_amp_supported_dtype():
        return [torch.float16, torch.bfloat16]


def register():
    """Register the device with torch and return it."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    global _LIBRARIES
    everything, few = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(_run, KEY)
    for name in _VIEWS:
        packet, _, overload = name.partition(".")
        few.impl(name, _as_view(getattr(getattr(torch.ops.aten, packet), overload or "default")), KEY)
    for name, function in {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_copy_from": _copy,
        "_copy_from_and_resize": _copy,
        "resize_": _resize,
    }.items():
        few.impl(name, function, KEY)
    # They are unregistered when they are deleted.
    _LIBRARIES = (everything, few)
    return torch.device(NAME, 0)
