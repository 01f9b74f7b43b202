"""Active concepts as a check of the audit: of its own rows, and of the same site under other conditions."""

from __future__ import annotations

import torch

from tangentlens.alignment.active_concepts import own_and_swapped, usages, usual_active_concepts, usual_numbers
from tangentlens.alignment.active_result import COMPONENTS, ActiveConcepts
from tangentlens.alignment.audit_data import AuditData, Check
from tangentlens.alignment.rows import TokenRows
from tangentlens.proxies.principal import Principal
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.words import WORDS, relation


def own_and_swapped_concepts(on: AuditData) -> Check:
    """Compare the share of a gradient in the concepts of its own token with that in those of other tokens.

    As a null, the comparison is repeated with the gradients randomly permuted over tokens.
    """
    n_concepts, n_active = usual_numbers(on.principal)
    used = usages(on.principal, on.test.activations, n_concepts, seed=on.seed)
    permutation = torch.randperm(len(on.test.sequences), generator=on.generator()).to(on.test.sequences.device)
    real, null = (
        own_and_swapped(used, gradients, on.test.sequences, n_active, on.seed)
        for gradients in (on.test.gradients, on.test.gradients[permutation])
    )
    permuted = _log_ratios(null)
    return Check(
        "active concepts",
        f"{_found(real)}. With gradients randomly permuted over tokens, the ratio of concepts is "
        f"{permuted['log_ratio'].exp()} for energy and {permuted['token log_ratio'].exp()} token by token",
        f"token by token, the share of a gradient in the concepts of its own token is "
        f"{WORDS[relation(real.token_log_ratio())]} that in those of other tokens, and this ratio is "
        f"{WORDS[relation(real.token_advantage())]} that of components",
        {"share": real.share(), "token share": real.token_share()}
        | _log_ratios(real)
        | {f"{name} of permuted gradients": ratio for name, ratio in permuted.items()},
    )


def active_concepts_of(on: AuditData, name: str, rows: TokenRows) -> Check:
    """Make the same comparison for the same site under other conditions, with concepts fitted there.

    Args:
        on: The data of the audit.
        name: What the other conditions are called.
        rows: The rows of the site under these conditions.
    """
    fit, test = rows.halves()
    theirs = usual_active_concepts(Principal.of(fit.activations), test, 0.0, on.seed)
    return Check(
        f"active concepts of {name}",
        _found(theirs),
        f"token by token, the share of a gradient of {name} in the concepts of its own token is "
        f"{WORDS[relation(theirs.token_log_ratio())]} that in those of other tokens",
        _log_ratios(theirs),
    )


def _log_ratios(result: ActiveConcepts) -> dict[str, Interval]:
    return {
        "log_ratio": result.log_ratio(),
        "token log_ratio": result.token_log_ratio(),
        "log_ratio of components": result.log_ratio(COMPONENTS),
        "token log_ratio of components": result.token_log_ratio(COMPONENTS),
        "log_ratio to components": result.advantage(),
        "token log_ratio to components": result.token_advantage(),
    }


def _found(result: ActiveConcepts) -> str:
    """Return both ratios own / swapped, by energy and token by token, in words."""
    ratios = {name: ratio.exp() for name, ratio in _log_ratios(result).items()}
    return (
        f"the share of a gradient in the {result.n_active} most active of {result.n_concepts} concepts of its own "
        f"token (chance {result.chance:.3g}) is {result.share()} for energy and {result.token_share()} token by token: "
        f"{ratios['log_ratio']} and {ratios['token log_ratio']} times that in the concepts of other tokens. For "
        f"principal components this ratio is {ratios['log_ratio of components']} and "
        f"{ratios['token log_ratio of components']}"
    )
