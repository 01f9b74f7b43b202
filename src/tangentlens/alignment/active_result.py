"""The result of the active-concepts test: own and swapped shares with their intervals, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
from jaxtyping import Float
from torch import Tensor

from tangentlens.statistics.bootstrap import bootstrap_interval
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import log_odds, log_share
from tangentlens.statistics.words import compare

# The two kinds of directions that are compared, and the name of their share in the place of another token.
CONCEPTS, COMPONENTS = "concepts", "components"
SWAPPED = {CONCEPTS: "concepts_swapped", COMPONENTS: "components_swapped"}


@dataclass(frozen=True, eq=False)
class ActiveConcepts:
    """Shares of gradients in the concepts of their own token and in those of other tokens; the same for components.

    `table` has every number with its 95% interval over test sequences, `verdict()` says it in words. The variants are
    `concepts`, `concepts_swapped`, `components` and `components_swapped`.

    Attributes:
        n_concepts: The number of concepts and of principal components, k.
        n_active: The number of them that make a token's place, m.
        dim: The width of the site, d.
        rank: The mean dimension of the span of a token's concepts: m, or less if codes are sparse or concepts alike.
        codes_per_token: The mean number of concepts with which a token is written.
        n_tokens: The number of test tokens with a gradient.
        n_sequences: The number of independent parts that the intervals resample: sequences, or groups of them if there
            are very many.
        shares: Energy-weighted shares by variant: of all sequences, then of each bootstrap draw.
        token_shares: Mean shares over tokens, likewise.
    """

    n_concepts: int
    n_active: int
    dim: int
    rank: float
    codes_per_token: float
    n_tokens: int
    n_sequences: int
    shares: Mapping[str, Float[Tensor, "draws_plus_1"]]
    token_shares: Mapping[str, Float[Tensor, "draws_plus_1"]]

    @property
    def chance(self) -> float:
        """The share in the concepts of a token that is expected of gradients in random directions: rank / d."""
        return self.rank / self.dim

    def share(self, variant: str = CONCEPTS) -> Interval:
        """Return the energy of the gradients inside / their whole energy, with its interval."""
        return self._share(self.shares[variant])

    def token_share(self, variant: str = CONCEPTS) -> Interval:
        """Return the mean share over tokens, in which a long gradient weighs no more than a short one."""
        return self._share(self.token_shares[variant])

    def log_ratio(self, variant: str = CONCEPTS) -> Interval:
        """Return ln(own / swapped) of `concepts` or `components`, energy-weighted."""
        return self._interval(_log_ratio(self.shares, variant))

    def token_log_ratio(self, variant: str = CONCEPTS) -> Interval:
        """Return ln(own / swapped) of `concepts` or `components`, token by token."""
        return self._interval(_log_ratio(self.token_shares, variant))

    def advantage(self) -> Interval:
        """Return by how much concepts do better: their ln(own / swapped) minus that of components, energy-weighted."""
        return self._interval(_log_ratio(self.shares, CONCEPTS) - _log_ratio(self.shares, COMPONENTS))

    def token_advantage(self) -> Interval:
        """Return by how much concepts do better: their ln(own / swapped) minus that of components, token by token."""
        return self._interval(_log_ratio(self.token_shares, CONCEPTS) - _log_ratio(self.token_shares, COMPONENTS))

    def estimates(self) -> dict[tuple[str, str], Interval]:
        """Return every number with its interval, by metric and variant."""
        found: dict[tuple[str, str], Interval] = {}
        found |= {("share", variant): self.share(variant) for variant in self.shares}
        found |= {("token_share", variant): self.token_share(variant) for variant in self.token_shares}
        found |= {("log_ratio", variant): self.log_ratio(variant) for variant in SWAPPED}
        found |= {("token_log_ratio", variant): self.token_log_ratio(variant) for variant in SWAPPED}
        return found | {("advantage", ""): self.advantage(), ("token_advantage", ""): self.token_advantage()}

    @property
    def table(self) -> pl.DataFrame:
        """Return every number with its interval, one row per metric and variant; `token_` is token by token."""
        return pl.DataFrame(
            [
                {"metric": metric, "variant": variant, **estimate.columns(), "n": self.n_tokens}
                for (metric, variant), estimate in self.estimates().items()
            ]
        )

    def verdict(self) -> str:
        """Return what the intervals allow to be said, in a line for each comparison."""
        m, k = self.n_active, self.n_concepts
        other, rival = "those of other tokens", "that of components"
        return "\n".join(
            [
                f"The {m} of {k} concepts that contribute most to a token take {self.share()} of its gradient's energy "
                f"(chance {self.chance:.3g}).",
                f"  {compare(other, self.log_ratio())}",
                f"The {m} of {k} principal components with its largest coordinates take {self.share(COMPONENTS)}.",
                f"  {compare(other, self.log_ratio(COMPONENTS))}",
                f"  the ratio of concepts is {compare(rival, self.advantage())}",
                f"Token by token, these take {self.token_share()} and {self.token_share(COMPONENTS)} on average.",
                f"  concepts: {compare(other, self.token_log_ratio())}",
                f"  components: {compare(other, self.token_log_ratio(COMPONENTS))}",
                f"  the ratio of concepts is {compare(rival, self.token_advantage())}",
            ]
        )

    def __repr__(self) -> str:
        return (
            f"ActiveConcepts({self.n_active} of {self.n_concepts} concepts, dim={self.dim}, tokens={self.n_tokens})\n"
            f"{self.verdict()}"
        )

    def _share(self, replicates: Float[Tensor, "draws_plus_1"]) -> Interval:
        return self._interval(log_odds(replicates)).from_log_odds()

    def _interval(self, replicates: Float[Tensor, "draws_plus_1"]) -> Interval:
        return bootstrap_interval(replicates, self.n_sequences)


def _log_ratio(shares: Mapping[str, Float[Tensor, "draws_plus_1"]], variant: str) -> Float[Tensor, "draws_plus_1"]:
    """Return ln(own / swapped), of all sequences and of each draw."""
    return log_share(shares[variant]) - log_share(shares[SWAPPED[variant]])
