"""Anisotropy: the share of the variance that lies along one direction."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.lanczos import largest
from tangentlens.geometry.leading import NEAR, basis_without_groups
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.rows import group_products, squared_lengths, unit_scale
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.jackknife import leave_one_out

# Up to this width, leading directions are sought in the whole space.
_NARROW = 128


def anisotropy(x: Any, center: bool = True, power: int = 2) -> float:
    """Return the share of the leading singular value sigma_1 of the rows, sigma_1^power / sum sigma^power.

    It lies between 1/d (isotropic) and 1 (all rows on a line).

    Args:
        x: Rows `(n, d)`, or their `Moments`.
        center: Whether to subtract the mean first.
        power: 2 for the share of variance, 1 for the share of standard deviation; both are in use.

    >>> anisotropy([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    0.9
    """
    if power not in (1, 2):
        raise InputError(f"power must be 1 or 2, but is {power}; 2 is the share of variance")
    moments = Moments.of(x)
    # All eigenvalues are worth their time only where moments keep them for other measures, or where a GPU would have to
    # wait in each step of an iteration.
    keeps = isinstance(x, Moments) or moments.mean.device.type != "cpu"
    if power == 2 and moments.dim > _NARROW and not keeps:
        matrix = moments.covariance() if center else moments.second_moment()
        total = float(matrix.trace())
        first = float(largest(matrix, 1)[0])
    else:
        values = moments.spectrum(center=center) ** (power / 2)
        first, total = float(values[0]), float(values.sum())
    if total <= 0:
        raise InputError("rows must differ for anisotropy to exist, but all are equal; check the site and the mask")
    return first / total


def anisotropy_replicates(
    rows: Float[Tensor, "n d"],
    sequences: Int[Tensor, "n"],
    n_groups: int = 16,
    covariance: Float[Tensor, "d d"] | None = None,
) -> Float[Tensor, "g_plus_1"]:
    """Return the centred `anisotropy` of all rows, followed by that without each group of sequences.

    Without a group, the leading direction is sought in the span that `basis_without_groups` returns.

    Args:
        rows: Rows `(n, d)`.
        sequences: The sequence of each row.
        n_groups: Largest number of groups into which whole sequences are divided.
        covariance: The covariance of the rows, if it is known.

    Returns:
        Replicates `(g + 1,)`, as `jackknife` takes them.
    """
    # In fp64, because an interval is made of small differences between replicates.
    scale = unit_scale(rows)
    centred = rows.to(torch.float64, copy=True).div_(scale)
    centred -= centred.mean(dim=0)
    groups = sequence_groups(sequences, n_groups)
    count = int(groups.max()) + 1
    member = torch.zeros(count, len(rows), dtype=torch.float64, device=rows.device).scatter_(0, groups[None], 1.0)
    if rows.shape[1] <= _NARROW:
        basis = torch.eye(rows.shape[1], dtype=torch.float64, device=rows.device)
    else:
        matrix = centred.T @ centred / len(rows) if covariance is None else covariance / scale**2
        basis = basis_without_groups(centred, member, matrix, largest(matrix, NEAR)[1])
    # With a column of ones appended, X^T X of a group holds its count, its sum and its products. Such matrices add up.
    extended = torch.cat([centred @ basis, torch.ones_like(centred[:, :1])], dim=1)
    totals = leave_one_out(group_products(extended, groups, count))
    n = totals[:, -1, -1]
    means = totals[:, :-1, -1] / n[:, None]
    inside = totals[:, :-1, :-1] / n[:, None, None] - means[:, :, None] * means[:, None]
    sums, energies = leave_one_out(member @ centred), leave_one_out(member @ squared_lengths(centred))
    variance = energies / n - (sums / n[:, None]).square().sum(dim=1)
    return torch.linalg.eigvalsh(inside)[:, -1] / variance
