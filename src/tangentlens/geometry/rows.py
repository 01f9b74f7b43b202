"""What counts as rows: the checks that all measures share, and products of rows."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError

# Types in which token ids are stored on disk; PyTorch supports hardly any arithmetic on them.
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
# From this many features on, X^T X is computed in this many blocks of columns.
_WIDE, _BLOCKS = 256, 4


def as_numbers(name: str, x: Any) -> Tensor:
    """Return `x` as a detached tensor of real numbers, of any shape.

    Args:
        name: What the numbers are, for error messages.
        x: A tensor, or anything that `torch.as_tensor` accepts.

    >>> as_numbers("weights", [1, 2]).tolist()
    [1, 2]
    """
    try:
        numbers = torch.as_tensor(x).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} must be numbers in a tensor, or convertible to one, but {error}") from error
    if numbers.is_complex() or numbers.layout != torch.strided:
        raise InputError(
            f"{name} must be a dense tensor of real numbers, but is {numbers.dtype} and {numbers.layout}; convert it"
        )
    return numbers.long() if numbers.dtype in _UNSIGNED else numbers


def shaped_rows(x: Any) -> Float[Tensor, "n d"]:
    """Return `x` as a detached `(n, d)` tensor of floating-point numbers.

    Their precision is kept, and values may be infinite or NaN: `as_rows` is the stricter check.
    """
    rows = as_numbers("rows", x)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError(
            f"rows must be (n_rows, n_features), but the shape is {tuple(rows.shape)}; "
            "flatten batch and position into one axis first"
        )
    return rows if rows.is_floating_point() else rows.float()


def as_rows(x: Any, least: int = 1) -> Float[Tensor, "n d"]:
    """Return `x` as a detached, finite `(n, d)` tensor of at least `least` rows, in fp32 or fp64.

    Args:
        x: Rows `(n, d)`: a tensor, or anything that `torch.as_tensor` accepts.
        least: How many rows there must be.

    >>> as_rows([[1, 2], [3, 4]]).shape
    torch.Size([2, 2])
    """
    rows = shaped_rows(x)
    if len(rows) < least:
        raise InputError(f"at least {least} rows are needed, but {len(rows)} came; pass more tokens")
    if rows.dtype != torch.float64:
        rows = rows.float()
    if not all_finite(rows):
        bad = int((~rows.isfinite().all(dim=1)).sum())
        raise InputError(
            f"every value must be finite, but {bad} of {len(rows)} rows hold NaN or Inf; "
            "look for a diverged loss or an overflow in half precision, or drop those rows"
        )
    return rows


def all_finite(rows: Float[Tensor, "n d"]) -> bool:
    """Return whether every value is finite."""
    # If the sum is finite, so is every term, and a sum is much faster than a look at each. A sum that is not finite may
    # have overflowed, so that then every value is looked at.
    return bool(rows.sum().isfinite()) or bool(rows.isfinite().all())


def unit_scale(rows: Float[Tensor, "n d"]) -> float:
    """Return the power of two by which to divide the rows so that their largest entry lies between 1/2 and 1.

    Division by a power of two does not round.
    """
    if not rows.numel():
        return 1.0
    # One pass, without a copy of the rows.
    low, high = rows.aminmax()
    largest = float(torch.maximum(-low, high))
    return 2.0 ** min(math.frexp(largest)[1], 1023)


def squared_lengths(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """Return the squared length of each row, summed in fp64 without a copy of the rows in fp64."""
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()


def power_of_two(largest: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the largest powers of two that are not above positive numbers, and 1 for 0; NaN if they are not finite.

    Like `unit_scale`, for numbers that stay on their device, so that the host need not wait for them.
    """
    mantissa, _ = torch.frexp(largest)
    return (largest / mantissa / 2).where(largest != 0, 1.0)


def product(rows: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Return X^T X in fp64, multiplied in the precision of the rows.

    Rows are multiplied at unit scale, so that squares neither overflow nor vanish.
    """
    scale = unit_scale(rows)
    return gram(rows / scale).double() * scale**2


def gram(rows: Float[Tensor, "n d"], out: Float[Tensor, "d d"] | None = None) -> Float[Tensor, "d d"]:
    """Return X^T X in the precision of the rows.

    Args:
        rows: Rows X `(n, d)`.
        out: Memory `(d, d)` for the result; new memory by default.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]])).tolist()
    [[1.0, 2.0], [2.0, 5.0]]
    """
    return symmetric_product(rows, rows, out)


def symmetric_product(
    rows: Float[Tensor, "n d"], others: Float[Tensor, "n d"], out: Float[Tensor, "d d"] | None = None
) -> Float[Tensor, "d d"]:
    """Return X^T Y, which is known to be symmetric, in the precision of the rows.

    With many features, each off-diagonal block is multiplied once and mirrored, unless rows are so few that to mirror
    it takes as long.

    Args:
        rows: Rows X `(n, d)`.
        others: Rows Y `(n, d)`.
        out: Memory `(d, d)` for the result; new memory by default.
    """
    d = rows.shape[1]
    out = rows.new_empty(d, d) if out is None else out
    width = d if d < _WIDE or 2 * len(rows) < d else -(-d // _BLOCKS)
    for first in range(0, d, width):
        last = min(first + width, d)
        torch.mm(rows[:, first:last].T, others[:, first:], out=out[first:last, first:])
        out[last:, first:last] = out[first:last, last:].T
    return out


def group_products(rows: Float[Tensor, "n d"], groups: Int[Tensor, "n"], n_groups: int) -> Float[Tensor, "g d d"]:
    """Return X^T X of the rows of each group, in fp64; it is zero for a group without rows.

    Args:
        rows: Rows X `(n, d)`.
        groups: The group (0 ... n_groups - 1) of each row.
        n_groups: Number of groups.
    """
    scale = unit_scale(rows)
    order = groups.argsort(stable=True)
    parts = (rows[order] / scale).split(groups.bincount(minlength=n_groups).tolist())
    return torch.stack([(part.T @ part).double() for part in parts]) * scale**2
