"""Whether checkpoints are what their names say: equal weights, losses that go backwards, other tokens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tangentlens.runs.records import Record
from tangentlens.runs.run import Run
from tangentlens.runs.vocabulary import CHECKPOINT, FLAGGED, OTHER_TOKENS, SAME_WEIGHTS
from tangentlens.studies.sweep.measuring import part_of
from tangentlens.studies.sweep.series import Series

# A loss that is by so many nats above the least of all earlier ones goes backwards.
BACKWARDS = 0.1

Facts = Mapping[str, Any]


class KnownFacts:
    """What is known of the checkpoints of a sweep; that of each is read once, because a store may be far away."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._read: dict[str, dict[str, Any]] = {}

    def of(self, series: Series) -> list[dict[str, Any]]:
        """Return what is known of each checkpoint of a series that has been measured, in the order of steps."""
        written = self.run.parts
        parts = [part_of(series.name, checkpoint) for checkpoint in series.checkpoints]
        for part in (one for one in parts if one in written and one not in self._read):
            about = self.run.about_tensors(part)
            if about is not None:
                self._read[part] = json.loads(about["facts"])
        return [self._read[part] for part in parts if part in self._read]


def flags(facts: Sequence[Facts]) -> Iterator[tuple[int, str, str]]:
    """Yield what is suspicious about checkpoints: the step, the kind of the suspicion, and the reason in words.

    Args:
        facts: What is known of each checkpoint, in the order of steps.

    >>> same = [{"step": step, "weights_sha256": "x", "tokens_sha256": "y", "loss": 2.0} for step in (1, 2)]
    >>> next(flags(same))
    (1, 'weights', 'it has the same weights as step 2')
    """
    kinds = {
        SAME_WEIGHTS: _equal_weights(facts),
        "loss": _backwards({one["step"]: one["loss"] for one in facts}),
        OTHER_TOKENS: _other_tokens(facts),
        "tokenizer": _other_tokenizers(facts),
    }
    for kind, found in kinds.items():
        for step, reason in found:
            yield step, kind, reason


def flag_records(about: Record, facts: Sequence[Facts]) -> Iterator[Record]:
    """Yield a record for each checkpoint and each kind of suspicion, with all reasons of that kind.

    Args:
        about: What the records have in common.
        facts: What is known of each checkpoint, in the order of steps.
    """
    labels = {one["step"]: one["label"] for one in facts}
    reasons: dict[tuple[int, str], list[str]] = defaultdict(list)
    for step, kind, reason in flags(facts):
        reasons[step, kind].append(reason)
    for (step, kind), told in reasons.items():
        here = replace(about, revision=labels[step], step=step, quantity=CHECKPOINT)
        yield replace(here, metric=FLAGGED, variant=kind, value=1.0, detail="; ".join(told))


def _equal_weights(facts: Sequence[Facts]) -> Iterator[tuple[int, str]]:
    """Yield checkpoints whose weights are those of another step."""
    steps = defaultdict(list)
    for one in facts:
        steps[one["weights_sha256"]].append(one["step"])
    for of_equal in steps.values():
        for step in of_equal if len(of_equal) > 1 else ():
            others = [str(other) for other in of_equal if other != step]
            listed = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
            yield step, f"it has the same weights as step{'s' if len(others) > 1 else ''} {listed}"


def _backwards(losses: Mapping[int, float]) -> Iterator[tuple[int, str]]:
    """Yield pairs of checkpoints between which the loss rises: one of them may not be what its name says."""
    best: tuple[int, float] | None = None
    for step, loss in sorted(losses.items()):
        if best is None or loss <= best[1]:
            best = step, loss
        elif loss > best[1] + BACKWARDS:
            rise = f"the loss rises from {best[1]:.2f} at step {best[0]} to {loss:.2f} at step {step}"
            yield step, rise
            yield best[0], rise


def _other_tokens(facts: Sequence[Facts]) -> Iterator[tuple[int, str]]:
    """Yield checkpoints that saw other tokens than the first."""
    for one in facts:
        if one["tokens_sha256"] != facts[0]["tokens_sha256"]:
            yield one["step"], f"it saw other tokens than step {facts[0]['step']}"


def _other_tokenizers(facts: Sequence[Facts]) -> Iterator[tuple[int, str]]:
    """Yield checkpoints that come with a tokenizer of their own."""
    for one in facts:
        if one.get("tokenizer_differs"):
            yield one["step"], "its own tokenizer reads text differently; that of its series was used"
