import pytest
import torch

from tangentlens import InputError, Subspace
from tangentlens.proxies.pca import pca
from tangentlens.proxies.principal import Principal


def test_spans_the_leading_right_singular_vectors(generator):
    x = torch.randn(200, 9, generator=generator, dtype=torch.float64) * torch.arange(1, 10) + 5
    leading = torch.linalg.svd(x - x.mean(dim=0), full_matrices=False).Vh[:3]
    for source in (x, Principal.of(x)):
        assert pca(source, 3).overlap(Subspace.span(leading)) == pytest.approx(1)


def test_a_rank_beyond_the_features_is_refused():
    with pytest.raises(InputError, match="between 1 and 3, the number of features, but is 4"):
        pca(torch.eye(3), 4)
