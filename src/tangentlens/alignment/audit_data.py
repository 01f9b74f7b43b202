"""The data that all checks of the audit use: rows to fit and to test, the proxy, anchors and their tangent planes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_result import TangentTest
from tangentlens.alignment.tangent_test import proxy_test
from tangentlens.errors import InputError
from tangentlens.geometry.curvature.tangents import local_tangents
from tangentlens.geometry.dimension.intrinsic import patch_dimension
from tangentlens.geometry.neighbours import without_duplicates
from tangentlens.geometry.subspace import Subspace
from tangentlens.lazy import cached_property
from tangentlens.proxies import DEFAULT, Fit, named_proxy
from tangentlens.proxies.principal import Principal
from tangentlens.statistics.bootstrap import bootstrap_means
from tangentlens.statistics.interval import Interval

N_ANCHORS = 1024
# All tangent planes together have at most this many entries, a quarter of a GiB in double precision.
_PLANE_NUMBERS = 2**25


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: The name of the check.
        found: What was measured, in words.
        means: What that means for the question whether the proxy is tangent.
        estimates: Every number of the check with its interval, by name.
        says: The word that this check contributes to the verdict; None if it does not decide.
    """

    name: str
    found: str
    means: str
    estimates: Mapping[str, Interval] = field(default_factory=dict)
    says: str | None = None


@dataclass(frozen=True, eq=False)
class AuditData:
    """The data of an audit. Everything is fitted to `fit` and tested on the gradients of `test`.

    Attributes:
        fit: The rows of the first half of the sequences.
        test: The rows of the second half.
        rank: The rank of the proxy.
        dimension: The dimension of tangent planes; None for the intrinsic dimension of the activations.
        seed: The seed of everything that is drawn.
        bins: Frequency bins of the tangent test.
        how: The name of the proxy, or a function `(rows, rank, seed) -> Subspace`.
    """

    fit: TokenRows
    test: TokenRows
    rank: int
    dimension: int | None
    seed: int
    bins: FrequencyBins | None = None
    how: str | Fit = DEFAULT

    @cached_property
    def principal(self) -> Principal:
        """Return the eigendecomposition of the activations that everything is fitted to."""
        return Principal.of(self.fit.activations)

    def fitted(
        self, to: Float[Tensor, "n d"] | Principal, rank: int | None = None, seed: int | None = None
    ) -> Subspace:
        """Return a proxy fitted to the rows `to`.

        Args:
            to: Activations `(n, d)`, or their eigendecomposition.
            rank: The rank; that of the audit by default.
            seed: The seed; that of the audit by default.
        """
        _, fit = named_proxy(self.how)
        return fit(to, self.rank if rank is None else rank, self.seed if seed is None else seed)

    @cached_property
    def proxy(self) -> Subspace:
        """Return the proxy that is audited."""
        return self.fitted(self.principal)

    @cached_property
    def tangent_test(self) -> TangentTest:
        """Return the tangent test of the same rows against every control."""
        return proxy_test(self.principal, self.test, self.rank, bins=self.bins, seed=self.seed, proxy=self.how)

    @cached_property
    def anchors(self) -> Int[Tensor, "a"]:
        """Return the indices of a random sample of the test tokens whose gradient is not zero, in ascending order."""
        usable = self.test.gradients.abs().amax(dim=1).gt(0).nonzero()[:, 0]
        most = min(N_ANCHORS, max(_PLANE_NUMBERS // (self.fit.activations.shape[1] * self.plane_dimension), 64))
        drawn = torch.randperm(len(usable), generator=self.generator())[:most].sort().values
        return usable[drawn.to(usable.device)]

    @cached_property
    def plane_dimension(self) -> int:
        """Return `dimension` or, if it is None, the intrinsic dimension of the fitted activations, rounded.

        It is that of patches: at the scale of the nearest neighbours noise adds dimensions, and a plane of too many
        dimensions contains normals as well.
        """
        if self.dimension is not None:
            return self.dimension
        m, d = max(round(patch_dimension(self.fit.activations)), 1), self.fit.activations.shape[1]
        if m >= d:
            raise InputError(
                f"tangent planes must have a lower dimension than the space, R^{d}, but the intrinsic dimension of "
                f"these rows is {m}; pass a lower dimension"
            )
        return m

    @cached_property
    def planes(self) -> Float[Tensor, "a d m"]:
        """Return an orthonormal basis of the tangent plane at each anchor, by local PCA of the rows of `fit`."""
        return self._planes(self.fit.activations, self._n_neighbours)

    def half_planes(self) -> list[Float[Tensor, "a d m"]]:
        """Return two more bases of the plane at each anchor, from the distinct rows of different halves of `fit`.

        The planes have half as many neighbours, so that these are about as far away.
        """
        rows, _ = without_duplicates(self.fit.activations)
        return [self._planes(half, self._n_neighbours // 2) for half in rows.split((len(rows) + 1) // 2)]

    @property
    def _n_neighbours(self) -> int:
        """The number of rows from which a plane is estimated."""
        return max(4 * self.plane_dimension, 16)

    def _planes(self, rows: Float[Tensor, "n d"], k: int) -> Float[Tensor, "a d m"]:
        """Return the plane at each anchor, by local PCA of the `k` nearest of the rows."""
        return local_tangents(rows, self.test.activations[self.anchors], self.plane_dimension, k)

    def generator(self, number: int = 0) -> torch.Generator:
        """Return a new random generator, seeded with the audit's seed plus `number`."""
        return torch.Generator().manual_seed(self.seed + number)

    def anchor_means(self, values: Float[Tensor, "a q"]) -> tuple[Float[Tensor, "draws_plus_1 q"], int]:
        """Return means over anchors, of all sequences and of each bootstrap draw, and the number of sequences.

        Args:
            values: One row of quantities for each anchor.
        """
        means, n = bootstrap_means(values, self.test.sequences[self.anchors], self.seed)
        if n < 2:
            raise InputError(f"anchors must come from at least 2 sequences, but come from {n}; pass more sequences")
        return means, n
