import polars as pl
import pytest
import torch

import tangentlens as tl
from kept import check_numbers
from rows import site_rows
from tangentlens.proxies import PROXIES

ROWS, GRADIENTS, *_ = site_rows()
# Where the first ends, and the signs of what the second draws, depend on the processor.
UNSTEADY = {"ica", "covariance"}


@pytest.mark.parametrize("massive", [0, 3])
def test_subspaces(massive):
    """What every proxy takes of activations and gradients, by rank and seed."""
    activations, gradients, *_ = site_rows(massive=massive)
    rows = [
        {
            "proxy": name,
            "rank": rank,
            "seed": seed,
            **{f"of activations, order {order}": tl.share(activations, subspace, order) for order in (1, 2)},
            **{f"of gradients, order {order}": tl.share(gradients, subspace, order) for order in (1, 2)},
        }
        for name, proxy in PROXIES.items()
        if name not in UNSTEADY
        for rank in (1, 4, 7)
        for seed in (0, 1)
        for subspace in [proxy.fit(activations, rank, seed)]
    ]
    check_numbers(f"proxies-{massive}-massive", pl.DataFrame(rows))


@pytest.mark.parametrize("center", [True, False])
def test_concepts(center):
    rows = []
    for sparsity in (0.0, 0.02, 0.1):
        fit = tl.SemiNMF(5, center=center, sparsity=sparsity).fit(ROWS)
        again = tl.SemiNMF(5, center=center, sparsity=sparsity).fit(ROWS + 0.1 * GRADIENTS, init=fit)
        used = torch.stack([fit.codes_.mean(dim=0), fit.contributions(ROWS).mean(dim=0), again.codes_.mean(dim=0)])
        rows.append({"sparsity": sparsity, "concept": -1, "codes": fit.error_, "contributions": again.error_})
        rows += [
            {"sparsity": sparsity, "concept": i, "codes": codes, "contributions": parts, "continued": later}
            for i, (codes, parts, later) in enumerate(used.T.tolist())
        ]
    check_numbers(f"concepts-{'centred' if center else 'raw'}", pl.DataFrame(rows, infer_schema_length=None))
