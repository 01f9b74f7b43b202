"""The key figures of a profile, from planted records."""

import pytest

from cells import cell, profile_cells
from tangentlens.report.contents import key_figures
from tangentlens.report.reading import marked
from tangentlens.runs.records import as_frame
from tangentlens.studies import SECTIONS
from tangentlens.studies.profile.section import profile_over_depth, profile_tables

ABOUT = {"quantity": "activation", "rank": None}


def cards(*records):
    found = key_figures(SECTIONS, as_frame("r", records))
    return [card for model in found for card in model.cards]


def shaped(kind, value=0.3, metric="anisotropy", site="resid.1"):
    return [
        cell(f"shape/{metric}", value, value - 0.1, value + 0.1, site=site, detail=kind, **ABOUT),
        cell(f"shape_margin/{metric}", 0.027, **ABOUT),
    ]


@pytest.mark.parametrize(
    ("kind", "value", "sign", "verdict"),
    [
        ("bell", 0.3, "more", "a bell over depth: resid.1 is 0.300 [0.200, 0.400] above the higher end"),
        ("valley", -0.3, "less", "a valley over depth: resid.1 is 0.300 [0.200, 0.400] below the lower end"),
        ("irregular", 0.3, "more", "irregular over depth: resid.1 stands out by 0.300 [0.200, 0.400]"),
        ("monotone", -0.3, "less", "falls over depth, by 0.300 [0.200, 0.400]"),
        ("monotone", 0.3, "more", "rises over depth, by 0.300 [0.200, 0.400]"),
        ("flat", 0.3, "equal", "flat: sites differ by less than 0.027"),
        ("undecided", 0.3, "open", "neither a shape over depth nor flatness was shown"),
    ],
)
def test_a_card_says_where_a_measure_is_highest_and_its_shape(kind, value, sign, verdict):
    (card,) = cards(*profile_cells("anisotropy", [0.2, 0.5, 0.1]), *shaped(kind, value))
    assert (card.title, card.value, card.interval) == ("Anisotropy: highest at resid.1", "0.5", "[0.49, 0.51]")
    assert (card.sign, card.verdict) == (sign, verdict)
    # A line that fills its box would look like a change.
    assert card.course == (() if kind == "flat" else ((0, 0.2), (1, 0.5), (2, 0.1)))


def test_without_a_shape_nothing_is_claimed():
    (card,) = cards(*profile_cells("anisotropy", [0.2, 0.5]))
    assert (card.sign, card.verdict) == ("open", "no shape over depth was tested")


def test_a_dimension_that_is_not_to_be_trusted_has_no_verdict():
    records = [*profile_cells("intrinsic_dimension", [9.0, 20.0, 5.0]), *shaped("bell", 11, "intrinsic_dimension")]
    trouble = profile_cells("dimension_trouble", [0.0, 0.6, 1.0])
    (sure,), (doubtful,) = cards(*records), cards(*records, *trouble)
    assert (sure.sign, sure.value) == ("more", "20")
    assert (doubtful.sign, doubtful.verdict) == ("open", "not to be trusted at 2 of 3 sites")


def test_a_dimension_that_is_not_to_be_trusted_is_marked_in_the_table_too():
    rows = [*profile_cells("intrinsic_dimension", [9.0, 20.0]), *profile_cells("dimension_trouble", [0.4, 0.6])]
    (sure,) = profile_tables(marked(as_frame("r", rows[: len(rows) // 2])))
    (doubtful,) = profile_tables(marked(as_frame("r", rows)))
    assert sure.title.endswith("over batches")
    assert doubtful.title.endswith("over batches; ?: not to be trusted")
    (column,) = set(doubtful.frame.columns) - {"run", "site"}
    assert column.endswith(" ± sd")
    assert [text.endswith(" ?") for text in doubtful.frame[column]] == [False, True]


@pytest.mark.parametrize(
    ("without", "sign", "word"),
    [
        (0.1, "more", "significantly above 0.1"),
        (0.5, "open", "not significantly different from 0.5"),
        (0.99, "less", "significantly below 0.99"),
    ],
)
def test_massive_rows_are_counted_with_what_they_change(without, sign, word):
    rows = [*profile_cells("anisotropy", [0.5, 0.5, 0.5], half=0.03), *profile_cells("massive_rows", [0.0, 4.0, 2.0])]
    place = {"site": "resid.1", "depth": 0.5, "rows": "without_massive", "ci_over": "batches", **ABOUT}
    other = cell("anisotropy", without, without - 0.01, without + 0.01, **place)
    found = cards(*rows, *shaped("flat"), other)
    assert [card.title for card in found] == [
        "Anisotropy: highest at resid.2",
        f"Anisotropy, without massive rows: highest at {'resid.1' if without > 0.5 else 'resid.2'}",
        "Massive rows in a batch, at 2 of 3 sites",
    ]
    assert (found[2].value, found[2].sign) == ("4", sign)
    assert f"the anisotropy at resid.1 is 0.5, {word}, which it is without" in found[2].verdict


def test_no_massive_rows_is_a_finding():
    (card,) = cards(*profile_cells("massive_rows", [0.0, 0.0]))
    assert (card.value, card.sign) == ("none", "equal")
    assert card.verdict == "no row of 2 sites is far longer than the median"


def test_every_column_of_panels_has_its_depth_and_narrow_axes_are_linear():
    names = ["anisotropy", "mean_cosine", "intrinsic_dimension", "manifold_entropy"]
    records = [one for name in names for one in profile_cells(name, [10.0, 11.0])]
    layout = profile_over_depth(as_frame("r", records)).plot.layout
    assert [layout[f"xaxis{n}"].title.text for n in ("2", "3", "4")] == ["depth"] * 3
    assert all(layout[f"xaxis{n}"].showticklabels for n in ("2", "3", "4"))
    assert layout.yaxis3.type is None
    wide = [one for name in names for one in profile_cells(name, [2.0, 20.0])]
    assert profile_over_depth(as_frame("r", wide)).plot.layout.yaxis3.type == "log"
