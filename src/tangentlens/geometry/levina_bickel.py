"""Levina and Bickel's maximum likelihood (2004), pooled over rows as MacKay and Ghahramani (2005) correct it."""

from jaxtyping import Float
from torch import Tensor


def levina_bickel(distances: Float[Tensor, "n k"]) -> float:
    """The reciprocal of the mean over rows of 1/m(x), where 1/m(x) = mean over j < k of log(T_k / T_j).

    The original averages m(x) itself, which is biased upward where k is small.
    """
    logs = (distances[:, -1:] / distances[:, :-1]).log()
    return 1 / float(logs.mean())
