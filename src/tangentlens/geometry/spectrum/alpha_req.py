"""Alpha-ReQ: the exponent by which the spectrum of the covariance falls."""

from typing import Any

import torch

from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments

# Eigenvalues below this fraction of the first are taken as rounding errors.
_FLOOR = 1e-7


def alpha_req(x: Any, ranks: tuple[int, int] | None = None) -> float:
    """Return the exponent alpha of lambda_j ~ j^(-alpha), the eigenvalues of the covariance (Agrawal et al. 2022).

    It is 0 for isotropic rows, and larger the faster the spectrum falls. The fit is least squares of log lambda_j over
    log j with weights 1/j, so that each octave of ranks counts alike (Stringer et al. 2019).

    Args:
        x: Rows `(n, d)`, or their `Moments`.
        ranks: First and last j of the fit; all eigenvalues above rounding by default.

    >>> steep = torch.diag(torch.arange(1, 9, dtype=torch.float64) ** -1.0)
    >>> round(alpha_req(torch.cat([steep, -steep])), 6)
    2.0
    """
    values = Moments.of(x).spectrum()
    usable = int((values > _FLOOR * values[0]).sum())
    first, last = (1, usable) if ranks is None else ranks
    if not 1 <= first < last <= usable:
        raise InputError(
            f"a slope needs ranks with 1 <= first < last <= {usable}, the number of eigenvalues above rounding, but "
            f"({first}, {last}) came; pass more rows or other ranks"
        )
    rank = torch.arange(first, last + 1, dtype=torch.float64, device=values.device)
    weight = 1 / rank / (1 / rank).sum()
    log_rank = rank.log() - weight @ rank.log()
    return -float((weight * log_rank) @ values[first - 1 : last].log() / (weight @ log_rank.square()))
