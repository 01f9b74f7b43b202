"""The documentation site: it is built without a warning, and walked in a real browser, from disk."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tangentlens as tl
from browser import chromium
from tangentlens.studies import SECTIONS

DOCS = Path(__file__).parents[1] / "docs"
REFERENCE = sorted(DOCS.glob("api/*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does, but for the tutorials, which have a test of their own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-d"]
    told = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("cache")), str(DOCS), str(folder)],
        env=os.environ | {"TANGENTLENS_TUTORIALS": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def tab(browser, site):
    tab = browser.tab((site / "index.html").as_uri())
    yield tab
    assert {url.partition(":")[0] for url in tab.requests} <= {"file", "data", "blob"}, "it asks no server"


def test_every_page_is_in_the_navigation_and_every_figure_is_there(site):
    # A page that no table of contents names, and a link or an anchor that is not there, are warnings, which are errors.
    pages = {page.relative_to(DOCS).with_suffix("") for page in (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))}
    missing = {page for page in pages if not (site / page).with_suffix(".html").exists()}
    # It is the text of the first page.
    assert {str(page) for page in missing} == {"README"}


def test_a_search_finds_a_page_that_opens(tab):
    tab.open(tab.evaluate("new URL('search.html', location.href).href") + "?q=massive+activations")
    first = tab.wait_for("document.querySelector('#search-results li a')?.href")
    assert first.startswith("file:")
    assert tab.evaluate("[...document.querySelectorAll('#search-results li a')].some((a) => /massive/.test(a.href))")
    tab.open(first.partition("#")[0].partition("?")[0])
    assert "massive" in tab.evaluate("document.body.textContent.toLowerCase()")


def test_a_code_sample_can_be_copied(tab, site):
    tab.open((site / "start.html").as_uri())
    button = tab.wait_for("document.querySelector('.highlight-python button.copybtn')?.dataset.clipboardTarget")
    assert "lens.step(loss)" in tab.evaluate(f"document.querySelector({button!r}).textContent")


def test_every_figure_of_the_gallery_is_drawn(tab, site):
    tab.open((site / "gallery.html").as_uri())
    widths = tab.evaluate("[...document.querySelectorAll('article img')].map((image) => image.naturalWidth)")
    assert len(widths) >= 10
    assert min(widths) > 300


def test_a_phone_need_not_scroll_sideways(tab, site):
    tab.phone()
    for page in ("index", "start", "which-measure", "api/geometry"):
        tab.open((site / f"{page}.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), page


def documented():
    """Every name that the reference documents."""
    text = "".join(page.read_text() for page in REFERENCE)
    renamed = {"tangentlens.geometry.manifolds": "manifolds", "tangentlens.training.regularisers": "regularisers"}
    found = re.findall(r"^\.\. auto(?:function|class|module):: (\S+)$", text, flags=re.MULTILINE)
    return [renamed.get(name, name.removeprefix("tangentlens.")) for name in found]


def test_the_reference_has_every_public_name_once():
    public = [name for name in documented() if "." not in name]
    assert sorted(public) == sorted(tl.__all__)


@pytest.mark.parametrize("name", tl.__all__)
def test_every_public_name_has_an_example(name):
    examples = "".join(
        block
        for page in REFERENCE
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    )
    assert ">>>" in (getattr(tl, name).__doc__ or "") or re.search(rf"\btl\.{name}\b", examples)


def test_questions_of_a_report_are_explained_in_its_own_words():
    table = re.search(r"\| part \|.*?\n\n", (DOCS / "reading-a-report.md").read_text(), flags=re.DOTALL)
    named = [line.split("|")[1].strip() for line in table[0].splitlines()[2:] if line]
    assert named
    assert set(named) <= {section.question for section in SECTIONS}
