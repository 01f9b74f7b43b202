"""Own / swapped of active concepts at every site of a model, over numbers of concepts and penalties on the codes.

`active_concepts.py MODEL [TEXT [STEPS]]`: STEPS trains a head that a model lacks. Rows whose norm is above 10 times the
median are left out.
"""

import sys
from collections.abc import Iterator

import torch

from tangentlens import InputError
from tangentlens.alignment.active_concepts import own_and_swapped, usages
from tangentlens.alignment.active_result import ActiveConcepts
from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.sites import find_sites
from tangentlens.proxies.principal import Principal
from tangentlens.runs.progress import unwatched
from tangentlens.studies.subjects import Backward, model_subject, subject_rows
from tangentlens.studies.tangent import TestPlan

CONCEPTS, ACTIVE, SPARSITIES = (16, 32, 64), (2, 4, 8), (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# The settings in which all nulls are measured, and each other one is varied.
K, M = 32, 4
SEEDS = range(5)
# What is measured: a number of concepts, the numbers of active ones, a penalty.
PLAIN = [(K, ACTIVE, 0.0)]
GRID = [
    *((k, ACTIVE if k == K else (M,), 0.0) for k in CONCEPTS),
    *((K, (M,), sparsity) for sparsity in SPARSITIES[1:]),
]


def main() -> None:
    target, text, steps = (*sys.argv[1:], *("", "0")[len(sys.argv) - 2 :])
    plan = TestPlan(target, text=text or None, fit_head=int(steps))
    subject = model_subject(target, Backward.of(plan), unwatched)
    sites = find_sites(subject.model, plan.sites)
    for name, grid in (("trained", GRID), ("untrained", PLAIN), ("shuffled labels", PLAIN)):
        rows, loss = subject_rows(subject, name, sites, plan.seed)
        print(f"\n{name}: loss {loss:.2f}")
        for site in sites:
            here = rows[site.name].without_massive()
            print(f"{site.name}: {len(here.sequences)} rows of {len(rows[site.name].sequences)}", flush=True)
            if name == "trained":
                permuted = torch.randperm(len(here.sequences), generator=torch.Generator().manual_seed(0))
                null = TokenRows.of(here.activations, here.gradients[permuted], here.sequences)
                show(null, [(K, (M,), 0.0)], "permuted gradients")
            show(here, grid, name)
            if name == "trained":
                over_seeds(here)


def show(rows: TokenRows, grid: list[tuple[int, tuple[int, ...], float]], name: str) -> None:
    for sparsity, found in measured(rows, grid):
        ratios = found.log_ratio(), found.log_ratio("components"), found.advantage()
        by_token = found.token_log_ratio(), found.token_log_ratio("components"), found.token_advantage()
        print(
            f"  {name:<18} k {found.n_concepts:<3} m {found.n_active} sparsity {sparsity:<5} "
            f"codes {found.codes_per_token:4.1f} rank {found.rank:.2f} share {found.share().value:.3f} "
            f"chance {found.chance:.3f} | energy: concepts {ratios[0].exp()} components {ratios[1].exp()} "
            f"advantage {ratios[2].exp()} | token: {by_token[0].exp()} {by_token[1].exp()} {by_token[2].exp()}",
            flush=True,
        )


def over_seeds(rows: TokenRows) -> None:
    """Other concepts fit as well, so that one seed's gain from a penalty says little."""
    fit, test = rows.halves()
    principal = Principal.of(fit.activations)
    for sparsity, m in (*((0.0, m) for m in (2, 3, 4)), *((sparsity, M) for sparsity in SPARSITIES[2:-1])):
        fits = [usages(principal, test.activations, K, sparsity, seed) for seed in SEEDS]
        found = [own_and_swapped(used, test.gradients, test.sequences, m) for used in fits]
        ranks = [one.rank for one in found]
        print(
            f"  {len(SEEDS)} seeds            k {K}  m {m} sparsity {sparsity:<5} rank {sum(ranks) / len(ranks):.2f} | "
            f"mean [lowest, highest] of concepts: energy {spread([one.log_ratio().exp().value for one in found])} "
            f"token {spread([one.token_log_ratio().exp().value for one in found])}",
            flush=True,
        )


def spread(values: list[float]) -> str:
    return f"{sum(values) / len(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def measured(rows: TokenRows, grid: list[tuple[int, tuple[int, ...], float]]) -> Iterator[tuple[float, ActiveConcepts]]:
    fit, test = rows.halves()
    principal = Principal.of(fit.activations)
    for k, actives, sparsity in grid:
        try:
            used = usages(principal, test.activations, k, sparsity)
            for m in actives:
                yield sparsity, own_and_swapped(used, test.gradients, test.sequences, m)
        except InputError as error:
            print(f"  k {k} sparsity {sparsity}: {error}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
