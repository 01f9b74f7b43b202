"""A claim as data: what is said, which number would show it, and how large that number must be to matter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import polars as pl

# Takes the records of all runs, as `read_runs` returns them; gives one `effect` for each network (`run`, `network`).
Estimand = Callable[[pl.DataFrame], pl.DataFrame]

# Where claims come from.
DYNAMICS, SHAPE = "arXiv 2604.08764", "arXiv 2311.05928"
REFEREE, OURS = "a referee's question to arXiv 2604.08764", "ours"
OPEN_QUESTION = "an open question of arXiv 2604.08764"
# The studies that judge them.
TRAINING_STUDY = "tangentlens study learning-dynamics"
SHAPE_STUDY = "tangentlens study shape-of-learning"
FINISHED_STUDY = "tangentlens study finished-models"
# What had been seen when most of them were written down.
LOOKED = "written after a look at finished models, and at one decoder that is not among the trained networks"

# The smallest ratio of two shares that matters, as its logarithm.
RATIO_MARGIN = math.log(1.05)
# The smallest difference in anisotropy that matters.
ANISOTROPY_MARGIN = 0.02
# The smallest rank correlation that matters.
CORRELATION_MARGIN = 0.1


@dataclass(frozen=True)
class Needs:
    """What a claim is judged from.

    Attributes:
        records: The records it is computed from, in words.
        command: The command that makes them.
    """

    records: str
    command: str


@dataclass(frozen=True)
class Claim:
    """A claim about networks, judged over networks.

    Attributes:
        id: Its number in the ledger; parts of one claim have letters.
        statement: What is claimed.
        source: Where it comes from.
        effect: The number that is judged, in words.
        of: Returns that number for each network.
        needs: What it is computed from.
        margin: The smallest effect that would matter, chosen before the runs.
        unit: How the effect is shown: a log-ratio as a ratio, others as they are.
        below: Whether the claim is that the effect lies below the margin, not above.
        resolution: The step in which the effect is known, if it can only take some values.
        known: What had been seen of it when it was written down.
        of_treated: Whether it is about networks whose training was changed on purpose. Other claims leave these out.
    """

    id: str
    statement: str
    source: str
    effect: str
    of: Estimand
    needs: Needs
    margin: float = RATIO_MARGIN
    unit: Literal["ratio", "difference", "correlation", "doublings", "fraction"] = "ratio"
    below: bool = False
    resolution: float = 0.0
    known: str = "written before the runs"
    of_treated: bool = False
