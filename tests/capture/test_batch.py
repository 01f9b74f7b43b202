import pytest
import torch

from tangentlens import InputError
from tangentlens.capture.batch import check_aligned


def test_targets_are_one_for_each_token():
    tokens = torch.zeros(2, 3, dtype=torch.long)
    targets = torch.arange(6).view(2, 3)
    assert check_aligned(targets, tokens).equal(targets)
    with pytest.raises(InputError, match=r"each of the \(2, 3\) positions, but have the shape \(2, 2\)"):
        check_aligned(targets[:, :2], tokens)
