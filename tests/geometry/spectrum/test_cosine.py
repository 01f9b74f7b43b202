import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError, mean_cosine, rogue_dimensions


def naive(x):
    total, pairs = 0.0, 0
    for i in range(len(x)):
        for j in range(len(x)):
            if i != j:
                total += float(torch.nn.functional.cosine_similarity(x[i], x[j], dim=0))
                pairs += 1
    return total / pairs


@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 99))
def test_equals_the_mean_over_all_pairs(n, d, seed):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3
    assert mean_cosine(x) == pytest.approx(naive(x), abs=1e-9)


def test_lengths_do_not_matter_and_a_shared_direction_does(generator):
    x = torch.randn(500, 20, generator=generator)
    assert abs(mean_cosine(x)) < 0.01
    assert mean_cosine(x * torch.rand(500, 1, generator=generator)) == pytest.approx(mean_cosine(x), abs=1e-6)
    assert mean_cosine(x + 30) > 0.99


def test_a_rogue_dimension_is_named(generator):
    x = torch.randn(500, 20, generator=generator)
    x[:, 7] += 20
    added = rogue_dimensions(x)
    assert int(added.argmax()) == 7
    assert float(added[7] / added.sum()) > 0.99


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_formats_are_taken(dtype, generator):
    x = (torch.randn(300, 10, generator=generator) + 1).to(dtype)
    assert mean_cosine(x) == pytest.approx(mean_cosine(x.double()), abs=1e-5)


def test_bad_input_says_what_to_do():
    with pytest.raises(InputError, match="1 of 3 are; drop them"):
        mean_cosine([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    with pytest.raises(InputError, match="at least 2 rows"):
        mean_cosine([[1.0, 0.0]])
