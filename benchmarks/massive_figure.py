"""The figure of docs/massive.md: anisotropy over depth of all rows, and without massive rows at two thresholds.

`massive_figure.py RUN RUN_3 OUT.html`: two profiles of one model, the second made with `--massive 3`.
"""

import sys

import plotly.graph_objects as go

import tangentlens as tl

STYLES = (("#D55E00", "solid"), ("#E69F00", "dash"), ("#0072B2", "dot"))


def over_depth(run: tl.Run, rows: str) -> list[float]:
    """Return the anisotropy at each site; where a site has no massive rows, that of all rows."""
    records = run.records.filter(metric="anisotropy", quantity="activation")
    values = dict(records.filter(rows="all").select("site", "value").iter_rows())
    return list((values | dict(records.filter(rows=rows).select("site", "value").iter_rows())).values())


def label(run: tl.Run) -> str:
    threshold = run.records.filter(metric="massive_threshold")["value"].max() or 10
    most = run.records.filter(metric="massive_rows", rows="all")["value"].max()
    return f"without tokens longer than {threshold:g} times the median (up to {most:.0f} of 4,096)"


def main(run: tl.Run, at_3: tl.Run, out: str) -> None:
    lines = {
        "all tokens": over_depth(run, "all"),
        label(run): over_depth(run, "without_massive"),
        label(at_3): over_depth(at_3, "without_massive"),
    }
    plot = go.Figure()
    for (name, values), (colour, dash) in zip(lines.items(), STYLES, strict=True):
        style = {"line": {"color": colour, "dash": dash, "width": 2.5}, "marker": {"size": 6}}
        plot.add_trace(go.Scatter(y=values, name=name, mode="lines+markers", **style))
    plot.update_layout(
        template="plotly_white",
        width=1000,
        height=480,
        title={"text": "Less than 3% of the tokens make the anisotropy of SmolLM2-135M", "x": 0.5},
        xaxis_title="residual stream after block …",
        yaxis_title="anisotropy",
        legend={"orientation": "h", "y": -0.2},
        font={"family": "system-ui, sans-serif", "size": 14},
    )
    plot.write_html(out, config={"displayModeBar": False})


if __name__ == "__main__":
    main(*(tl.open_run(path) for path in sys.argv[1:3]), sys.argv[3])
