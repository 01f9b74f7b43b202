"""Prediction: how much of later gradients lies in subspaces of an earlier step, beside what gradients reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import BINNED_ORDERS
from tangentlens.alignment.tangent_result import TangentTest
from tangentlens.alignment.tangent_test import subspace_test
from tangentlens.geometry.leading import leading_vectors
from tangentlens.geometry.rows import as_rows, gram, unit_scale
from tangentlens.geometry.subspace import Subspace

# Leading directions of the gradients of the earlier step, and of the step itself.
GRADIENTS_THEN, GRADIENTS_NOW = "gradients_then", "gradients_now"


def prediction_test(
    then: Mapping[str, Subspace], rows: TokenRows, orders: Sequence[float] = BINNED_ORDERS, seed: int = 0
) -> TangentTest:
    """Return how much of the gradients of a step lies in subspaces of an earlier step.

    They are compared with `gradients_now`, the leading directions of the gradients of this very step, which no
    prediction can be expected to beat. The first half of the sequences gives these directions, and the gradients of the
    other half test all subspaces.

    Args:
        then: The subspaces of the earlier step by name, all of the same rank, the proxy first.
        rows: The activations and gradients of the later step.
        orders: The orders of the shares.
        seed: Seed of everything that is drawn.
    """
    now, test = rows.halves()
    rank = next(iter(then.values())).rank
    return subspace_test({**then, GRADIENTS_NOW: leading_gradients(now.gradients, rank)}, test, orders, seed)


def leading_gradients(gradients: Float[Tensor, "n d"], rank: int) -> Subspace:
    """Return the span of the leading directions of gradients, those with the most energy.

    Args:
        gradients: The gradients `(n, d)`.
        rank: The number of directions.
    """
    rows = as_rows(gradients)
    return Subspace(leading_vectors(gram(rows / unit_scale(rows)).double(), rank))
