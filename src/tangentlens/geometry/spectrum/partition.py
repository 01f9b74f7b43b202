"""Partition isotropy: is the sum of exp(v . h) the same in every direction?"""

import math
from typing import Any

import torch

from tangentlens.geometry.rows import as_rows

_BLOCK = 4096


def partition_isotropy(x: Any) -> float:
    """Least over greatest Z(v) = sum_i exp(v . h_i) for v over the unit eigenvectors of H^T H (Mu and Viswanath 2018).

    An eigenvector comes with its negative, so both signs are taken: otherwise the value would depend on which sign a
    solver happens to return. From 0 to 1, which is isotropic. Sums are taken in logs, so long rows do not overflow.

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
