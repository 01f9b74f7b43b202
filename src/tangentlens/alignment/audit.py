"""The audit: is the proxy really tangent? Falsifiable checks of that claim, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from tangentlens.alignment.active_check import active_concepts_of
from tangentlens.alignment.audit_data import AuditData, Check
from tangentlens.alignment.checks import CHECKS, against, fitted_elsewhere
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_planes import VERDICTS
from tangentlens.alignment.tangent_result import TangentTest
from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace
from tangentlens.notebook import as_html
from tangentlens.proxies import DEFAULT, Fit


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of an audit; its `repr` is a page with every check and the verdict.

    Attributes:
        checks: The checks in order, each with its numbers and what they mean.
        test: The tangent test of the same rows against every control; None if the rows do not allow it.
        rank: The rank of the proxy.
        dim: The width of the site.
        n_tokens: The number of tokens, to fit and to test.
    """

    checks: tuple[Check, ...]
    test: TangentTest | None
    rank: int
    dim: int
    n_tokens: int

    @property
    def says(self) -> str:
        """Return the verdict, a key of `VERDICTS`.

        It is 'tangent', 'normal' or 'indifferent'; 'variance' or 'avoiding' if the tangent planes of other places take
        nearly as much of the gradients, or more; 'unknown' if none of these could be shown.
        """
        return next((check.says for check in self.checks if check.says is not None), "unknown")

    @property
    def table(self) -> pl.DataFrame:
        """Return every number of the audit with its 95% interval: one row per check and number."""
        return pl.DataFrame(
            [
                {"check": check.name, "quantity": name, **estimate.columns()}
                for check in self.checks
                for name, estimate in check.estimates.items()
            ]
        )

    @property
    def _about(self) -> str:
        return f"rank {self.rank} of {self.dim}, {self.n_tokens} tokens"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict, and every check with what it means."""
        rows = [(check.name, check.means, check.found) for check in self.checks]
        return as_html(
            f"The gradients are {VERDICTS[self.says]}.", [f"Audit: {self._about}."], ("check", "means", "found"), rows
        )

    def __repr__(self) -> str:
        page = [f"Audit ({self._about}): the gradients are {VERDICTS[self.says]}"]
        for check in self.checks:
            page += ["", check.name, f"  found: {check.found}", f"  means: {check.means}"]
        return "\n".join(page)


def audit(
    activations: Any,
    gradients: Any,
    sequences: Any,
    rank: int = 16,
    dimension: int | None = None,
    others: Mapping[str, tuple[Any, Any, Any]] | None = None,
    proxies: Mapping[str, Subspace] | None = None,
    seed: int = 0,
    tokens: Any = None,
    targets: Any = None,
    bins: FrequencyBins | None = None,
    proxy: str | Fit = DEFAULT,
) -> Audit:
    """Check in several ways whether gradients, and the proxy, are tangent to the activations.

    Everything is fitted to the first half of the sequences and tested on the gradients of the second half. A check that
    the rows do not allow is not done, and the page says why.

    Args:
        activations: Rows `(n, d)` at one site.
        gradients: Gradients of the loss with respect to those activations, `(n, d)`.
        sequences: The id of the sequence each row came from, `(n,)`.
        rank: Rank of the proxy.
        dimension: Dimension of the tangent planes; by default the intrinsic dimension of patches of the activations.
        others: Activations, gradients and sequences of the same site under other conditions, by name, to compare with:
            another step, an untrained network, shuffled labels.
        proxies: Subspaces fitted to this site under other conditions, such as at earlier steps, by name.
        seed: Seed of everything that is drawn.
        tokens: Input token ids `(n,)`; if given, the tangent test of the audit is also binned by input frequency.
        targets: Target token ids `(n,)`; if given, it is also binned by target frequency.
        bins: Frequency bins; by default they are made from the counts of `tokens` and `targets`.
        proxy: The proxy: a name in `tangentlens.proxies.PROXIES`, or a function `(rows, rank, seed) -> Subspace`.

    Returns:
        The checks with all their numbers, the tangent test of the same rows, and the verdict `says`.

    >>> import torch
    >>> from tangentlens import manifolds
    >>> ball = manifolds.sphere(800, dimension=2, dim=12).rows
    >>> outward = ball - ball.mean(dim=0)
    >>> audit(ball, outward, torch.arange(800) // 20, rank=4).says
    'normal'
    """
    fit, test = TokenRows.of(activations, gradients, sequences, tokens, targets).halves()
    dim = fit.activations.shape[1]
    if not 1 <= rank <= dim // 2:
        raise InputError(f"rank must be between 1 and {dim // 2}, half the width, but is {rank}; choose another")
    if dimension is not None and not 1 <= dimension < dim:
        raise InputError(
            f"dimension must be between 1 and {dim - 1}, below the width, but is {dimension}; choose another"
        )
    on = AuditData(fit, test, rank, dimension, seed, bins, proxy)
    # Compute these outside of any check: if they fail, no check is possible, and that is an error of the input.
    test.energy_shares({"proxy": on.proxy})
    checks = [_attempted(name, partial(check, on)) for name, check in CHECKS.items()]
    for name, rows in (others or {}).items():
        theirs = TokenRows.of(*rows)
        checks.append(_attempted(f"against {name}", partial(against, on, name, theirs)))
        checks.append(_attempted(f"active concepts of {name}", partial(active_concepts_of, on, name, theirs)))
    if proxies:
        checks.append(_attempted("fitted elsewhere", partial(fitted_elsewhere, on, proxies)))
    return Audit(tuple(checks), _tangent_test(on), on.proxy.rank, dim, len(fit.sequences) + len(test.sequences))


def _attempted(name: str, check: Callable[[], Check]) -> Check:
    """Return the result of a check or, if the rows do not allow it, one that says why."""
    try:
        return check()
    except InputError as error:
        return Check(name, f"not done: {error}", "no conclusion")


def _tangent_test(on: AuditData) -> TangentTest | None:
    """Return the tangent test, or None if the rows do not allow it."""
    try:
        return on.tangent_test
    except InputError:
        return None
