"""What the profile of a model of a preset is expected to cost: a rule from its size, calibrated by measured times.

A profile runs the model on its tokens, two floating-point operations for each entry of a matrix and token, and measures
every site of every batch twice: on all rows, and without massive rows. The second is left out where no row is massive,
so the estimate is rather too high. The time to download and to load a model is not in it.
"""

from __future__ import annotations

import torch

from tangentlens.geometry.measures import Cloud
from tangentlens.studies.profile.plan import Profile
from tangentlens.studies.profile.presets import PresetModel

# Measured by `benchmarks/profile_cost.py`, in fp32 on one core of an AMD server: how many operations of a forward pass
# fit into a second, and how many seconds the measures of a site take for each n²d (neighbours), nd (passes over the
# rows) and d³ (eigenvalues) of its n rows of width d. At eight shapes from 2,048 x 384 to 2,048 x 4,096, the rule gives
# 0.85 to 1.06 of what was measured.
_FORWARD = 9.4e10
_MEASURES = (3.9e-12, 8.5e-8, 1.1e-10)
# How many times as fast two cores are: forward passes 1.86 times, and sites are measured side by side.
_TWO_CORES = 1.9
# An assumption and no measurement: what a GPU of the data centre does in a second in fp32.
_GPU_FORWARD = 1e13
# The format of a checkpoint is known only when it is there; none is longer than float32.
_BYTES = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}


def typical_cloud(n: int, width: int, device: torch.device | str = "cpu") -> Cloud:
    """Return `n` random rows whose measures take about as long as those of a site of a trained model.

    Their spectrum is a power law, one row is massive, and a token occurs four times on average.
    """
    make = torch.Generator().manual_seed(0)
    rows = torch.randn(n, width, generator=make) * torch.arange(1, width + 1) ** -0.5
    rows[0] *= 200
    ids = torch.randint(0, max(1, n // 4), (n,), generator=make).to(device)
    return Cloud(rows.to(device), ids, ids)


def forward_operations(model: PresetModel, profile: Profile) -> float:
    """Return the number of floating-point operations of all forward passes; attention between tokens is left out."""
    return 2.0 * model.multiplied * profile.batches * profile.batch_tokens


def expected_seconds(model: PresetModel, profile: Profile) -> float:
    """Return how long a profile of all residual sites is expected to take on two cores."""
    rows, width = profile.batch_tokens, model.width
    terms = (rows**2 * width, rows * width, width**3)
    measures = sum(rate * term for rate, term in zip(_MEASURES, terms, strict=True))
    forward = forward_operations(model, profile) / _FORWARD
    return (forward + profile.batches * (model.layers + 1) * measures) / _TWO_CORES


def gpu_forward_seconds(model: PresetModel, profile: Profile) -> float:
    """Return how long the forward passes alone take at an assumed 10 TFLOP/s; measures on a GPU were never timed."""
    return forward_operations(model, profile) / _GPU_FORWARD


def memory_needed(model: PresetModel, profile: Profile) -> int:
    """Return how many bytes hold the weights, and one batch of rows at every site with four copies."""
    rows = (model.layers + 1 + 4) * profile.batch_tokens * model.width * 4
    return model.parameters * _BYTES[profile.dtype] + rows


def time_text(seconds: float) -> str:
    """Return a duration in words, to two digits.

    >>> time_text(7), time_text(200), time_text(12_000)
    ('about 7 s', 'about 3.3 min', 'about 3.3 h')
    """
    for least, unit, name in ((3600, 3600, "h"), (90, 60, "min")):
        if seconds >= least:
            return f"about {seconds / unit:.2g} {name}"
    return f"about {seconds:.2g} s"
