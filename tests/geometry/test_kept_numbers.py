import polars as pl
import pytest

import tangentlens as tl
from kept import check_numbers, check_words
from rows import site_rows
from tangentlens.geometry.measures import MEASURES, Cloud, measure_all

ROWS, *_ = site_rows()
METHODS = ("twonn", "twonn-linear", "gride", "mle")


@pytest.mark.parametrize("massive", [0, 5])
def test_measures(massive):
    activations, _, sequences, tokens, _ = site_rows(massive=massive)
    cloud = Cloud(activations.float(), tokens, sequences)
    rows = []
    for name, one in {"all": cloud, "without_massive": cloud.without_massive()}.items():
        values = measure_all(one)
        for measure in MEASURES:
            found = measure.estimate(one) if measure.estimate else None
            ends = found.interval.columns() | {"n": found.n} if hasattr(found, "interval") else {}
            rows.append({"rows": name, "measure": measure.key, "single": values[measure.key], **ends})
    check_numbers(f"measures-{massive}-massive", pl.DataFrame(rows, infer_schema_length=None))


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_dimensions(noise):
    manifold = tl.manifolds.torus(900, dimension=2, dim=12, noise=noise)
    rows, said = [], []
    for method in METHODS:
        found = tl.intrinsic_dimension(manifold.rows, method=method)
        entropy = tl.manifold_entropy(manifold.rows)
        said += [method, repr(found), found.trouble]
        rows.append(
            {
                "method": method,
                "scale": 0,
                "value": found.value,
                "ci_low": found.ci_low,
                "ci_high": found.ci_high,
                "n_used": found.n_used,
                "misfit": found.misfit,
                "stable": float(found.stable),
                "entropy": entropy.value,
            }
        )
        rows += [
            {"method": method, "scale": one.k, "value": one.value, "n_used": one.n, "misfit": one.distance}
            for one in found.scales
        ]
    check_numbers(f"dimensions-noise-{noise}", pl.DataFrame(rows, infer_schema_length=None))
    check_words(f"dimensions-noise-{noise}", "\n".join(said))


@pytest.mark.parametrize("kind", ["torus", "rows"])
def test_local_geometry(kind):
    x = tl.manifolds.torus(900, dimension=2, dim=8, noise=0.01).rows if kind == "torus" else ROWS
    found = tl.local_geometry(x, n_anchors=48, k=48, dimension=3 if kind == "rows" else None)
    numbers = {
        "rms_curvature": found.rms_curvature,
        "mean_curvature": found.mean_curvature,
        "normal_share": found.normal_share,
        "visible_curvature": found.visible_curvature,
        "visible where rows far away weigh less": found.visible(1 / (1 + found.coordinates.square().sum(dim=2))),
        "the same over visible_curvature": found.visible_ratio(1 / (1 + found.coordinates.square().sum(dim=2))),
        **{f"principal curvature {i}": one for i, one in enumerate(found.principal_curvatures)},
        **{f"curvature of patches of {one.k}": one.rms_curvature for one in found.scales},
    }
    rows = [{"quantity": name, **one.columns()} for name, one in numbers.items()]
    rows += [{"quantity": f"patches of {one.k}", "value": one.radius, "ci_low": one.gap} for one in found.scales]
    rows += [{"quantity": "noise", "value": found.noise, "ci_low": found.radius}]
    check_numbers(f"local-geometry-{kind}", pl.DataFrame(rows, infer_schema_length=None))
    check_words(f"local-geometry-{kind}", repr(found))
