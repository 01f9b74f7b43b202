"""Anisotropy: the share of the variance that lies along one direction."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.leading import NEAR, leading_vectors
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.rows import group_products
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.jackknife import leave_one_out, replicate


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
    values = Moments.of(x).spectrum(center=center) ** (power / 2)
    total = float(values.sum())
    if total == 0:
        raise InputError("rows must differ for anisotropy to exist, but all are equal; check the site and the mask")
    return float(values[0]) / total


def anisotropy_replicates(
    rows: Float[Tensor, "n d"], sequences: Int[Tensor, "n"], n_groups: int = 16
) -> Float[Tensor, "g_plus_1"]:
    """Return the centred `anisotropy` of all rows, followed by that without each group of sequences.

    Args:
        rows: Rows `(n, d)`.
        sequences: The sequence of each row.
        n_groups: Largest number of groups into which whole sequences are divided.

    Returns:
        Replicates `(g + 1,)`, as `jackknife` takes them.
    """
    # With a column of ones appended, X^T X of a group holds its count, its sum and its products. Such matrices add up.
    centred = rows - rows.mean(dim=0)
    extended = torch.cat([centred, torch.ones_like(centred[:, :1])], dim=1)
    groups = sequence_groups(sequences, n_groups)

    def covariance(total: Tensor) -> Tensor:
        """Return the covariance of the rows behind a sum of such matrices."""
        mean = total[:-1, -1] / total[-1, -1]
        return total[:-1, :-1] / total[-1, -1] - torch.outer(mean, mean)

    totals = leave_one_out(group_products(extended, groups, int(groups.max()) + 1))
    near = leading_vectors(covariance(totals[0]), min(NEAR, rows.shape[1]))

    def leading_share(total: Tensor) -> Tensor:
        """Return the share of the variance of these rows along their leading direction."""
        spread = covariance(total)
        leader = leading_vectors(spread, 1, near)[:, 0]
        return leader @ spread @ leader / spread.trace()

    return replicate(leading_share, totals)
