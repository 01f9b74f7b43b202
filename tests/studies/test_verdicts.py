import pytest

from tangentlens.studies.verdicts import NOISES, RIGHT, SURFACES, Surface, verdict_rates


@pytest.mark.parametrize(
    ("n", "surfaces", "noises"),
    [
        (1, (Surface("sphere", 2, 64), Surface("torus", 5, 64), Surface("cube", 3, 64)), (0.02,)),
        pytest.param(20, SURFACES, NOISES, marks=pytest.mark.calibration),
    ],
)
def test_verdicts_are_right_or_withheld(n, surfaces, noises):
    """A small run of the study; a single wrong one in a cell may be chance."""
    rates = verdict_rates(n, surfaces, noises)
    assert set(rates["gradients"]) == set(RIGHT)
    assert rates["wrong"].max() < 0.06, rates.filter(rates["wrong"] > 0)
    judged = rates.filter(gradients="tangent", dim=64)["right"]
    assert judged.mean() > 0.5, "saying nothing is never wrong"
