"""Maps of all sites and steps."""

import math

import pytest

from cells import cell
from tangentlens.report.sections.maps import anisotropy_map, share_map
from tangentlens.runs.records import as_frame


def records(evil=""):
    cells = []
    for step in (0, 8):
        for i in range(3):
            about = {"site": f"resid.{i}{evil}", "depth": i / 2, "step": step}
            share = 0.1 * (i + 1) + step / 100
            cells += [
                cell("share", share, variant="semi_nmf", detail="proxy", order=1.0, **about),
                cell("share", 0.125, variant="random", order=1.0, **about),
                cell("anisotropy", share, quantity="activation", **about),
            ]
    return as_frame("r", cells)


def test_colours_are_the_share_over_chance_and_the_title_names_both_ends():
    figure = share_map(records())
    (trace,) = figure.plot.data
    cells = {(site, step): colour for site, step, colour in zip(trace.y, trace.x, trace.z, strict=True)}
    assert cells["resid.2", "8"] == pytest.approx(math.log2(0.38 / 0.125))
    assert cells["resid.0", "0"] == pytest.approx(math.log2(0.1 / 0.125))
    assert "from 0.8 times (m, resid.0, step 0) to 3 times (m, resid.2, step 8)" in figure.title
    # White is chance.
    axis = figure.plot.layout.coloraxis
    assert axis.cmin == -axis.cmax
    assert list(figure.plot.layout.yaxis.categoryarray) == ["resid.0", "resid.1", "resid.2"]


def test_anisotropy_has_the_colours_of_0_to_1():
    figure = anisotropy_map(records())
    assert "at most 0.38, at resid.2 of m, step 8" in figure.title
    assert (figure.plot.layout.coloraxis.cmin, figure.plot.layout.coloraxis.cmax) == (0, 1)


def test_one_step_or_one_site_is_no_map():
    assert share_map(records().filter(step=0)) is None
    assert anisotropy_map(records().filter(site="resid.0")) is None


def test_names_of_sites_are_escaped():
    assert "resid.0&lt;img&gt;" in share_map(records("<img>")).plot.data[0].y
