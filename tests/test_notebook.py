"""What results show in a notebook: text and tables, readable on light and dark, and never markup from outside."""

import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace

import pytest
import torch

import tangentlens as tl
from cells import shares
from tangentlens.alignment.audit_data import Check
from tangentlens.notebook import as_html
from tangentlens.report import showing
from tangentlens.report.result import Result
from tangentlens.runs.run import create_run
from tangentlens.studies import SECTIONS
from tangentlens.studies.train import run_train
from tiny import TINY

EVIL = "</script><img src=x onerror=alert(1)>"
VOID = {"br", "hr", "img", "meta", "link", "input"}


class Parsed(HTMLParser):
    """The tags, the text and the styles of a page; every tag must be closed."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.styles, self.open = [], "", "", []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.styles += dict(attributes).get("style") or ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def small(page):
    """The parsed HTML of a small result, which has no scripts, no background and no colours that one theme hides."""
    parsed = Parsed(page)
    assert not {"script", "style", "img", "iframe", "a"} & set(parsed.tags)
    assert "background" not in parsed.styles
    assert "color: currentColor" in parsed.styles
    return parsed


def rows():
    make = torch.Generator().manual_seed(0)
    x, g = torch.randn(2, 600, 16, generator=make, dtype=torch.float64)
    return x, g, torch.arange(600) // 10


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_train(replace(TINY, steps=2, models=("decoder",)), tmp_path_factory.mktemp("notebook") / "a-run")


@pytest.fixture
def notebook(monkeypatch):
    """A notebook, which keeps what is shown in it."""
    shown = []
    display = ModuleType("IPython.display")
    display.HTML = lambda text: SimpleNamespace(data=text)
    display.display = shown.append
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_tangent_test_shows_its_share_and_every_control():
    test = tl.tangent_test(*rows(), rank=4, controls=("random", "pca"))
    page = small(test._repr_html_())
    assert f"The proxy (rank 4 of 16) takes {test.share()} of the gradient's energy" in page.text
    assert repr(test.log_ratio("pca").exp()) in page.text
    assert "significant" in page.text
    assert page.tags.count("tr") == 1 + 2 * (len({cell.order for cell in test.shares}) + 1)


def test_a_tangent_test_that_few_tokens_decide_says_so():
    test = replace(tl.tangent_test(*rows(), rank=4, controls=("pca",)), held_by_top={1.0: 0.9})
    assert "Warning: 1% of the tokens hold 90% of this number." in small(test._repr_html_()).text
    assert "  Warning: 1% of the tokens hold 90% of this number." in test.verdict()


def test_an_audit_shows_its_verdict_and_every_check():
    checks = (
        Check("local tangents", "the share is 0.1 [0.0, 0.2]", "the gradients are indifferent", says="indifferent"),
        Check(EVIL, f"found {EVIL}", "no conclusion"),
    )
    page = small(tl.Audit(checks, None, rank=4, dim=16, n_tokens=600)._repr_html_())
    assert page.text.startswith("The gradients are indifferent: ")
    assert "the share is 0.1 [0.0, 0.2]" in page.text
    assert f"found {EVIL}" in page.text


def test_a_dimension_shows_its_interval_its_scales_and_its_doubts():
    found = tl.intrinsic_dimension(rows()[0], method="gride")
    page = small(found._repr_html_())
    assert f"Intrinsic dimension {found.value:.2f} [{found.ci_low:.2f}, {found.ci_high:.2f}]" in page.text
    assert page.tags.count("tr") == 1 + len(found.scales)
    assert "Not to be trusted: rounded." in small(replace(found, trouble="rounded")._repr_html_()).text
    assert "Not to be trusted" not in small(replace(found, trouble="")._repr_html_()).text


def test_a_run_shows_what_it_is_without_reading_its_numbers(run, monkeypatch):
    monkeypatch.setattr(type(run), "records", property(lambda _: pytest.fail("records were read")))
    page = small(run._repr_html_())
    assert page.text.startswith("Run a-run")
    assert "decoder" in page.text
    assert str(run.path) in page.text


def test_a_run_that_is_gone_says_so(tmp_path):
    assert "must be a run directory" in small(tl.Run(tmp_path / "gone")._repr_html_()).text


def test_names_from_outside_are_text(tmp_path, notebook):
    evil = create_run(tmp_path / "r<img>", {"text": EVIL})
    evil.describe("models", {EVIL: {"weights_sha256": ""}})
    assert EVIL in small(evil._repr_html_()).text
    evil.write("a", [replace(record, model=EVIL) for step in (0, 1) for record in shares(step, 0.3, 0.5, 0.4)])
    evil.show()
    outside = notebook[0].data.split("<script")[0]
    assert "<img" not in outside
    assert "&lt;img" in outside


def test_in_a_notebook_a_run_shows_cards_the_main_figure_and_findings(run, notebook):
    run.show()
    (shown,) = notebook
    before = shown.data.split("<script")[0]
    result = Result(run, SECTIONS)
    card = result.key_figures[0].cards[0]
    assert card.title in before
    assert f"<strong>{card.value}</strong> {card.interval}" in before
    assert all(word in before for word in ("<li>", "proxy captures"))
    assert shown.data.count("plotly-graph-div") == 1
    assert not (run.path / "report.html").exists()


def test_elsewhere_the_report_is_written_opened_and_named(run, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(showing.webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    tl.show(str(run.path))
    assert opened == [(run.path / "report.html").as_uri()]
    assert capsys.readouterr().out == f"report: {run.path / 'report.html'}\n"


def test_without_a_screen_no_browser_is_opened(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(showing.webbrowser, "open", lambda _: pytest.fail("a text browser would take the terminal"))
    monkeypatch.setattr(showing.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    showing.open_page(tmp_path / "report.html")
    assert "report.html" in capsys.readouterr().out


def test_ipython_in_a_terminal_is_no_notebook(notebook, monkeypatch):
    assert showing.in_notebook()
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    assert not showing.in_notebook()


def test_the_result_of_a_function_has_its_cards_in_a_notebook(run):
    result = Result(run, SECTIONS)
    page = result._repr_html_()
    assert page.index("over chance") < page.index("<li>")


def test_cells_and_headlines_are_escaped():
    assert small(as_html(EVIL, [EVIL], (EVIL,), [(EVIL,)])).text == EVIL * 4
