import pytest

from tangentlens.statistics.emergence import Emergence, emergence


@pytest.mark.parametrize(
    ("lows", "expected"),
    [
        ([1, 1, 1], Emergence(0, 3, 3)),
        ([-1, 1, 1], Emergence(10, 2, 2)),
        ([1, -1, 1], Emergence(20, 2, 3)),
        ([1, 1, -1], Emergence(None, 2, 3)),
        ([-1, 0, -1], Emergence(None, 0, 0)),
    ],
)
def test_emergence_is_the_start_of_the_last_unbroken_stretch(lows, expected):
    assert emergence([0, 10, 20], lows) == expected
