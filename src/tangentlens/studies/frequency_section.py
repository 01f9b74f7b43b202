"""What a flatter distribution of tokens does, made in three ways: differences from twins at equal steps and loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl
from plotly.subplots import make_subplots

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, bars, styled
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.judging import Effect
from tangentlens.statistics.words import DIFFERENCE, relation
from tangentlens.studies.claims.claim import ANISOTROPY_MARGIN, RATIO_MARGIN
from tangentlens.studies.claims.tempered import ANISOTROPY, CURVATURE, ENRICHMENT, JUDGED
from tangentlens.studies.claims.twins import HELD_OUT_LOSS, at_equal_loss, at_equal_steps
from tangentlens.training.tempering import WAYS

# What is compared, and the difference that matters.
_COMPARED = {
    "anisotropy": (ANISOTROPY, ANISOTROPY_MARGIN),
    "ln(share of the proxy / chance)": (ENRICHMENT, RATIO_MARGIN),
    "visible curvature": (CURVATURE, 0.0),
}
_LOSS = "loss on held-out text"
_WHEN = {"equal steps": at_equal_steps, "equal loss": at_equal_loss}

Differences = Mapping[tuple[str, str, float], Interval]


def differences(records: pl.DataFrame, when: str, what: str) -> Differences:
    """Return how networks on tempered frequencies differ from their twins, with 95% intervals over seeds.

    Args:
        records: Records with facts about their networks, as `read_runs` returns them.
        when: `equal steps` or `equal loss`.
        what: The number that is compared.

    Returns:
        The differences by way and alpha.
    """
    select = HELD_OUT_LOSS if what == _LOSS else _COMPARED[what][0]
    found = {}
    for treatment in _treatments(records):
        effects = _WHEN[when](select, treatment)(records)["effect"].drop_nans().to_list()
        if len(effects) > 1:
            way, _, alpha = treatment.rpartition(" ")
            found[when, way, float(alpha)] = Effect.of([effects]).interval(0.95)
    return found


def _treatments(records: pl.DataFrame) -> list[str]:
    """Return the temperings among the treatments, by way and descending alpha."""
    if "treatment" not in records.columns:
        # These records do not say whose they are.
        return []
    known = [one for one in records["treatment"].unique() if one.rpartition(" ")[0] in WAYS]
    return sorted(known, key=lambda one: (WAYS.index(one.rpartition(" ")[0]), -float(one.rpartition(" ")[2])))


def frequency_effects(records: pl.DataFrame) -> Figure | None:
    """Draw the differences over alpha, a line for each way; at equal steps above, at equal loss below."""
    found = {(when, what): differences(records, when, what) for when in _WHEN for what in _COMPARED}
    shown = [what for what in _COMPARED if found["equal steps", what]]
    if not shown:
        return None
    panels = [f"{what}, {when}" for when in _WHEN for what in shown]
    plot = make_subplots(len(_WHEN), len(shown), subplot_titles=panels, horizontal_spacing=0.07, vertical_spacing=0.14)
    for row, when in enumerate(_WHEN, start=1):
        for column, what in enumerate(shown, start=1):
            for number, way in enumerate(WAYS):
                line = _line(found[when, what], way)
                if line.height:
                    trace = bars(line, "alpha", way, COLOURS[number], "solid")
                    first = row == column == 1
                    plot.add_trace(
                        trace.update(showlegend=first, legendgroup=way, meta=f"{what}, {when}"), row=row, col=column
                    )
            plot.add_hline(y=0, line={"color": "#6E6E6E", "width": 1}, row=row, col=column)
    plot.update_annotations(font_size=13)
    # From frequencies as they are, on the left, to types that are all alike.
    plot.update_xaxes(range=[1.05, -0.05])
    plot.update_xaxes(title_text="alpha", row=len(_WHEN))
    caption = (
        "Networks trained on token frequencies p^alpha minus their twins on the text as it is, all measured on the "
        "same held-out text, means over sites. With alpha 1 frequencies are as they are, with 0 all types alike. Bars: "
        "95% intervals over seeds. Sequences are drawn again (resampled), targets are weighted (reweighted), or "
        "frequent types are split and rare ones merged (relabelled)."
    )
    return Figure(_title({what: found["equal loss", what] for what in shown[:2]}), caption, styled(plot, 620))


def _line(found: Differences, way: str) -> pl.DataFrame:
    rows = [(alpha, one.value, one.ci_low, one.ci_high) for (_, of, alpha), one in found.items() if of == way]
    return pl.DataFrame(rows, schema=["alpha", "value", "ci_low", "ci_high"], orient="row")


def _title(found: Mapping[str, Differences]) -> str:
    """Return what each way does at equal loss and the alpha that is judged, and whether the ways agree."""
    told = "; ".join(f"{what} {_agreement(one, _COMPARED[what][1])}" for what, one in found.items())
    return f"Tokens of frequency p^{JUDGED:g} minus their twins, at equal loss: {told}"


def _agreement(found: Differences, margin: float) -> str:
    """Return the differences at the alpha that is judged, with whether all ways agree."""
    at = {way: one for (_, way, alpha), one in found.items() if alpha == JUDGED}
    words = {way: DIFFERENCE[relation(one, margin=margin)] for way, one in at.items()}
    if len(set(words.values())) == 1 and DIFFERENCE["undecided"] not in words.values():
        return f"{', '.join(f'{way} {one!r}' for way, one in at.items())} (all agree: {next(iter(words.values()))})"
    return ", ".join(f"{way} {one!r} ({words[way]})" for way, one in at.items())


def frequency_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate every difference with what may be said of it, and how far the distribution was changed."""
    treatments = _treatments(records)
    if not treatments:
        return
    dose = dict(records.select("treatment", "token_entropy").drop_nulls().unique().iter_rows())
    rows = [
        {
            "tokens": treatment or "as they are",
            "entropy of the distribution (nats)": f"{dose[treatment]:.3f}" if treatment in dose else "",
        }
        for treatment in ("", *treatments)
    ]
    for when in _WHEN:
        for what in (*_COMPARED, _LOSS) if when == "equal steps" else _COMPARED:
            found = differences(records, when, what)
            margin = 0.0 if what == _LOSS else _COMPARED[what][1]
            for row in rows:
                way, _, alpha = row["tokens"].rpartition(" ")
                one = found.get((when, way, float(alpha))) if way in WAYS else None
                row[f"{what}, {when}"] = "" if one is None else f"{one!r}, {DIFFERENCE[relation(one, margin=margin)]}"
    title = "Networks on tempered token frequencies minus their twins, on held-out text; 95% intervals over seeds"
    yield Table(title, pl.DataFrame(rows))


FREQUENCIES = Section(
    question="What does a flatter distribution of tokens change?",
    command="tangentlens study frequency",
    figures=(frequency_effects,),
    tables=(frequency_table,),
    rows=None,
)
