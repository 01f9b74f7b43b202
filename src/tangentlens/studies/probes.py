"""Probes on frozen activations: what can be read off them, at every site, about the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.capture.probe import ProbeText
from tangentlens.capture.sites import find_sites
from tangentlens.errors import InputError
from tangentlens.geometry.linear_probe import linear_probe
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import ACTIVATION, PROBE_SKILL

# Classes of tokens: white space, the beginning of a word, its continuation, numbers, and everything else.
SPACE, BEGINS, CONTINUES, NUMBER, OTHER = range(5)
# A class with fewer tokens than this is left out of a task.
_LEAST = 40
_SENTENCE_ENDS = frozenset(".!?")


def token_class(text: str) -> int:
    """Return the class of a token, given its text.

    >>> [token_class(text) for text in (" the", "ing", "42", "  ", "(")] == [BEGINS, CONTINUES, NUMBER, SPACE, OTHER]
    True
    """
    bare = text.strip()
    if not bare:
        return SPACE
    if bare[0].isdigit():
        return NUMBER
    if bare[0].isalpha():
        return CONTINUES if text[0] == bare[0] else BEGINS
    return OTHER


def tasks(
    sequences: Int[Tensor, "n length"], spell: Callable[[list[int]], str], counts: Int[Tensor, "vocabulary"]
) -> dict[str, Int[Tensor, "n length"]]:
    """Return what is to be told of each token, by the name of the task; a negative number leaves a token out.

    Args:
        sequences: Token ids `(n, length)`.
        spell: Returns the text of token ids.
        counts: The counts of token types in the text.
    """
    texts = [spell([number]) for number in range(len(counts))]
    classes = torch.tensor([token_class(text) for text in texts])
    ends = torch.tensor([bool(_SENTENCE_ENDS & set(text)) for text in texts]).long()
    bins = FrequencyBins.of(counts).assign(torch.arange(len(counts)))
    following = torch.cat([sequences[:, 1:], torch.full_like(sequences[:, :1], -1)], dim=1)
    has_next = following >= 0
    found = {
        "token class": classes[sequences],
        "end of a sentence": ends[following].where(has_next, -1),
        "frequency of the next token": bins[following].where(has_next, -1),
    }
    return {name: _without_rare(labels) for name, labels in found.items()}


def _without_rare(labels: Int[Tensor, "n length"]) -> Int[Tensor, "n length"]:
    """Return the labels with -1 in place of classes that have too few tokens."""
    known = labels[labels >= 0]
    rare = known.bincount() < _LEAST if len(known) else torch.ones(1, dtype=torch.bool)
    return labels.masked_fill(rare[labels.clamp_min(0)], -1)


def probe_records(
    about: Record,
    model: nn.Module,
    sites: str | tuple[str, ...],
    read: Int[Tensor, "n length"],
    asked: dict[str, Int[Tensor, "n length"]],
) -> Iterator[Record]:
    """Yield the skill of linear probes at every site, for each task.

    Args:
        about: What the records have in common.
        model: The model.
        sites: The sites.
        read: The sequences as the model reads them.
        asked: What is to be told of each token, by task.
    """
    found = find_sites(model, sites)
    rows = ProbeText.of(read, model).rows(model, found)
    sequences = torch.arange(len(read))[:, None].expand_as(read).flatten()
    for site in found:
        for task, labels in asked.items():
            here = replace(about, quantity=ACTIVATION, site=site.name, depth=site.depth, variant=task)
            try:
                probe = linear_probe(rows[site.name], labels.flatten(), sequences)
                yield here.estimate(PROBE_SKILL, probe.skill, n=probe.n_test)
            except InputError as error:
                yield here.unmeasured(f"no probe of the {task}: {error}")
