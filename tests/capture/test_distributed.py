"""Collective operations of two ranks against those of one process. `test_distributed.py RANK FOLDER` is a rank."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.device import CPU, Devices
from tangentlens.capture.distributed import gathered, gathered_rows, is_first, mean_of_all_ranks, summed, world_size
from tangentlens.capture.updates import UpdateCapture, find_matrices
from tangentlens.geometry.moments import Moments

HERE = Devices(CPU, CPU)
SEQUENCES = ([0, 0], [0, 1, 1])


def rows_of(rank):
    make = torch.Generator().manual_seed(rank)
    activations, gradients = (torch.randn(len(SEQUENCES[rank]), 4, generator=make) for _ in range(2))
    return TokenRows.of(activations, gradients, torch.tensor(SEQUENCES[rank]))


def moments_of(rows):
    moments = Moments(4)
    moments.update(rows.activations)
    return moments


def told_of(moments):
    return {"count": moments.count, "mean": moments.mean, "covariance": moments.covariance()}


def gradient_of(passed):
    """The gradient of a matrix of ones for the loss `passed` times the sum of its entries; None for no loss."""
    layer = torch.nn.Linear(2, 2)
    (matrix,) = find_matrices(torch.nn.ModuleDict({"layer": layer}), "layer")
    with UpdateCapture([matrix]) as capture:
        if passed is not None:
            (passed * layer.weight.sum()).backward()
        return capture.gradient(matrix)


def told_by(rank):
    """What the operations return on a rank, by the name of what it passes."""
    own = rows_of(rank)
    late = None if rank == 0 else own
    return {
        "world": world_size(),
        "first": is_first(),
        "rows": vars(gathered_rows(own, HERE)),
        "rows of the second": vars(gathered_rows(late, HERE)),
        "rows of none": gathered_rows(None, HERE),
        "matrix": gathered(own.activations, HERE),
        "matrix of the second": gathered(None if late is None else late.activations, HERE),
        "matrix of none": gathered(None, HERE),
        "moments": told_of(summed(moments_of(own), HERE)),
        "moments of the second": told_of(summed(None if late is None else moments_of(late), HERE)),
        "moments of none": summed(None, HERE),
        "mean": mean_of_all_ranks(float(rank + 1), CPU),
        "mean of the second": mean_of_all_ranks(None if rank == 0 else 2.0, CPU),
        "mean of none": mean_of_all_ranks(None, CPU),
        "gradient": gradient_of(rank + 1.0),
        "gradient of the second": gradient_of(None if rank == 0 else 2.0),
        "gradient of none": gradient_of(None),
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), str(folder)]) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_every_rank_knows_the_others_and_one_of_them_is_first(told):
    assert [one["world"] for one in told] == [2, 2]
    assert [one["first"] for one in told] == [True, False]
    assert world_size() == 1
    assert is_first()


def test_rows_come_to_the_first_rank_with_the_gradients_of_the_mean_loss_and_sequences_of_their_own(told):
    parts = [rows_of(rank) for rank in range(2)]
    found = told[0]["rows"]
    torch.testing.assert_close(found["activations"], torch.cat([one.activations for one in parts]))
    torch.testing.assert_close(found["gradients"], torch.cat([one.gradients for one in parts]) / 2)
    assert found["sequences"].tolist() == [0, 0, 1, 2, 2]
    torch.testing.assert_close(told[1]["rows"]["activations"], parts[1].activations)
    torch.testing.assert_close(told[0]["matrix"], found["activations"])


def test_ranks_without_rows_take_part(told):
    own = rows_of(1)
    found = told[0]["rows of the second"]
    torch.testing.assert_close(found["activations"], own.activations)
    assert found["sequences"].tolist() == [0, 1, 1]
    torch.testing.assert_close(told[0]["matrix of the second"], own.activations)
    for one in told:
        assert one["rows of none"] is None
        assert one["matrix of none"] is None
        assert one["moments of none"] is None
        assert one["mean of none"] is None
        assert one["gradient of none"] is None


def test_moments_and_means_are_those_of_all_ranks_on_every_rank(told):
    both = torch.cat([rows_of(rank).activations for rank in range(2)]).double()
    for one in told:
        assert one["moments"]["count"] == 5
        torch.testing.assert_close(one["moments"]["mean"], both.mean(dim=0), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(one["moments"]["covariance"], both.T.cov(correction=0), atol=1e-6, rtol=1e-6)
        assert one["moments of the second"]["count"] == 3
        assert (one["mean"], one["mean of the second"]) == (1.5, 2.0)
        # Where a rank has no gradient, its loss does not depend on the matrix.
        assert one["gradient"].unique().tolist() == [1.5]
        assert one["gradient of the second"].unique().tolist() == [1.0]


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(told_by(rank), folder / f"{rank}.pt")
    dist.destroy_process_group()
