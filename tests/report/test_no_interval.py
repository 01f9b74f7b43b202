from cells import cell
from tangentlens.report.sections.shares import emerges, share_over_depth, size, variance
from tangentlens.runs.records import as_frame


def without_intervals(step):
    about = {"order": 1.0, "step": step}
    return [
        cell("share", 0.6, variant="semi_nmf", detail="proxy", **about),
        cell("share", 0.125, 0.125, 0.125, variant="random", **about),
        cell("log_ratio", 2.0, variant="normal", **about),
        cell("log_ratio", -0.1, variant="pca", **about),
        *(cell("p_value", 0.001, variant="random", site=f"resid.{i}", **about) for i in range(2)),
        *(
            cell("share", 0.6, variant="semi_nmf", detail="proxy", site=f"resid.{i}", depth=float(i), **about)
            for i in range(2)
        ),
        *(cell("share", 0.125, variant="random", site=f"resid.{i}", depth=float(i), **about) for i in range(2)),
    ]


def test_numbers_without_an_interval_are_told_without_a_claim():
    records = as_frame("run", [record for step in (0, 1, 2) for record in without_intervals(step)])
    (told,) = size(records)
    assert "captures 0.600 (no interval) of the gradient's energy" in told
    assert "7.39 (no interval) times normal (without an interval, and so not compared)" in told
    assert not list(variance(records))
    (since,) = emerges(records)
    assert "has no interval at the last step, so that it is not compared" in since
    title = share_over_depth(records).title
    assert title.endswith(": without an interval, and so not compared with r/d at 2 of 2 sites")
