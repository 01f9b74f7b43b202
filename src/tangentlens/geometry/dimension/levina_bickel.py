"""Levina and Bickel's maximum likelihood (2004), averaged over rows as MacKay and Ghahramani (2005) propose."""

import math

from jaxtyping import Float
from torch import Tensor


def levina_bickel(distances: Float[Tensor, "n k"]) -> float:
    """Return the dimension as the reciprocal of the mean of 1/m(x), the local estimates, over rows x.

    With distances T_j to neighbour j, 1/m(x) is the mean of log(T_k / T_j) over j < k. The original paper averages m(x)
    itself, which is biased upward for small k.

    Args:
        distances: Distances `(n, k)` to the nearest neighbours, ascending.

    Returns:
        The dimension; it is infinite if all neighbours of each row are equally far.
    """
    mean = float((distances[:, -1:] / distances[:, :-1]).log().mean())
    return 1 / mean if mean else math.inf
