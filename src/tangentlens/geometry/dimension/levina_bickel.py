"""Levina and Bickel's maximum likelihood (2004), pooled over rows as MacKay and Ghahramani (2005) correct it."""

import math

from jaxtyping import Float
from torch import Tensor


def levina_bickel(distances: Float[Tensor, "n k"]) -> float:
    """The reciprocal of the mean over rows of 1/m(x), where 1/m(x) = mean over j < k of log(T_k / T_j).

    The original averages m(x) itself, which is biased upward where k is small.
    """
    mean = float((distances[:, -1:] / distances[:, :-1]).log().mean())
    return 1 / mean if mean else math.inf
