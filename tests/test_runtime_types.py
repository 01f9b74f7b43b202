import pytest
import torch

import runtime_types
from tangentlens.geometry.massive import massive_by_length


def test_the_first_calls_of_a_test_are_checked():
    with pytest.raises(Exception, match="massive_by_length"):
        massive_by_length(torch.ones(2, 3), 10.0)
    for _ in range(runtime_types.CALLS):
        massive_by_length(torch.ones(3), 10.0)
    massive_by_length(torch.ones(2, 3), 10.0)


def test_so_are_those_of_the_next():
    with pytest.raises(Exception, match="massive_by_length"):
        massive_by_length(torch.ones(2, 3), 10.0)
