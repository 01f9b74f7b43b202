"""Live pages in a real browser, while a training goes on, is killed and is continued."""

import plotly.graph_objects as go
import pytest

from browser import chromium
from growing import training
from serving import serving
from tangentlens.report import views
from tangentlens.report.contents import Figure, Section
from tangentlens.report.sections import SECTIONS
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run

PLOT = "document.querySelector('#figure-share_over_training')"
STEP = "document.querySelector('main').dataset.step"


@pytest.fixture(autouse=True)
def restless(monkeypatch):
    """No page rests, so that tests are short."""
    monkeypatch.setattr(views, "_REST", 0.0)


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


def from_the_server_alone(tab, server):
    return all(url.startswith((f"http://127.0.0.1:{server.server_port}/", "data:", "blob:")) for url in tab.requests)


def test_a_page_follows_a_training_through_a_kill(browser, tmp_path):
    with training(tmp_path / "run") as first, serving(tmp_path / "run") as server:
        tab = browser.tab(server.address)
        assert "waiting for the first measured step" in tab.evaluate("document.body.innerText")
        tab.evaluate("window.marker = 'not reloaded'")
        assert [first.step(), first.step()] == [0, 1]
        tab.wait_for(f"{STEP} === '1' && {PLOT}.data")
        zoom, hidden = zoomed(tab), hide_a_line(tab)
        tab.evaluate("document.querySelector('details[data-key=words]').open = true")

        assert first.step() == 2
        tab.wait_for(f"{STEP} === '2'", timeout=10)
        assert kept(tab) == (zoom, hidden, True, "not reloaded")
        assert points(tab) == 3
        assert "last step 2" in tab.evaluate("document.querySelector('[role=status]').innerText")

        first.kill()
        # It continues from a checkpoint before the last step that it had measured.
        with training(tmp_path / "run", first=2) as second:
            assert [second.step(), second.step()] == [2, 3]
            tab.wait_for(f"{STEP} === '3'", timeout=10)
            assert kept(tab) == (zoom, hidden, True, "not reloaded")
            assert points(tab) == 4
        assert not tab.errors
        assert from_the_server_alone(tab, server)
    tab.wait_for("document.querySelector('[role=status]').innerText.includes('the server is gone')")
    assert kept(tab)[-1] == "not reloaded"


def zoomed(tab):
    """Zoom into the first figure with the mouse, and return the range of its axis."""
    x, y, width, _ = tab.place_of("#figure-share_over_training .nsewdrag")
    before = tab.evaluate(f"{PLOT}.layout.xaxis.range")
    tab.drag((x - width / 4, y), (x + width / 4, y))
    tab.wait_for(f"JSON.stringify({PLOT}.layout.xaxis.range) !== {str(before).replace(' ', '')!r}")
    return tab.evaluate(f"{PLOT}.layout.xaxis.range")


def hide_a_line(tab):
    """Hide the first line by its entry in the legend, and return how many are hidden."""
    hidden = f"{PLOT}._fullData.filter((trace) => trace.visible === 'legendonly').length"
    before = tab.evaluate(hidden)
    x, y, *_ = tab.place_of("#figure-share_over_training .legendtoggle")
    tab.click(x, y)
    return tab.wait_for(f"{hidden} > {before} && {hidden}")


def kept(tab):
    """What must stay while a page changes: the zoom, hidden lines, open parts, and the page itself."""
    hidden = f"{PLOT}._fullData.filter((trace) => trace.visible === 'legendonly').length"
    opened = "document.querySelector('details[data-key=words]').open"
    return tuple(tab.evaluate(f"[{PLOT}._fullLayout.xaxis.range, {hidden}, {opened}, window.marker]"))


def points(tab):
    """How many steps the first figure draws."""
    return tab.evaluate(f"Math.max(...{PLOT}.data.filter((trace) => trace.customdata).map((trace) => trace.x.length))")


def loss(step, model="m"):
    return Record(model=model, quantity="loss", metric="loss", step=step, value=1.0)


def test_parts_and_figures_appear_and_go_and_those_that_stay_are_the_same(browser, tmp_path):
    run = create_run(tmp_path / "run", {})
    run.write("a", [loss(0), loss(1)])
    with serving(run.path, sections=SECTIONS) as server:
        tab = browser.tab(server.address)
        about = {"model": "m", "quantity": "activation", "metric": "anisotropy", "ci_over": "sequences"}
        run.write(
            "b",
            [
                Record(**about, site=f"resid.{site}", depth=site / 2, step=step, value=0.5, ci_low=0.4, ci_high=0.6)
                for step in (0, 1)
                for site in (0, 1, 2)
            ],
        )
        tab.wait_for("document.querySelector('#figure-anisotropy_map')")
        # The page now begins with another figure. One in a part that is opened is drawn.
        tab.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; }); 0")
        tab.wait_for("[...document.querySelectorAll('.plot')].every((one) => one.data)")
        assert tab.evaluate("document.querySelectorAll('.plot').length") > 2
        (run.path / "records" / "b.parquet").unlink()
        tab.wait_for("!document.querySelector('#figure-anisotropy_map')")
        # Its part is missed, and that is said.
        assert "these are gone from its records: b" in tab.evaluate("document.querySelector('main').innerText")
        assert tab.evaluate("[...document.querySelectorAll('.plot')].every((one) => one.data)")
        assert not tab.errors


def lines(records):
    """A figure with a line per model, by name."""
    models = records.sort("model", "step").group_by("model", maintain_order=True)
    traces = [go.Scatter(x=rows["step"].to_list(), y=rows["value"].to_list(), name=name) for (name,), rows in models]
    return Figure("Lines", "A caption", go.Figure(traces, {"height": 400, "showlegend": True}))


def test_a_line_that_was_hidden_stays_hidden_when_another_comes_before_it(browser, tmp_path):
    run = create_run(tmp_path / "run", {})
    run.write("a", [loss(step, model) for step in (0, 1) for model in ("m", "n")])
    with serving(run.path, sections=[Section("What?", "a command", figures=(lines,))]) as server:
        tab = browser.tab(server.address)
        shown = "document.querySelector('#figure-lines')._fullData.map((trace) => [trace.name, trace.visible])"
        x, y, *_ = tab.place_of("#figure-lines .legendtoggle")
        tab.click(x, y)
        tab.wait_for(f"{shown}[0][1] === 'legendonly'")
        run.write("b", [loss(step, "a") for step in (0, 1)])
        tab.wait_for(f"{shown}.length === 3")
        assert tab.evaluate(shown) == [["a", True], ["m", "legendonly"], ["n", True]]


def test_a_report_stays_under_a_message_while_its_run_cannot_be_read(browser, tmp_path):
    run = create_run(tmp_path / "run", {})
    run.write("a", [loss(0), loss(1)])
    with serving(run.path) as server:
        tab = browser.tab(server.address)
        (run.path / "records" / "b.parquet").write_bytes(b"damaged")
        tab.wait_for("document.querySelector('[role=alert]').innerText.includes('must be a Parquet part')")
        assert tab.evaluate("!!document.querySelector('#figure-loss_over_training').data")
        (run.path / "records" / "b.parquet").unlink()
        tab.wait_for("document.querySelector('[role=alert]').hidden")


def test_runs_appear_in_the_list_and_a_hostile_name_does_nothing(browser, tmp_path):
    evil = "<img src=x onerror=document.title=String.fromCharCode(66)><b>"
    with serving(tmp_path) as server:
        tab = browser.tab(server.address)
        assert "waiting for the first one" in tab.evaluate("document.body.innerText")
        run = create_run(tmp_path / f"r{evil}", {"text": evil}, made_by=evil)
        run.write("a", [loss(step, f"</script>{evil}") for step in (0, 1)])
        tab.wait_for("document.querySelector('a[href=\"runs/0/\"]')")
        assert evil in tab.evaluate("document.querySelector('table').innerText")
        tab.evaluate("document.querySelector('a[href=\"runs/0/\"]').click()")
        tab.wait_for("document.querySelector('#figure-loss_over_training')?.data")
        run.write("b", [loss(2, f"</script>{evil}")])
        tab.wait_for(f"{STEP} === '2'")
        tab.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; }); 0")
        assert tab.evaluate("document.querySelectorAll('main img, main b b').length") == 0
        assert tab.evaluate("document.title") == f"r{evil} · tangentlens"
        # Even markup that came through would not run.
        tab.evaluate(
            "document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x onerror=window.hit=1>')"
        )
        tab.evaluate("new Promise((done) => setTimeout(done, 300))")
        assert not tab.evaluate("window.hit")
        assert from_the_server_alone(tab, server)


def test_the_status_is_read_aloud_only_when_it_changes_and_fits_a_phone(browser, tmp_path):
    run = create_run(tmp_path / "run", {})
    run.write("a", [loss(0), loss(1)])
    with serving(run.path) as server:
        tab = browser.tab()
        tab.phone()
        tab.theme("dark")
        tab.open(server.address)
        tab.wait_for("document.querySelector('#live-since').innerText.includes('updated')")
        status = "document.querySelector('[role=status]')"
        assert tab.evaluate(f"{status}.innerText") == "live · last step 1"
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.evaluate(f"getComputedStyle({status}).color") == "rgb(176, 176, 176)"
        # Figures, too, follow the theme of the system when it changes.
        ink = "document.querySelector('#figure-loss_over_training').layout.font.color"
        assert tab.evaluate(ink) == "#ececec"
        tab.theme("light")
        tab.wait_for(f"{ink} === '#1b1b1b'")
        tab.evaluate(
            f"window.told = 0; new MutationObserver(() => {{ window.told += 1; }}).observe({status}, "
            "{childList: true, characterData: true, subtree: true}); 0"
        )
        before = tab.evaluate("document.querySelector('#live-since').innerText")
        tab.wait_for(f"document.querySelector('#live-since').innerText !== {before!r}")
        assert tab.evaluate("window.told") == 0
