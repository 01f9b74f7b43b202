"""Is the proxy really tangent? A page of checks that could say no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from tangentlens.alignment.audit_data import Audited, Check, Rows
from tangentlens.alignment.checks import CHECKS, VERDICTS, against, fitted_elsewhere
from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace


@dataclass(frozen=True, eq=False)
class Audit:
    """The checks, and what they say of the gradients; `table` has every number with its interval, `repr` is the page.

    `says` is 'tangent', 'normal', 'indifferent', 'variance' if tangent planes of other places do as well, or 'unknown'
    if that cannot be told.
    """

    checks: tuple[Check, ...]
    rank: int
    dim: int
    n_tokens: int

    @property
    def says(self) -> str:
        """The verdict, in a word."""
        return next((check.says for check in self.checks if check.says is not None), "unknown")

    @property
    def table(self) -> pl.DataFrame:
        """One row per check and number."""
        return pl.DataFrame(
            [
                {"check": check.name, "quantity": name, **found.columns()}
                for check in self.checks
                for name, found in check.estimates.items()
            ]
        )

    def __repr__(self) -> str:
        about = f"rank {self.rank} of {self.dim}, {self.n_tokens} tokens"
        page = [f"Audit ({about}): the gradients are {VERDICTS[self.says]}"]
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
) -> Audit:
    """Check in many ways whether gradients, and the proxy, are tangent to the activations.

    Half of the sequences fit everything, the gradients of the other half test it. A check that the rows do not allow
    says so in its place.

    Args:
        activations: Rows `(n, d)` at one site.
        gradients: Gradients of the loss by those activations, `(n, d)`.
        sequences: The id of the sequence each row came from, `(n,)`.
        rank: Rank of the proxy.
        dimension: Of the tangent planes; the intrinsic dimension of the activations if not given.
        others: The same three of the same site elsewhere, by name: another step, an untrained network, shuffled labels.
        proxies: Subspaces fitted to this site elsewhere, such as at earlier steps.
        seed: Of everything that is drawn.

    >>> import torch
    >>> from tangentlens import manifolds
    >>> ball = manifolds.sphere(2000, dimension=2, dim=12).rows
    >>> outward = ball - ball.mean(dim=0)
    >>> audit(ball, outward, torch.arange(2000) // 20, rank=4).says
    'normal'
    """
    fit, test = Rows.of(activations, gradients, sequences).halves()
    dim = fit.activations.shape[1]
    if not 1 <= rank <= dim // 2:
        raise InputError(f"rank must be between 1 and {dim // 2}, half the width, but is {rank}; choose another")
    if dimension is not None and not 1 <= dimension < dim:
        raise InputError(f"dimension must be between 1 and {dim - 1}, below the width, but is {dimension}")
    on = Audited(fit, test, rank, dimension, seed)
    # Rows on which nothing can be tested are an error; those that one check does not allow are told in its place.
    _ = on.proxy, on.totals
    checks = [_attempted(name, partial(check, on)) for name, check in CHECKS.items()]
    for name, rows in (others or {}).items():
        checks.append(_attempted(f"against {name}", partial(against, on, name, Rows.of(*rows))))
    if proxies:
        checks.append(_attempted("fitted elsewhere", partial(fitted_elsewhere, on, proxies)))
    return Audit(tuple(checks), on.proxy.rank, dim, len(fit.sequences) + len(test.sequences))


def _attempted(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except InputError as error:
        return Check(name, f"not done: {error}", "nothing can be said")
