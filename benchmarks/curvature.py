"""Where curvature breaks down, over noise, dimension and sample size; and what it costs over the bare products.

Spheres of radius 1 in R^100. `curvature.py FILE.html` also draws the first part.
"""

import sys
import time

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from tangentlens import local_geometry, manifolds
from tangentlens.geometry.curvature.local_geometry import LocalGeometry

DIMENSIONS, SIZES, NOISES = (2, 3, 4, 5), (1000, 4000, 16000), (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
ANCHORS, WIDTH = 64, 100


def judged() -> dict[tuple[int, int], list]:
    """The estimate at every noise, by dimension and number of rows."""
    found: dict[tuple[int, int], list] = {}
    for m in DIMENSIONS:
        for n in SIZES:
            for noise in NOISES:
                made = manifolds.sphere(n, m, WIDTH, noise=noise)
                one = local_geometry(made.rows, ANCHORS, dimension=m)
                found.setdefault((m, n), []).append(one)
                value, mark = one.rms_curvature, "" if one.resolved else "  not resolved"
                print(f"m {m}  n {n:<6} noise {noise:<6} curvature {value}  k {one.k}{mark}", flush=True)
    return found


def draw(found: dict[tuple[int, int], list], path: str) -> None:
    plot = make_subplots(1, len(DIMENSIONS), shared_yaxes=True, subplot_titles=[f"dimension {m}" for m in DIMENSIONS])
    colours = dict(zip(SIZES, ("#E69F00", "#0072B2", "#D55E00"), strict=True))
    for (m, n), values in found.items():
        curvature = [one.rms_curvature for one in values]
        trace = go.Scatter(
            # Side by side.
            x=[place + 0.15 * (SIZES.index(n) - 1) for place in range(len(NOISES))],
            y=[one.value for one in curvature],
            error_y={
                "array": [one.ci_high - one.value for one in curvature],
                "arrayminus": [one.value - one.ci_low for one in curvature],
                "thickness": 1.2,
            },
            name=f"{n:,} rows",
            legendgroup=str(n),
            showlegend=m == DIMENSIONS[0],
            line={"color": colours[n]},
            marker={
                "size": [8 if one.resolved else 11 for one in values],
                "symbol": ["circle" if one.resolved else "x" for one in values],
            },
        )
        plot.add_trace(trace, row=1, col=DIMENSIONS.index(m) + 1)
    plot.add_hline(y=1, line={"color": "#000000", "dash": "dot", "width": 1})
    plot.update_yaxes(range=[0, 2])
    plot.update_yaxes(title_text="curvature found (truth: 1)", row=1, col=1)
    plot.update_xaxes(
        title_text="noise", tickvals=list(range(len(NOISES))), ticktext=[f"{noise:g}" for noise in NOISES]
    )
    plot.update_layout(template="plotly_white", height=380, width=1100, margin={"t": 50, "b": 50})
    plot.write_html(path, config={"displayModeBar": False})


def all_of(found: LocalGeometry) -> None:
    """Curvatures are computed when they are asked for."""
    _ = (
        found.rms_curvature,
        found.mean_curvature,
        found.principal_curvatures,
        found.visible_curvature,
        found.normal_share,
    )


def cost() -> None:
    rows = manifolds.sphere(20_000, 5, 768, noise=0.01).rows.float()
    patches = torch.randn(512, 256, 768)
    times = {}
    for name, work in {
        "bare products of the candidates": lambda: patches @ patches.transpose(1, 2),
        "local_geometry, 512 anchors, k = 128": lambda: all_of(local_geometry(rows, 512, k=128, dimension=5)),
        "local_geometry, 128 anchors, six sizes": lambda: all_of(local_geometry(rows, 128, dimension=5)),
    }.items():
        start = time.perf_counter()
        work()
        times[name] = time.perf_counter() - start
        print(f"{name:<40} {times[name] / next(iter(times.values())):.1f} ({times[name]:.1f} s)", flush=True)


if __name__ == "__main__":
    cost()
    made = judged()
    if sys.argv[1:]:
        draw(made, sys.argv[1])
