import torch
from scipy.cluster.vq import kmeans2

from tangentlens.geometry.clusters import far_apart, k_means


def test_clusters_far_apart_are_found(generator):
    truth = torch.arange(6).repeat_interleave(50)
    x = torch.randn(300, 4, generator=generator) + 100 * torch.randn(6, 4, generator=generator)[truth]
    label = k_means(x, 6)
    assert len({(a, b) for a, b in zip(truth.tolist(), label.tolist(), strict=True)}) == 6


def test_no_worse_than_scipys(generator):
    x = torch.randn(500, 3, generator=generator, dtype=torch.float64)

    def spread(label):
        return sum(float((x[label == c] - x[label == c].mean(dim=0)).square().sum()) for c in range(5))

    theirs = min(spread(torch.from_numpy(kmeans2(x.numpy(), 5, seed=s, minit="++")[1])) for s in range(3))
    assert spread(k_means(x, 5)) < 1.1 * theirs


def test_the_end_is_a_fixed_point(generator):
    x = torch.randn(200, 2, generator=generator)
    label = k_means(x, 4)
    centers = torch.stack([x[label == c].mean(dim=0) for c in range(4)])
    assert torch.equal(torch.cdist(x, centers).argmin(dim=1), label)


def test_starting_rows_are_rows_and_differ(generator):
    x = torch.randn(50, 3, generator=generator)
    start = far_apart(x, 5, seed=0)
    assert ((start[:, None] == x).all(dim=2).sum(dim=1) == 1).all()
    assert len(start.unique(dim=0)) == 5
