"""Partition isotropy: whether the partition function sum exp(v . h) is the same in every direction v."""

import math
from typing import Any

import torch

from tangentlens.geometry.rows import as_rows

_BLOCK = 4096


def partition_isotropy(x: Any) -> float:
    """Return the ratio of the smallest to the largest partition function Z(v) (Mu and Viswanath 2018).

    Z(v) = sum_i exp(v . h_i), and v runs over the unit eigenvectors of H^T H and their negatives: with one sign alone,
    the value would depend on the sign that a solver happens to return. The ratio lies between 0 and 1, which is
    isotropic. Sums are computed as logarithms, so that long rows do not overflow.

    Args:
        x: Rows h_i `(n, d)`.

    >>> partition_isotropy([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    1.0
    """
    rows = as_rows(x).double()
    directions = torch.linalg.eigh(rows.T @ rows).eigenvectors
    logs = []
    for block in rows.split(_BLOCK):
        along = block @ directions
        logs.append(torch.cat([along.logsumexp(dim=0), (-along).logsumexp(dim=0)]))
    total = torch.stack(logs).logsumexp(dim=0)
    return math.exp(float(total.amin() - total.amax()))
