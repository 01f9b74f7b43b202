import pytest
import torch

import tangentlens as tl
from tangentlens import InputError
from tangentlens.alignment.frequency import FrequencyBins


def test_bins_hold_about_equal_mass_and_ascend_with_frequency():
    counts = (100_000 / torch.arange(1, 2001)).long()
    bins = FrequencyBins.of(counts, n_bins=4)
    mass = torch.stack([counts[bins.bin_of == number].sum() for number in range(4)]).double()
    assert (mass / mass.sum()).tolist() == pytest.approx([0.25] * 4, abs=0.06)
    assert (bins.bin_of.diff() <= 0).all()


def test_types_never_counted_and_ids_outside_belong_to_no_bin():
    bins = FrequencyBins.of(torch.tensor([0, 5, 5]), n_bins=2)
    assert bins.assign(torch.tensor([-100, 0, 1, 2, 3])).tolist() == [-1, -1, 0, 1, -1]


def test_ids_beyond_the_counts_are_told():
    rows, tokens = torch.randn(400, 12), torch.arange(400) % 10
    with pytest.warns(UserWarning, match="must be below the length of the token counts, 8, but some are not"):
        test = tl.tangent_test(
            rows, rows, torch.arange(400) // 20, tokens=tokens, rank=3, bins=FrequencyBins.of(torch.ones(8))
        )
    assert sum(test.n_tokens[f"input.{i}"] for i in range(4)) < test.n_tokens["all"]


def test_counts_of_nothing_are_refused():
    with pytest.raises(InputError, match="must not all be zero"):
        FrequencyBins.of(torch.zeros(5, dtype=torch.long))


def test_a_type_is_in_the_bin_that_holds_the_middle_of_its_mass():
    # From the rarest on, the types end at 0.1, 0.3, 0.6 and 1 of the mass; their middles are 0.05, 0.2, 0.45 and 0.8.
    assert FrequencyBins.of(torch.tensor([4, 1, 3, 2]), n_bins=2).bin_of.tolist() == [1, 0, 0, 0]
