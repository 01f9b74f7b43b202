import json
import re

import polars as pl
import pytest
import torch

from tangentlens import Lens
from tangentlens.report.contents import draw, find, tabulate
from tangentlens.report.page import write_report
from tangentlens.report.reading import read_runs
from tangentlens.report.sections.concepts import CONCEPTS
from tangentlens.runs.concepts import lineages
from tangentlens.runs.records import Record, as_frame
from tiny import tiny_batch, tiny_model

HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path, model = tmp_path_factory.mktemp("words") / "run", tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hostile = {"concepts": lambda ids: HOSTILE * bool(ids)}
    with Lens(model, "resid", rank=4, every=1, run=path, name=HOSTILE, **hostile) as lens:
        for step in range(3):
            model(**tiny_batch(step)).loss.backward()
            optimizer.step()
            lens.step()
    return lens.run


def test_concepts_have_a_figure_a_course_a_table_and_sentences(run):
    records = read_runs([run])
    points, course = draw([CONCEPTS], records)
    assert len(points.plot.data) == 3
    assert all(len(trace.x) == 4 for trace in points.plot.data)
    assert "since the last measured step" in course.title
    tables = tabulate([CONCEPTS], records)
    assert [table.frame.height for table in tables] == [4, 4, 4]
    assert all(table.on_page_only for table in tables)
    used, lasting = (finding.text for finding in find([CONCEPTS], records))
    assert used.startswith("Of 12 concepts at 3 sites, ")
    assert "a fit to other sequences" in lasting


def test_a_hostile_corpus_stays_text(run, tmp_path):
    page = write_report([run], tmp_path / "page.html", [CONCEPTS]).path.read_text()
    assert "<script>document" not in page
    assert "<img" not in page
    assert "&lt;img src=x" in page
    for figure in draw([CONCEPTS], read_runs([run])):
        shown = [str(point) for trace in figure.plot.data for point in trace.customdata]
        assert not any("<" in point for point in shown)


def test_the_number_above_chance_is_counted_from_the_lower_ends(run):
    title = draw([CONCEPTS], read_runs([run]))[0].title
    tables = [run.concepts(f"resid.{site}") for site in range(3)]
    above = sum(table.filter(pl.col("energy_share_low") > 1 / 32).height for table in tables)
    assert re.match(rf"{above} of 12 concepts", title)


def planted(links):
    """Records of two concepts at each step, with their matches at the step before."""
    about = {"model": "m", "site": "resid.1", "quantity": "activation"}
    tokens = [
        Record(**about, step=step, metric="concept_tokens", variant=str(number), value=0.0, detail=json.dumps([]))
        for step in (0, 4, 8)
        for number in range(2)
    ]
    kept = [
        Record(**about, step=step, metric="concept_kept", variant=str(number), value=cosine, detail=f"{before}:{match}")
        for (step, number), (cosine, before, match) in links.items()
    ]
    return as_frame("run", [*tokens, *kept])


def test_lineages_follow_matches_and_begin_where_the_cosine_is_low():
    links = {(4, 0): (0.9, 0, 1), (4, 1): (0.2, 0, 0), (8, 0): (0.71, 4, 0), (8, 1): (0.70, 4, 1)}
    lineage, born = lineages(planted(links))
    assert lineage == {(0, 0): 0, (0, 1): 1, (4, 0): 1, (4, 1): 2, (8, 0): 1, (8, 1): 3}
    assert born == {0: 0, 1: 0, 2: 4, 3: 8}


def test_a_concept_without_a_match_is_born():
    lineage, born = lineages(planted({(4, 0): (0.0, 0, -1)}))
    assert born[lineage[4, 0]] == 4
