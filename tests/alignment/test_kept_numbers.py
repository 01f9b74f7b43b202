import math
import re

import polars as pl
import pytest
import torch

import tangentlens as tl
from kept import check_numbers, check_words
from rows import site_rows
from tangentlens.alignment.tangent_test import CONTROLS as EVERY

# Where the first ends, and the signs of what the second draws, depend on the processor.
UNSTEADY = ("ica", "covariance")
CONTROLS = [name for name in EVERY if name not in UNSTEADY]
ACTIVATIONS, GRADIENTS, SEQUENCES, TOKENS, TARGETS = site_rows()


def test_chances():
    rows = [
        {
            "order": str(order),
            "within": str(within),
            "rank": rank,
            "mean": chance.mean,
            "std": chance.std,
            "tail": chance.p_value(chance.mean * 1.1),
            **chance.interval().columns(),
        }
        for order in (1, 2, math.inf)
        for rank in (1, 4, 9)
        for within in (None, tl.Subspace.span(torch.eye(16)[:12]))
        for chance in [tl.chance(GRADIENTS, rank, order=order, within=within)]
    ]
    check_numbers("chances", pl.DataFrame(rows))


@pytest.mark.parametrize("massive", [0, 3])
def test_tangent_tests(massive):
    test = tl.tangent_test(*site_rows(massive=massive), rank=4, controls=CONTROLS)
    check_numbers(f"tangent-test-{massive}-massive", test.table)
    check_words(f"tangent-test-{massive}-massive", repr(test))


def test_audits():
    others = {"another seed": site_rows(seed=1)[:3]}
    proxies = {"of another seed": tl.SemiNMF(4).fit(others["another seed"][0]).subspace()}
    found = tl.audit(
        ACTIVATIONS, GRADIENTS, SEQUENCES, rank=4, others=others, proxies=proxies, tokens=TOKENS, targets=TARGETS
    )
    steady = ~pl.col("quantity").str.ends_with("ica") & ~pl.col("quantity").str.ends_with("covariance")
    check_numbers("audit", found.table.filter(steady))
    words = re.sub(rf"[^;]*(?: times |of that of: )?({'|'.join(UNSTEADY)})[^;]*;?", "", repr(found))
    check_words("audit", words)


@pytest.mark.parametrize("sparsity", [0.0, 0.05])
def test_active_concepts(sparsity):
    make = torch.Generator().manual_seed(0)
    codes = torch.rand(1200, 8, generator=make) * (torch.rand(1200, 8, generator=make) < 0.2)
    concepts = torch.randn(8, 24, generator=make)
    gradients = (codes * torch.randn(1200, 8, generator=make)) @ concepts + 0.5 * torch.randn(1200, 24, generator=make)
    sequences = torch.arange(1200) // 20
    found = tl.active_concepts(codes @ concepts, gradients, sequences, n_concepts=8, n_active=2, sparsity=sparsity)
    rest = {"rank": found.rank, "codes_per_token": found.codes_per_token, "n_sequences": found.n_sequences}
    check_numbers(f"active-concepts-{sparsity}", found.table.with_columns(**{k: pl.lit(v) for k, v in rest.items()}))
    check_words(f"active-concepts-{sparsity}", repr(found))


def test_movements():
    later = ACTIVATIONS * torch.linspace(2.0, 0.8, 16, dtype=torch.float64) + 0.1 * GRADIENTS
    found = tl.movement(ACTIVATIONS, later, SEQUENCES, TOKENS, rank=4, controls=CONTROLS)
    check_numbers("movement", found.table)
    check_words("movement", repr(found))
