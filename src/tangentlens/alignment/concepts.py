"""Concepts one by one: how much of the variance and of the gradients each has, and the tokens that use it most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from tangentlens.alignment.rows import UNKNOWN, TokenRows
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.semi_nmf import SemiNMF
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import share_jackknife

# The penalty on the codes. Rows around 0 are mixtures of concepts that cancel, so that without a penalty a row has many
# codes that fit equally well, and long rows use every concept (docs/measures/concepts.md).
SPARSITY = 0.1
# A concept of one fit is the same as one of another fit if its direction has at least half of its squared length along
# the other's: then no third concept that is orthogonal to that one can be as near.
SAME = math.sqrt(0.5)
# How many of the tokens that use a concept most are kept, and how many tokens before and after each.
TOP, BEFORE, AFTER = 6, 10, 5


@dataclass(frozen=True, eq=False)
class Concept:
    """One concept of a semi-NMF, described on rows of other sequences than those that it was fitted to.

    Attributes:
        variance: The share of the variance of the activations along its direction, of which 1/d is chance.
        energy: The share of the energy of the gradients along its direction, of which 1/d is chance.
        usage: Its part of all contributions of concepts to tokens; those of all concepts sum to 1.
        frequency: How often its tokens occur in a million tokens: the geometric mean, weighted by contributions; None
            if nothing is known of them.
        found_again: The cosine between its direction and that of its match in a fit to the described rows themselves,
            which are of other sequences, with another seed.
        top: The rows that it contributes most to, descending, at most one of each sequence.
        contributions: Its contribution to each of these, relative to the root mean square length of a centred row.
    """

    variance: Interval
    energy: Interval
    usage: float
    frequency: float | None
    found_again: float
    top: Int[Tensor, "t"]
    contributions: Float[Tensor, "t"]


@dataclass(frozen=True, eq=False)
class Concepts:
    """The concepts of one fit.

    Attributes:
        directions: Their directions, as unit rows `(k, d)`.
        described: What is known of each.
    """

    directions: Float[Tensor, "k d"]
    described: Sequence[Concept]


def describe_concepts(
    fit_on: Float[Tensor, "m d"], rows: TokenRows, n_concepts: int, seed: int = 0, counts: Tensor | None = None
) -> Concepts:
    """Return the concepts of some activations, described on the rows of other sequences.

    Their codes are sparse, and the fit goes on until it converges, unlike that of the proxy, for which only the span of
    the concepts counts.

    Args:
        fit_on: Activations `(m, d)` to fit to.
        rows: The rows to describe them on.
        n_concepts: Number of concepts; those that no row needs are left out.
        seed: Seed of the fit.
        counts: Occurrences of each token id in the corpus; by default they are counted in the rows.
    """
    fit = SemiNMF(n_concepts, seed=seed, sparsity=SPARSITY).fit(fit_on)
    # To other sequences and with another seed, as a fit at another step is.
    again = SemiNMF(n_concepts, seed=seed + 1, sparsity=SPARSITY).fit(rows.activations)
    # Under the penalty, a concept that no row needs is 0, and has no direction.
    used = fit.components_.square().sum(dim=1) > 0
    directions = normalize(fit.components_[used].double(), dim=1)
    contributions = fit.contributions(rows.activations)[:, used] / fit.scale_
    variances, energies = (_shares(one, directions) for one in (_centred(rows), rows))
    # A concept of length 0 stays at 0 here, and matches nothing.
    _, found_again = matched(directions, normalize(again.components_.double(), dim=1))
    usage = contributions.sum(dim=0) / contributions.sum().clamp_min(torch.finfo(torch.float64).tiny)
    frequencies = _frequencies(rows.tokens, contributions, counts)
    tops = [_top(column, rows.sequences) for column in contributions.unbind(dim=1)]
    return Concepts(
        directions,
        [
            Concept(
                variance=variances[number],
                energy=energies[number],
                usage=float(usage[number]),
                frequency=frequencies[number],
                found_again=float(found_again[number]),
                top=top,
                contributions=contributions[top, number],
            )
            for number, top in enumerate(tops)
        ],
    )


def matched(
    directions: Float[Tensor, "k d"], others: Float[Tensor, "j d"]
) -> tuple[Int[Tensor, "k"], Float[Tensor, "k"]]:
    """Return, for each direction, its match among others and their cosine; -1 and 0 for those that get none.

    Each direction is matched at most once, so that the sum of all cosines is as large as possible. Concepts are used
    with codes from 0 on only, so that opposite directions are different concepts.

    Args:
        directions: Unit rows `(k, d)`.
        others: Unit rows `(j, d)`.

    >>> match, cosine = matched(torch.eye(2), torch.tensor([[0.0, 1.0], [0.6, 0.8], [-1.0, 0.0]]))
    >>> match.tolist(), [round(one, 1) for one in cosine.tolist()]
    ([1, 0], [0.6, 1.0])
    """
    cosines = (directions.double() @ others.to(directions).double().T).cpu()
    mine, theirs = (
        torch.from_numpy(index) for index in scipy.optimize.linear_sum_assignment(cosines.numpy(), maximize=True)
    )
    match, cosine = torch.full((len(directions),), -1), torch.zeros(len(directions), dtype=torch.float64)
    match[mine], cosine[mine] = theirs, cosines[mine, theirs]
    return match, cosine


def contexts(tokens: Int[Tensor, "n"], sequences: Int[Tensor, "n"]) -> Int[Tensor, "n width"]:
    """Return the tokens around each token, itself included; a negative id where its sequence has none.

    Args:
        tokens: Token ids, in the order of the text.
        sequences: The sequence of each.

    >>> contexts(torch.tensor([5, 6, 7]), torch.tensor([0, 0, 1]))[:, BEFORE - 1 : BEFORE + 2].tolist()
    [[-100, 5, 6], [5, 6, -100], [-100, 7, -100]]
    """
    place = torch.arange(len(tokens), device=tokens.device)[:, None]
    around = place + torch.arange(-BEFORE, AFTER + 1, device=tokens.device)
    near = around.clamp(0, max(len(tokens) - 1, 0))
    return tokens[near].where((near == around) & (sequences[near] == sequences[:, None]), UNKNOWN)


def _centred(rows: TokenRows) -> TokenRows:
    """Return rows that have their activations, centred, in place of gradients."""
    return replace(rows, gradients=rows.activations - rows.activations.double().mean(dim=0).to(rows.activations))


def _shares(rows: TokenRows, directions: Float[Tensor, "k d"]) -> list[Interval]:
    """Return the energy share along each direction, with its interval over sequences."""
    lines = {str(number): Subspace(direction[:, None]) for number, direction in enumerate(directions)}
    return [share_jackknife(shares) for shares in rows.energy_shares(lines).values()]


def _frequencies(
    tokens: Int[Tensor, "n"], contributions: Float[Tensor, "n k"], counts: Tensor | None
) -> list[float | None]:
    """Return how often the tokens of each concept occur in a million tokens."""
    known = tokens >= 0
    if counts is None:
        counts = tokens[known].bincount(minlength=1)
    counts = counts.to(tokens.device).double()
    known &= tokens < len(counts)
    known &= counts[tokens.where(known, 0)] > 0
    if not bool(known.any()):
        return [None] * contributions.shape[1]
    rates = (counts / counts.sum() * 1e6)[tokens[known]].log()
    weights = contributions[known].double()
    means = (rates @ weights / weights.sum(dim=0)).exp()
    return [rate if math.isfinite(rate) else None for rate in means.tolist()]


def _top(contributions: Float[Tensor, "n"], sequences: Int[Tensor, "n"]) -> Int[Tensor, "t"]:
    """Return the rows with the largest contributions, at most one of each sequence; none where there is no use."""
    order = contributions.argsort(descending=True, stable=True)
    order = order[contributions[order] > 0]
    chosen: dict[int, int] = {}
    for place, sequence in zip(order.tolist(), sequences[order].tolist(), strict=True):
        chosen.setdefault(sequence, place)
        if len(chosen) == TOP:
            break
    return torch.tensor(list(chosen.values()), dtype=torch.int64, device=contributions.device)
