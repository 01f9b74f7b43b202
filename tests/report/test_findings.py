import polars as pl
import pytest

from tangentlens.report.findings import findings, share_table
from tangentlens.runs.records import Record, as_frame


def cell(metric, value, low=None, high=None, **about):
    defaults = {"model": "m", "site": "mean", "quantity": "gradient", "rank": 4}
    return Record(**{**defaults, **about}, metric=metric, value=value, ci_low=low, ci_high=high)


def shares(step, proxy, ratio, low):
    return [
        cell("share", proxy, proxy - 0.05, proxy + 0.05, variant="semi_nmf", order=1.0, step=step),
        cell("share", 0.125, 0.125, 0.125, variant="random", order=1.0, step=step),
        cell("log_ratio", ratio, low, ratio + 0.1, variant="normal", order=1.0, step=step),
        cell("log_ratio", 0.0, -0.1, 0.1, variant="pca", order=1.0, step=step),
    ]


def texts(*records):
    return " ".join(finding.text for finding in findings(as_frame("r", records)))


def test_ratios_are_called_above_below_or_not_told_apart_by_their_intervals():
    said = texts(*shares(8, 0.3, 0.6931, 0.5))
    assert "At step 8 the rank-4 proxy takes 0.300 [0.250, 0.350] of the gradient's energy" in said
    assert "(chance 0.125)" in said
    assert "more than normal (2.00 [1.65, 2.21] times)" in said
    assert "not told apart from pca" in said
    assert "less than normal" in texts(*shares(8, 0.3, -0.7, -0.9))


def test_emergence_is_told_from_three_steps_on():
    steps = [record for step, low in ((0, -0.1), (1, 0.2), (2, 0.3)) for record in shares(step, 0.3, 0.5, low)]
    assert "from step 1 on; since it was first above, it was so at 2 of 2" in texts(*steps)
    assert "stays above" not in texts(*steps[:8])


def test_sites_above_chance_are_corrected_for_their_number():
    records = [
        cell("p_value", p, variant="random", order=1.0, step=step, site=f"resid.{i}")
        for step, values in ((0, (0.04, 0.2, 0.5, 0.9)), (9, (0.001, 0.002, 0.003, 0.9)))
        for i, p in enumerate(values)
    ]
    assert "at 0 of 4 sites at step 0 and at 3 of 4 sites at step 9" in texts(*records)


@pytest.mark.parametrize(
    ("last", "says"),
    [((0.5, 0.4, 0.6), "rises from 0.200 [0.100, 0.300] (step 0) to 0.500"), ((0.25, 0.15, 0.35), "is not told apart")],
)
def test_a_change_is_called_one_only_if_the_intervals_are_apart(last, says):
    about = {"quantity": "activation", "rank": None}
    assert says in texts(cell("anisotropy", 0.2, 0.1, 0.3, **about), cell("anisotropy", *last, step=5, **about))


def test_the_table_sets_the_proxy_beside_its_controls():
    table = share_table(as_frame("r", shares(3, 0.2, 0.1, 0.0) + shares(8, 0.3, 0.7, 0.5)))
    assert table.rows() == [
        ("r", "m", 8, "energy", "semi_nmf", "0.300 [0.250, 0.350]", ""),
        ("r", "m", 8, "energy", "random", "0.125 [0.125, 0.125]", ""),
    ]


def test_the_table_has_the_proxys_ratio_to_each_control():
    pca = cell("share", 0.3, 0.2, 0.4, variant="pca", order=1.0, step=8)
    table = share_table(as_frame("r", [*shares(8, 0.3, 0.7, 0.5), pca]))
    assert table.filter(subspace="pca")["proxy / it"].to_list() == ["1.00 [0.905, 1.11]"]


def test_records_without_shares_give_no_findings_and_an_empty_table():
    assert findings(as_frame("r", [Record(model="m", metric="loss", value=1.0)])) == []
    assert share_table(as_frame("r", [Record(model="m", metric="loss", value=1.0)])).height == 0
    assert isinstance(share_table(as_frame("r", [])), pl.DataFrame)
