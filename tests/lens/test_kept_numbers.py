import polars as pl

from kept import check_numbers
from loops import PROBE, plain
from tangentlens import open_run
from tiny import tiny_model

# Where the first ends, and the signs of what the second draws, depend on the processor.
UNSTEADY = ("ica", "covariance")


def test_records_of_a_training(tmp_path):
    """In fp64, so that a training on another processor is the same."""
    settings = {"every": [0, 3], "moments_every": 2, "predict": True, "probe": PROBE, "measures": ["manifold_entropy"]}
    settings |= {"sites": ["resid.1"], "updates": ["model.layers.1.mlp.down_proj"]}
    plain(tmp_path / "run", tiny_model().double(), **settings)
    records = open_run(tmp_path / "run").records.filter(~pl.col("variant").is_in(UNSTEADY))
    empty = [name for name in records.columns if records[name].null_count() == len(records)]
    check_numbers("lens", records.drop("run", *empty, strict=False))
