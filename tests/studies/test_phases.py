"""When training turns, on planted curves; and the page that holds the ledger."""

import math
from dataclasses import replace

import polars as pl
import pytest

from tangentlens.errors import InputError
from tangentlens.report.reading import read_runs
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run
from tangentlens.studies.claims.ledger import ledger
from tangentlens.studies.claims.page import BEGIN, END, write_page
from tangentlens.studies.claims.phases import GROWTH, phases

STEPS = (0, 1, 3, 7, 15, 31)


@pytest.fixture
def records(tmp_path):
    run, written = create_run(tmp_path / "run", {}), []
    for seed, (growth, anisotropy) in enumerate(
        [((1, 1, -1, -1, -1), (0, 1, 9, 1, 1, 1)), ((0.25, 0.25, 0.25, -0.75, -1), (0, 1, 1, 9, 1, 1))]
    ):
        about = Record(model=f"decoder-{seed}")
        moved = replace(about, site="mean", quantity="movement", metric="growth_log_ratio", variant="x", detail="proxy")
        written += [replace(moved, step=s, value=float(v)) for s, v in zip(STEPS[1:], growth, strict=True)]
        one = replace(about, site="resid.1", quantity="activation", metric="anisotropy")
        written += [replace(one, step=s, value=float(v)) for s, v in zip(STEPS, anisotropy, strict=True)]
        # This one still rises at the end, so it has no peak.
        written += [replace(one, metric="intrinsic_dimension", step=s, value=float(s)) for s in STEPS]
        facts = {"kind": "decoder", "family": "d", "trained_seed": seed, "epoch": 9, "weights_sha256": str(seed)}
        run.describe("models", {f"decoder-{seed}": facts})
    run.write("planted", written)
    return read_runs([run])


def test_turns_are_where_they_were_planted(records):
    turns = {row["turn"]: row for row in phases(records).iter_rows(named=True)}
    # Steps 1, 3, 7, 15, 31 are 1 to 5 doublings. From 1 to -1 it is half-way from 2 to 3; from 0.25 to -0.75, a
    # quarter of the way from 3 to 4.
    assert turns[GROWTH]["doublings"] == pytest.approx((2.5 + 3.25) / 2)
    assert turns[GROWTH]["networks"] == 2
    assert turns["anisotropy peaks"]["doublings"] == pytest.approx(2.5)
    assert "dimension peaks" not in turns
    gap = turns[f"from '{GROWTH}' to 'anisotropy peaks'"]
    assert gap["doublings"] == pytest.approx(2.5 - turns[GROWTH]["doublings"])
    assert gap["ci_low"] < gap["doublings"] < gap["ci_high"]


def test_turns_of_treated_networks_do_not_count(tmp_path):
    run = create_run(tmp_path / "run", {})
    for name, treatment, peak in (("a", "", 1), ("b", "", 3), ("treated", "smooth 0.3", 7)):
        one = Record(model=name, site="resid.2", quantity="activation", metric="anisotropy")
        run.write(name, [replace(one, step=step, value=float(step == peak)) for step in (0, 1, 3, 7, 15)])
        facts = {"kind": "decoder", "family": "a decoder", "treatment": treatment, "epoch": 9, "weights_sha256": name}
        run.describe("models", {name: facts})
    (row,) = phases(read_runs([run])).iter_rows(named=True)
    # Steps 1 and 3 are 1 and 2 doublings, and 1.5 doublings are step 2^1.5 - 1.
    assert (row["networks"], row["doublings"]) == (2, pytest.approx(1.5))
    assert row["step"].startswith("1.83 [")


def test_a_turn_is_not_known_better_than_to_a_doubling(records):
    same = records.filter(records["network"] == "decoder-0")
    twin = same.with_columns(same["network"].str.replace("0", "1").alias("network"), trained_seed=pl.lit(1, pl.Int64))
    row = phases(same.vstack(twin)).filter(turn="anisotropy peaks").row(0, named=True)
    assert row["ci_high"] - row["ci_low"] > 1 / math.sqrt(12)


def test_a_network_in_two_runs_counts_once_and_an_unfinished_one_not_at_all(records):
    again = records.with_columns(run=pl.lit("again"))
    assert phases(pl.concat([records, again])).equals(phases(records))
    assert phases(records.with_columns(weights=pl.lit(""))).is_empty()


def test_a_page_keeps_what_is_around_its_marks(records, tmp_path):
    path = tmp_path / "ledger.md"
    path.write_text(f"# Before\n\n{BEGIN}\nthe last ledger\n{END}\n\nAfter.\n")
    for _ in range(2):
        write_page(path, ledger(records), records)
    text = path.read_text()
    assert text.startswith(f"# Before\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nAfter.\n")
    assert "the last ledger" not in text
    assert text.count("## What each verdict rests on") == 1
    assert "| 12a | The anisotropy of decoders is a bell over depth. |" in text


def test_a_page_that_is_not_there_is_made(records, tmp_path):
    write_page(tmp_path / "new" / "ledger.md", ledger(records), records)
    assert (tmp_path / "new" / "ledger.md").read_text().startswith("# Ledger of claims\n")


@pytest.mark.parametrize("text", [f"{BEGIN}\nold\n\n## My notes\n", f"{END}\n{BEGIN}\n## My notes\n"])
def test_a_page_whose_mark_is_not_closed_is_left_as_it_is(records, tmp_path, text):
    path = tmp_path / "ledger.md"
    path.write_text(text)
    with pytest.raises(InputError, match=f"must have {END} after {BEGIN}"):
        write_page(path, ledger(records), records)
    assert path.read_text() == text


def test_a_page_without_marks_has_the_ledger_at_its_end(records, tmp_path):
    path = tmp_path / "ledger.md"
    path.write_text("# Notes")
    write_page(path, ledger(records), records)
    assert path.read_text().startswith(f"# Notes\n\n{BEGIN}\n")


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_bytes(b"caf\xe9")])
def test_what_is_no_page_is_refused(records, tmp_path, make):
    make(tmp_path / "ledger.md")
    with pytest.raises(InputError, match="must be a Markdown file in UTF-8"):
        write_page(tmp_path / "ledger.md", ledger(records), records)


def test_a_bar_in_a_name_does_not_break_a_table_of_the_page(records, tmp_path):
    named = records.with_columns(family=pl.lit("wide | narrow"))
    write_page(tmp_path / "ledger.md", ledger(named), named)
    assert "wide \\| narrow" in (tmp_path / "ledger.md").read_text()
