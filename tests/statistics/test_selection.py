import pytest
import torch

from tangentlens.statistics.interval import student
from tangentlens.statistics.selection import student_of_selected


@pytest.mark.parametrize("degrees", [1, 4])
@pytest.mark.parametrize("uneven", [False, True])
def test_the_interval_of_the_largest_mean_covers(degrees, uneven):
    """By simulation: exact for independent candidates that are alike, at least so often for others."""
    make = torch.Generator().manual_seed(degrees)
    values = torch.randn(4000, degrees + 1, 21, generator=make, dtype=torch.float64)
    if uneven:
        values = values.cumsum(dim=2) * torch.linspace(0.1, 10, 21, dtype=torch.float64)
    mean, reach = values.mean(dim=1), values.std(dim=1) / (degrees + 1) ** 0.5
    at = mean.abs().argmax(dim=1, keepdim=True)
    t = (mean / reach).gather(1, at).abs()
    missed = float((t > student_of_selected(0.95, degrees, 21)).double().mean())
    assert missed < 0.061
    assert uneven or missed > 0.039
    assert (t > student(0.95, degrees)).double().mean() > 0.061, "the selection has to matter"


def test_one_candidate_is_students():
    assert student_of_selected(0.95, 3, 1) == student(0.95, 3)
