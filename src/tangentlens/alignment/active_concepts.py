"""Active concepts: does a token's gradient prefer the concepts that the token itself is made of?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from tangentlens.alignment.active_result import COMPONENTS, CONCEPTS, SWAPPED, ActiveConcepts
from tangentlens.alignment.rows import TokenRows
from tangentlens.errors import InputError
from tangentlens.geometry.rows import group_products, unit_scale
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal
from tangentlens.proxies.semi_nmf import SPAN_TOL, SemiNMF
from tangentlens.statistics.bootstrap import cluster_bootstrap
from tangentlens.statistics.groups import sequence_groups

# The usual number of concepts, and of how many of them one is active.
N_CONCEPTS, ONE_ACTIVE_OF = 32, 8
# A direction that contributes less than this, relative to the token's largest contribution, is not active.
_LEAST = 1e-3
# Concepts count as dependent if an eigenvalue of the Gram matrix of their unit vectors is below this. Two concepts are
# then one if the angle between them is below 0.1 degrees.
_DEPENDENT = 1e-6
# With more test sequences than this, groups of whole sequences take their place, which bounds memory.
_MOST_GROUPS = 256
# With fewer test sequences, most draws of the bootstrap have too few different ones to swap tokens between.
_LEAST_SEQUENCES = 4
# The number of tokens whose planes are in memory at once.
_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Usage:
    """Directions, and how much each of them contributes to each token.

    Attributes:
        directions: Directions `(k, d)` of length 1, or 0 for a concept that is not used.
        contributions: The length of what each direction contributes to each token, `(n, k)`.
    """

    directions: Float[Tensor, "k d"]
    contributions: Float[Tensor, "n k"]

    def active(
        self, tokens: Int[Tensor, "c"], n_active: Int[Tensor, "c"]
    ) -> tuple[Int[Tensor, "c m"], Bool[Tensor, "c m"]]:
        """Return the directions that contribute most to some of the tokens, and which of them are active.

        Args:
            tokens: The tokens.
            n_active: How many directions may be active for each of them; the largest of these numbers is m.
        """
        largest, index = self.contributions[tokens].topk(int(n_active.max()), dim=1)
        allowed = torch.arange(index.shape[1], device=index.device) < n_active[:, None]
        return index, (largest > _LEAST * largest[:, :1]) & (largest > 0) & allowed


def active_concepts(
    activations: Any,
    gradients: Any,
    sequences: Any,
    n_concepts: int = 32,
    n_active: int = 4,
    sparsity: float = 0.0,
    seed: int = 0,
) -> ActiveConcepts:
    """Compare a gradient's share in the concepts of its own token with its share in those of other tokens.

    The concepts of a token are the `n_active` ones that contribute most to it. Concepts are fitted to the activations
    of the first half of the sequences and tested on the gradients of the second half. A swapped share is the mean over
    all tokens of other sequences. The same is measured for principal components (docs/measures/active-concepts.md).

    Args:
        activations: Rows `(n, d)` at one site.
        gradients: Gradients of the loss with respect to those activations, `(n, d)`.
        sequences: The id of the sequence each row came from, `(n,)`; at least 8 different ones.
        n_concepts: Number of concepts, and of principal components.
        n_active: Number of concepts, and of principal components, that make a token's place.
        sparsity: Weight of the penalty on the codes; see `SemiNMF`.
        seed: Seed of everything that is drawn.

    Returns:
        Own and swapped shares of concepts and of principal components, with intervals over test sequences.

    >>> make = torch.Generator().manual_seed(0)
    >>> codes = torch.rand(2000, 8, generator=make) * (torch.rand(2000, 8, generator=make) < 0.2)
    >>> concepts = torch.randn(8, 24, generator=make)
    >>> gradients = (codes * torch.randn(2000, 8, generator=make)) @ concepts
    >>> found = active_concepts(codes @ concepts, gradients, torch.arange(2000) // 20, n_concepts=8, n_active=2)
    >>> found.log_ratio().ci_low > 0.5
    True
    """
    fit, test = TokenRows.of(activations, gradients, sequences).halves()
    used = usages(Principal.of(fit.activations), test.activations, n_concepts, sparsity, seed)
    return own_and_swapped(used, test.gradients, test.sequences, n_active, seed)


def usual_active_concepts(principal: Principal, test: TokenRows, sparsity: float, seed: int) -> ActiveConcepts:
    """Return `active_concepts` with the usual numbers of concepts for the rows that these are fitted to.

    Args:
        principal: The activations to fit to.
        test: The rows to test on, which have been checked.
        sparsity: Weight of the penalty on the codes.
        seed: Seed of everything that is drawn.
    """
    n_concepts, n_active = usual_numbers(principal)
    used = usages(principal, test.activations, n_concepts, sparsity, seed)
    return own_and_swapped(used, test.gradients, test.sequences, n_active, seed)


def usual_numbers(principal: Principal) -> tuple[int, int]:
    """Return the usual number of concepts for rows to fit to, at most half the width, and that of active ones."""
    n, d = principal.rows.shape
    n_concepts = min(N_CONCEPTS, d // 2, n)
    return n_concepts, max(n_concepts // ONE_ACTIVE_OF, 1)


def usages(
    principal: Principal, activations: Float[Tensor, "n d"], n_concepts: int, sparsity: float = 0.0, seed: int = 0
) -> dict[str, Usage]:
    """Return the usage of concepts, and that of as many principal components, by rows they were not fitted to.

    Args:
        principal: The rows to fit to.
        activations: The rows whose usage is returned.
        n_concepts: Number of concepts, and of principal components.
        sparsity: Weight of the penalty on the codes.
        seed: Seed of the concepts.
    """
    most = min(principal.rows.shape)
    if not 2 <= n_concepts <= most:
        raise InputError(
            f"n_concepts must be between 2 and {most}, the smaller side of the {tuple(principal.rows.shape)} rows that "
            f"concepts are fitted to, but is {n_concepts}; choose fewer concepts or pass more tokens"
        )
    concepts = SemiNMF(n_concepts, seed=seed, sparsity=sparsity, tol=SPAN_TOL).fit(principal)
    if not concepts.components_.any():
        raise InputError(f"at least one concept must be used, but none is with sparsity={sparsity}; choose a lower one")
    components = principal.span(slice(n_concepts)).basis.T
    coordinates = (activations - principal.mean.to(activations)) @ components.T.to(activations)
    return {
        CONCEPTS: Usage(
            normalize(concepts.components_.double(), dim=1, eps=1e-300), concepts.contributions(activations)
        ),
        COMPONENTS: Usage(components, coordinates.double().abs()),
    }


def own_and_swapped(
    used: Mapping[str, Usage],
    gradients: Float[Tensor, "n d"],
    sequences: Int[Tensor, "n"],
    n_active: int,
    seed: int = 0,
) -> ActiveConcepts:
    """Return the shares of gradients in the active directions of their own token and in those of other tokens.

    Args:
        used: The usage of concepts and of principal components by the tokens, as `usages` returns it.
        gradients: The gradients of the tokens, `(n, d)`; tokens without gradient are left out.
        sequences: The id of the sequence each token came from, `(n,)`.
        n_active: Number of active directions of a token.
        seed: Seed of the bootstrap.
    """
    n_concepts = len(used[CONCEPTS].directions)
    if not 1 <= n_active < n_concepts:
        raise InputError(
            f"n_active must be between 1 and {n_concepts - 1}, below the number of concepts, but is {n_active}; all "
            "concepts together are those of every token"
        )
    chosen, groups = _with_gradient(gradients, sequences)
    n_groups = int(groups.max()) + 1
    counts = cluster_bootstrap(torch.eye(n_groups, dtype=torch.float64), seed=seed).to(gradients.device)
    # A draw of one sequence alone has nothing to swap with.
    counts = counts[counts.gt(0).sum(dim=1) >= 2]
    concepts = _Sums.of(used[CONCEPTS], gradients, chosen, groups, torch.full_like(chosen, n_active))
    # Each token has as many components as its concepts span dimensions: fewer directions alone would raise a ratio.
    components = _Sums.of(used[COMPONENTS], gradients, chosen, groups, concepts.ranks)
    shares: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for weighting, by_variant in enumerate(shares):
        for name, sums in ((CONCEPTS, concepts), (COMPONENTS, components)):
            by_variant[name], by_variant[SWAPPED[name]] = sums.shares(weighting, counts)
            # A share is known to about this; below it, own / swapped would be a ratio of rounding errors.
            if float(by_variant[SWAPPED[name]][0]) < 1e-12:
                raise InputError(
                    f"gradients must lie in the active {name} of other tokens at least in part, or there is nothing to "
                    "compare with, but they do not; choose a lower sparsity or more concepts"
                )
    return ActiveConcepts(
        n_concepts=n_concepts,
        n_active=n_active,
        dim=gradients.shape[1],
        rank=float(concepts.ranks.double().mean()),
        codes_per_token=float((used[CONCEPTS].contributions[chosen] > 0).sum(dim=1).double().mean()),
        n_tokens=len(chosen),
        n_sequences=n_groups,
        shares=shares[0],
        token_shares=shares[1],
    )


def _with_gradient(
    gradients: Float[Tensor, "n d"], sequences: Int[Tensor, "n"]
) -> tuple[Int[Tensor, "c"], Int[Tensor, "c"]]:
    """Return the tokens whose gradient is not zero and their groups of sequences, in the order of the groups."""
    chosen = gradients.abs().amax(dim=1).gt(0).nonzero()[:, 0]
    n_sequences = len(sequences[chosen].unique())
    if n_sequences < _LEAST_SEQUENCES:
        raise InputError(
            f"the gradients of at least {_LEAST_SEQUENCES} test sequences must not be zero, but only those of "
            f"{n_sequences} are not; check that this site is in the loss, or pass more sequences"
        )
    chosen = chosen[sequences[chosen].argsort(stable=True)]
    return chosen, sequence_groups(sequences[chosen], _MOST_GROUPS)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the tokens of each group of sequences, from which shares of any mixture of groups follow.

    The first axis is the weight w of a token: its energy, or 1. With u the unit gradient of a token and P the projector
    on its active directions, both in coordinates of the span of all directions, they are

    Attributes:
        weights: sum w.
        own: sum w |P u|^2.
        gradients: sum w u u^T.
        projectors: sum w P.
        ranks: The rank of P for each token.
    """

    weights: Float[Tensor, "2 g"]
    own: Float[Tensor, "2 g"]
    gradients: Float[Tensor, "2 g r r"]
    projectors: Float[Tensor, "2 g r r"]
    ranks: Int[Tensor, "c"]

    @classmethod
    def of(
        cls,
        usage: Usage,
        gradients: Float[Tensor, "n d"],
        chosen: Int[Tensor, "c"],
        groups: Int[Tensor, "c"],
        n_active: Int[Tensor, "c"],
    ) -> _Sums:
        """Return the sums over the tokens `chosen`, which are ordered by their group; `n_active` is one number each."""
        basis = Subspace.span(usage.directions).basis
        vectors, scale = usage.directions @ basis, unit_scale(gradients)
        n_groups, r = int(groups.max()) + 1, basis.shape[1]
        weights, own = (basis.new_zeros(2, n_groups) for _ in range(2))
        outer, projectors = (basis.new_zeros(2, n_groups, r, r) for _ in range(2))
        ranks = []
        for some, group, most in zip(*(x.split(_CHUNK) for x in (chosen, groups, n_active)), strict=True):
            rows = gradients[some].double() / scale
            lengths = rows.norm(dim=1)
            units = rows @ basis / lengths[:, None]
            planes = _planes(vectors, *usage.active(some, most))
            ranks.append(planes.square().sum(dim=(1, 2)).round().long())
            inside = torch.einsum("cmr,cr->cm", planes, units).square().sum(dim=1)
            here = slice(int(group[0]), int(group[-1]) + 1)
            local, n_local = group - group[0], here.stop - here.start
            # The roots of the two weights.
            for number, root in enumerate((lengths, torch.ones_like(lengths))):
                weights[number].index_add_(0, group, root.square())
                own[number].index_add_(0, group, root.square() * inside)
                outer[number, here] += group_products(units * root[:, None], local, n_local)
                spans = (planes * root[:, None, None]).flatten(0, 1)
                projectors[number, here] += group_products(spans, local.repeat_interleave(planes.shape[1]), n_local)
        return cls(weights, own, outer, projectors, torch.cat(ranks))

    def shares(
        self, weighting: int, counts: Float[Tensor, "draws g"]
    ) -> tuple[Float[Tensor, "draws"], Float[Tensor, "draws"]]:
        """Return own and swapped shares in each draw.

        Every gradient is swapped with every token of another group. Both weigh as they do in the own share: the usage
        of directions, and so the dimension of their spans, is then the same in both.

        Args:
            weighting: 0 for weights by energy, 1 for equal ones.
            counts: How often each group is in each draw.
        """
        total = self.weights[weighting].sum()
        weights = self.weights[weighting] / total
        own = counts @ (self.own[weighting] / total) / (counts @ weights)
        # What the gradients of one group (row) have inside the directions of another (column).
        taken = (self.gradients[weighting].flatten(1) / total) @ (self.projectors[weighting].flatten(1) / total).T
        pairs = torch.outer(weights, weights)
        inside, all_of_it = (((counts @ product.fill_diagonal_(0)) * counts).sum(dim=1) for product in (taken, pairs))
        return own, inside / all_of_it


def _planes(
    vectors: Float[Tensor, "k r"], index: Int[Tensor, "c m"], contributes: Bool[Tensor, "c m"]
) -> Float[Tensor, "c m r"]:
    """Return an orthonormal basis of the span of each token's active directions, as rows; missing ones are zero."""
    active = vectors[index] * contributes[:, :, None]
    values, turns = torch.linalg.eigh(active @ active.transpose(1, 2))
    kept = values > _DEPENDENT
    lengths = torch.where(kept, values.clamp_min(_DEPENDENT).rsqrt(), 0.0)
    return (turns * lengths[:, None, :]).transpose(1, 2) @ active
