"""A linear probe: how well a class can be read off frozen activations by a linear map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_numbers, as_rows
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife, leave_one_out

# The ridge penalty, in units of the mean variance of a feature.
_RIDGE = 1e-3
# The largest number of groups of sequences for the jackknife.
_GROUPS = 16


@dataclass(frozen=True)
class LinearProbe:
    """How well classes can be told apart.

    Attributes:
        skill: The balanced accuracy on held-out sequences, scaled so that chance is 0 and no error is 1, with its 95%
            interval over sequences. Balanced accuracy is the mean over classes of the part of their rows that is told
            rightly, so a frequent class counts as much as a rare one.
        recall: That part, by class.
        n_test: The number of rows that were told.
    """

    skill: Interval
    recall: dict[int, float]
    n_test: int


def linear_probe(x: Any, labels: Any, sequences: Any) -> LinearProbe:
    """Fit a linear map to the rows of every other sequence, and test it on the rows of the others.

    The map is a ridge regression on one indicator for each class, in which all classes have the same total weight. A
    row is told to be of the class with the largest prediction.

    Args:
        x: Activations `(n, d)`.
        labels: The class of each row, `(n,)`, as whole numbers; a negative one leaves the row out.
        sequences: The id of the sequence each row came from, `(n,)`.

    >>> make = torch.Generator().manual_seed(0)
    >>> rows = torch.randn(600, 8, generator=make)
    >>> probe = linear_probe(rows, rows[:, 0] > 0, torch.arange(600) // 10)
    >>> probe.skill.value > 0.8
    True
    """
    rows = as_rows(x)
    given = as_numbers("labels", labels).to(rows.device)
    classes = given.long()
    if not torch.equal(classes.to(given), given):
        raise InputError("labels must be whole numbers, one for each class, but some are not; number the classes")
    ids = as_numbers("sequences", sequences).to(rows.device).long()
    if not classes.shape == ids.shape == rows.shape[:1]:
        raise InputError(
            f"labels and sequences must have one entry for each of the {len(rows)} rows, but have the shapes "
            f"{tuple(classes.shape)} and {tuple(ids.shape)}"
        )
    counted = classes >= 0
    rows, classes = rows[counted].double(), classes[counted]
    _, number = ids[counted].unique(return_inverse=True)
    tests = number % 2 == 1
    known = _classes_of_both(classes, tests)
    index = torch.searchsorted(known, classes)
    center = rows[~tests].mean(dim=0)
    weights = _fitted(rows[~tests] - center, index[~tests], len(known))
    told = (rows[tests] - center) @ weights[:-1] + weights[-1]
    right = told.argmax(dim=1) == index[tests]
    return _judged(right, index[tests], number[tests], known)


def _classes_of_both(classes: Int[Tensor, "n"], tests: Tensor) -> Int[Tensor, "c"]:
    """Return the classes; raise if there are fewer than two, or one of them is only in one half of the sequences."""
    fitted, tested = classes[~tests].unique(), classes[tests].unique()
    if not len(fitted) >= 2 or not torch.equal(fitted, tested):
        raise InputError(
            "a probe needs at least two classes, each in both halves of the sequences, but has "
            f"{fitted.tolist()} to fit and {tested.tolist()} to test; use more sequences, or give rare classes a "
            "negative label, which leaves their rows out"
        )
    return fitted


def _fitted(rows: Float[Tensor, "n d"], index: Int[Tensor, "n"], count: int) -> Float[Tensor, "d_plus_1 c"]:
    """Return the weights of the ridge regression on indicators of the classes, and last its constants."""
    indicators = torch.nn.functional.one_hot(index, count).double()
    # All classes have the same total weight.
    weight = (1 / indicators.sum(dim=0))[index][:, None] / count
    extended = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
    gram = extended.T @ (weight * extended)
    ridge = _RIDGE * float(gram.diagonal()[:-1].mean())
    # A site whose rows are all equal tells nothing, but must not fail.
    gram.diagonal()[:-1] += ridge or 1.0
    return torch.linalg.solve(gram, extended.T @ (weight * indicators))


def _judged(right: Tensor, index: Int[Tensor, "m"], number: Int[Tensor, "m"], known: Int[Tensor, "c"]) -> LinearProbe:
    """Return the skill with its jackknife interval over groups of sequences."""
    groups = sequence_groups(number, _GROUPS)
    cell = groups * len(known) + index
    size = (int(groups.max()) + 1) * len(known)
    shape = (-1, len(known))
    counts = cell.bincount(minlength=size).reshape(shape).double()
    hits = cell[right].bincount(minlength=size).reshape(shape).double()
    # A class may be in one group alone, and then has no recall without it.
    recalls = leave_one_out(hits) / leave_one_out(counts)
    chance = 1 / len(known)
    skills = (recalls.mean(dim=1) - chance) / (1 - chance)
    return LinearProbe(
        skill=jackknife(skills),
        recall=dict(zip(known.tolist(), recalls[0].tolist(), strict=True)),
        n_test=len(right),
    )
