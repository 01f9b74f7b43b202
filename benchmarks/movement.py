"""Movement and growth on held-out text while the demo's decoder trains: `python benchmarks/movement.py [RUN]`."""

from __future__ import annotations

import sys

import polars as pl

from tangentlens.report.reading import interval_text
from tangentlens.studies.train import run_train
from tangentlens.studies.train_plan import TrainPlan

COLUMNS = {
    "distance": ("distance", "", None),
    "share": ("share", "semi_nmf", 1.0),
    "pca": ("share", "pca", 1.0),
    "covariance": ("share", "covariance", 1.0),
    "variance share": ("variance_share", "semi_nmf", None),
    "growth inside": ("growth_inside", "semi_nmf", None),
    "growth outside": ("growth_outside", "semi_nmf", None),
    "inside, pca": ("growth_inside", "pca", None),
    "outside, pca": ("growth_outside", "pca", None),
}


def measured(path: str) -> pl.DataFrame:
    """The movement of the probe, on average over sites, of a training that is made unless it exists."""
    run = run_train(TrainPlan(models=("decoder",), held_out=0.1, probe=True), path)
    return run.records.filter(quantity="movement", site="mean", freq_bin="all", rows="all")


def main() -> None:
    records = measured(sys.argv[1] if len(sys.argv) > 1 else "runs/movement")
    print(f"| steps | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for step in records["step"].unique().sort():
        of_step = records.filter(step=step)
        since = of_step.filter(metric="distance")["detail"].item().split()[-1]
        cells = []
        for metric, variant, order in COLUMNS.values():
            found = of_step.filter(pl.col("order").eq_missing(order), metric=metric, variant=variant)
            cells.append(interval_text(found.row(0, named=True)))
        print(f"| {since} to {step} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
