"""The page of a report in a real browser, opened from disk."""

import re
from dataclasses import replace

import pytest

from browser import chromium
from tangentlens.report.page import write_report
from tangentlens.studies import SECTIONS
from tangentlens.studies.train import run_train
from tiny import TINY

PLOT = "document.querySelector('#figure-share_over_training')"
HOSTILE = "<img src=x onerror=document.title='broken'>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    plan = replace(TINY, models=("decoder",), steps=3, concepts=True)
    folder = tmp_path_factory.mktemp("shown")
    return [run_train(replace(plan, seed=seed), folder / f"{HOSTILE.replace('/', '')} {seed}") for seed in range(2)]


@pytest.fixture(scope="module")
def address(runs, tmp_path_factory):
    return write_report(runs[:1], tmp_path_factory.mktemp("page") / "report.html", SECTIONS).path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def tab(browser, address):
    tab = browser.tab(address)
    tab.wait_for(f"{PLOT}.data && {PLOT}.querySelector('.main-svg')")
    yield tab
    assert not tab.errors
    # Heat maps are pictures that the page makes itself.
    asked = [url for url in tab.requests if not url.startswith(("data:", "blob:"))]
    assert {url.partition("#")[0] for url in asked} == {address}, "it asks for nothing else"


def test_hostile_names_do_nothing(tab):
    tab.evaluate("location.hash = '#all'")
    tab.wait_for("[...document.querySelectorAll('.plot')].every((one) => one.data)")
    assert "tangentlens" in tab.evaluate("document.title")
    assert tab.evaluate("document.querySelectorAll('img').length") == 0


def test_the_page_can_draw_every_kind_of_chart_that_it_holds(tab):
    """Its plotly.js is a part of the whole, and takes a chart that it does not know for a line."""
    tab.evaluate("location.hash = '#all'")
    tab.wait_for("[...document.querySelectorAll('.plot')].every((one) => one._fullData)")
    meant, drawn = (
        tab.evaluate(f"[...document.querySelectorAll('.plot')].flatMap((one) => one.{data}.map((line) => line.type))")
        for data in ("data", "_fullData")
    )
    assert meant == drawn
    assert {"scatter", "heatmap"} <= set(drawn)


def test_parts_are_drawn_when_the_keyboard_opens_them(tab):
    assert tab.evaluate("document.querySelectorAll('.plot .main-svg').length > 0")
    folded = "document.querySelector('details.chapter .plot')"
    assert not tab.evaluate(f"Boolean({folded}.data)")
    tab.evaluate(f"{folded}.closest('details').querySelector('summary').focus()")
    tab.key("Enter")
    tab.wait_for(f"{folded}.closest('details').open && {folded}.data")


def test_hovering_shows_the_value_with_its_interval(tab):
    x, y = tab.evaluate(
        f"(() => {{ const e = {PLOT}.querySelector('.scatterlayer .point:last-of-type'); "
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2]})()"
    )
    tab.mouse("mouseMoved", x - 3, y)
    tab.mouse("mouseMoved", x, y)
    shown = tab.wait_for(f"{PLOT}.querySelector('.hoverlayer').textContent")
    assert re.search(r"step 2: 0\.\d+ \[0\.\d+, 0\.\d+\]$", shown), shown


def test_the_dark_theme_reaches_the_figures(tab):
    colour = f"{PLOT}.layout.font.color"
    light = tab.evaluate(colour)
    tab.theme("dark")
    tab.wait_for(f"{colour} !== {light!r}")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 20, 20)"


def test_a_phone_need_not_scroll_sideways(browser, address):
    tab = browser.tab()
    tab.phone()
    tab.open(f"{address}#all")
    tab.wait_for("[...document.querySelectorAll('.plot')].every((one) => one.data)")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_numbers_and_pictures_are_saved_by_the_keyboard(tab):
    tab.evaluate(
        "window.saved = []; const made = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { saved.push(blob); return made.call(URL, blob); };"
    )
    for format in ("csv", "svg"):
        tab.evaluate(f"{PLOT}.closest('figure').querySelector('[data-save={format}]').focus()")
        tab.key("Enter")
    tab.wait_for("saved.length === 2")
    header, first, *_ = tab.evaluate("saved[0].text()").splitlines()
    assert header == "series,panel,x,value,ci_low,ci_high"
    assert "energy share (order 1)" in first
    assert "<svg" in tab.evaluate("saved[1].text()")


def test_figures_say_what_they_show_to_those_who_do_not_see_them(tab):
    told = tab.evaluate(
        "[...document.querySelectorAll('.plot')].map((one) => [one.getAttribute('role'),"
        "document.getElementById(one.getAttribute('aria-labelledby')).textContent,"
        "document.getElementById(one.getAttribute('aria-describedby')).textContent])"
    )
    assert len(told) > 3
    assert all(role == "img" and len(title) > 20 and len(caption) > 20 for role, title, caption in told)


def test_two_runs_are_compared_with_intervals(browser, runs, tmp_path):
    tab = browser.tab(f"{write_report(runs, tmp_path / 'both.html', SECTIONS).path.as_uri()}#all")
    difference = "document.querySelector('#figure-difference_over_training')"
    tab.wait_for(f"{difference}.data")
    assert "How do the runs differ?" in tab.evaluate(f"{difference}.closest('details').innerText")
    low, high = tab.evaluate(f"{difference}.data.find((one) => one.customdata).customdata[0].slice(2)")
    assert low < high
    assert not tab.errors
