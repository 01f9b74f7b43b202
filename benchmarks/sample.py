"""How far a random sample of a step's tokens (`Lens(max_tokens=...)`) is off from all of them.

The demo's decoder after 200 steps on the built-in text: root mean square of the relative error over sites and draws,
beside half the width of the 95% interval that all tokens of the step have.
"""

import torch

from tangentlens import Subspace, anisotropy, intrinsic_dimension, share
from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tangentlens.corpora.tokens import MASK
from tangentlens.geometry.spectrum.anisotropy import anisotropy_replicates
from tangentlens.lens.measures import Fitting, measure_site
from tangentlens.statistics.jackknife import share_jackknife
from tangentlens.studies.train_plan import Network, TrainPlan
from tangentlens.training.objectives import batch_for, draw

STEPS, BATCH, DRAWS = 200, 128, 20
DEMO = TrainPlan()


def rows_of_a_step() -> list[TokenRows]:
    """Activations and gradients at all residual sites, in the last step of a short training."""
    tokens = DEMO.tokens()
    model = DEMO.untrained(Network("decoder", "decoder", 0), tokens.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=DEMO.learning_rate)
    sites = find_sites(model, "resid")
    for step in range(STEPS + 1):
        sequences, generator = draw(tokens.sequences, BATCH if step == STEPS else DEMO.batch, 0, step)
        with Capture(model, sites) as capture:
            model(**batch_for("decoder", sequences, MASK, 0.0, generator)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [capture.rows(site) for site in sites]


def values(activations: torch.Tensor, gradients: torch.Tensor, proxy: Subspace) -> torch.Tensor:
    """What a lens tells of a site: anisotropy, energy share, anisotropy share, dimension, gradient norm."""
    norm = float(gradients.square().sum(dim=1).mean().sqrt())
    shares = [share(gradients, proxy, order) for order in (1, 2)]
    return torch.tensor([anisotropy(activations), *shares, intrinsic_dimension(activations).value, norm])


def main() -> None:
    steps = rows_of_a_step()
    n = len(steps[0].tokens)
    print(f"{n} tokens, {len(steps)} sites, {DRAWS} draws of each size: relative error in %")
    print("tokens   anisotropy  energy share  anisotropy share  intrinsic dimension  gradient norm")
    errors: dict[int, list[torch.Tensor]] = {n // part: [] for part in (2, 4, 8, 16)}
    widths = []
    for rows in steps:
        site = measure_site(rows, None, Fitting("semi_nmf", DEMO.rank, bins=None, seed=0))
        proxy = site.test.subspaces["semi_nmf"]
        whole = values(rows.activations, rows.gradients, proxy)
        intervals = [share_jackknife(anisotropy_replicates(rows.activations, rows.sequences))]
        intervals += [site.test.share(order=order) for order in (1.0, 2.0)]
        widths.append(torch.tensor([(one.ci_high - one.ci_low) / 2 / one.value for one in intervals]))
        for size, off in errors.items():
            for seed in range(DRAWS):
                some = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:size]
                off.append(values(rows.activations[some], rows.gradients[some], proxy) / whole - 1)
    for size, off in errors.items():
        told = torch.stack(off).square().mean(dim=0).sqrt() * 100
        print(f"{size:<8} " + "  ".join(f"{value:.1f}" for value in told.tolist()))
    print("interval " + "  ".join(f"{100 * value:.1f}" for value in torch.stack(widths).mean(dim=0).tolist()))


if __name__ == "__main__":
    main()
