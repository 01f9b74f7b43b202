import pytest
from scipy import stats

from tangentlens.studies.calibration import Setting, calibrate


@pytest.mark.parametrize("n", [30, pytest.param(120, marks=pytest.mark.calibration)])
def test_a_test_at_five_percent_rejects_so_often_and_intervals_cover_although_tokens_depend_on_each_other(n):
    """A small run of the study; what so few replicates allow to be told is checked at one in a thousand."""
    few, most = stats.binom.ppf([0.001, 0.999], n, 0.05) / n
    rates = {row["what"]: row["rate"] for row in calibrate(n, (Setting(dependence=0.5),)).iter_rows(named=True)}
    for what, rate in rates.items():
        if "not used" in what or "leading direction: covers the share" in what:
            continue
        assert few <= (rate if "rejects" in what else 1 - rate) <= most, rates
