"""In which order checkpoints are looked at, so that most of them can be compared with the one before at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tangentlens.studies.sweep.series import Checkpoint


@dataclass
class Queue:
    """The checkpoints of a series that are still to be looked at.

    One after the other they come in their order. If several are looked at at once, those come first whose predecessor
    is done, and then the middle of the longest stretch that nobody has begun.

    Attributes:
        checkpoints: All checkpoints, by step.
        done: Labels of those that are done.
        failed: Labels of those that failed.
        begun: Labels of those that somebody looks at.

    >>> queue = Queue([Checkpoint("", str(step), step) for step in range(5)])
    >>> [queue.begin().label for _ in range(3)]
    ['0', '3', '2']
    >>> queue.done.add("0")
    >>> queue.begin().label
    '1'
    """

    checkpoints: Sequence[Checkpoint]
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)

    def begin(self) -> Checkpoint | None:
        """Return the next checkpoint to look at, or None if all have been begun."""
        settled, touched = self.done | self.failed, self.done | self.failed | self.begun
        left = [place for place, one in enumerate(self.checkpoints) if one.label not in touched]
        if not left:
            return None
        ready = [place for place in left if place == 0 or self.checkpoints[place - 1].label in settled]
        chosen = self.checkpoints[ready[0] if ready else _middle_of_longest(left)]
        self.begun.add(chosen.label)
        return chosen

    def following(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the checkpoint after another one, if nobody has begun it."""
        later = self.checkpoints[self.checkpoints.index(checkpoint) + 1 :][:1]
        return next((one for one in later if one.label not in self.done | self.failed | self.begun), None)

    def end(self, checkpoint: Checkpoint, failure: str) -> None:
        """Note that a checkpoint has been looked at, or why it could not."""
        self.begun.discard(checkpoint.label)
        (self.failed if failure else self.done).add(checkpoint.label)

    def before(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the nearest earlier checkpoint that is done; None if one in between is not settled yet."""
        for earlier in reversed(self.checkpoints[: self.checkpoints.index(checkpoint)]):
            if earlier.label not in self.failed:
                return earlier if earlier.label in self.done else None
        return None


def split(sites: Sequence[str], n_groups: int) -> list[tuple[str, ...]]:
    """Return sites in groups of about equal size, none of them empty unless there is no site at all.

    Neighbours stay together: gradients begin at the first site of a group, so that late groups have short passes.

    >>> split(["a", "b", "c", "d", "e"], 2)
    [('a', 'b'), ('c', 'd', 'e')]
    >>> split(["a"], 2), split([], 2)
    ([('a',)], [()])
    """
    n_groups = max(min(n_groups, len(sites)), 1)
    ends = [len(sites) * number // n_groups for number in range(n_groups + 1)]
    return [tuple(sites[first:end]) for first, end in pairwise(ends)]


def _middle_of_longest(places: Sequence[int]) -> int:
    """Return the middle of the longest run of consecutive numbers."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    longest = max(runs, key=len)
    return longest[len(longest) // 2]
