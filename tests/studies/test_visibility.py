from dataclasses import replace

import pytest
import torch

from tangentlens import InputError, local_geometry, manifolds
from tangentlens.capture.sites import find_sites
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.windows import Text
from tangentlens.models.load import load_model
from tangentlens.report.reading import read_runs
from tangentlens.runs.records import KEY, Record, as_frame
from tangentlens.runs.run import create_run
from tangentlens.runs.vocabulary import NULL, P_VALUE_OF, derived
from tangentlens.studies.visibility import model as in_models
from tangentlens.studies.visibility import run_visibility
from tangentlens.studies.visibility.model import one_per_type, visibility_records
from tangentlens.studies.visibility.plan import ALPHAS, CORRELATION, FELL, RATIO, VISIBLE, VisibilityPlan
from tangentlens.studies.visibility.section import in_model
from tangentlens.studies.visibility.synthetic import SYNTHETIC, analytic
from tiny import save_tiny

SMALL = {"types": 300, "length": 16, "anchors": 32, "sites": ("resid.1", "resid.2")}


def quiet(*_):
    pass


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    return run_visibility(VisibilityPlan(anchors=96), tmp_path_factory.mktemp("visibility") / "run", quiet)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("visibility") / "tiny", specials=True))


def over_alpha(run, metric, name):
    found = run.records.filter(metric=metric, model=name).sort("alpha")
    assert found["alpha"].to_list() == list(ALPHAS)
    return found


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_visible_curvature_of_manifolds_is_the_analytic_one_and_falls(name, synthetic):
    for metric, tolerance in ((VISIBLE, 0.2), (RATIO, 0.05)):
        found, law = (over_alpha(synthetic, kind, name) for kind in (metric, f"analytic/{metric}"))
        assert found["value"].to_list() == pytest.approx(law["value"].to_list(), rel=tolerance)
    ratio = over_alpha(synthetic, RATIO, name)
    assert ratio["value"].diff().drop_nulls().max() < 0
    assert ratio["ci_high"][-1] < 1
    held = synthetic.records.filter(metric=FELL, model=name)
    assert held.select("value", "n").rows() == [(1.0, 20)]


def test_the_analytic_curve_is_the_definition_on_a_fine_patch():
    """Types on a grid of directions at the radii of the formula, with the true form of a sphere."""
    made = manifolds.sphere(4000, 2, 6)
    found = local_geometry(made.rows, n_anchors=16, k=200, dimension=2)
    place = (torch.arange(200).double() + 0.5) / 200
    for alpha in ALPHAS:
        weights = torch.arange(1, 201).double() ** -alpha
        bent = spread = 0.0
        for radius in found.coordinates[:, -1].norm(dim=1):
            for weight, rho in zip(weights, radius * place.sqrt(), strict=True):
                # II(u, u) = |u|^2 outward on the unit sphere.
                bent += float(weight * (rho**2 / 2) ** 2)
                spread += float(weight * rho**2)
        assert analytic(made, found, alpha) == pytest.approx(bent / spread)


def test_a_model_is_looked_at_one_occurrence_a_type(model):
    loaded, text = load_model(model), Text()
    sites = find_sites(loaded.model, ["resid.1"])
    counts = TokenCounts.of_text(text, loaded.encode, loaded.vocabulary)
    types, rows = one_per_type(VisibilityPlan(model, **SMALL), loaded, sites, text, counts)
    assert len(types) == len(types.unique()) == len(rows["resid.1"])
    assert not set(types.tolist()) & loaded.special_ids
    assert len(types) > 200
    embedded = one_per_type(VisibilityPlan(model, **SMALL), loaded, find_sites(loaded.model, ["embed"]), text, counts)
    torch.testing.assert_close(embedded[1]["embed"], loaded.model.get_input_embeddings().weight[embedded[0]].detach())


def test_a_model_has_the_curve_at_every_site_and_goes_on_where_it_stopped(model, tmp_path, monkeypatch):
    monkeypatch.setattr(in_models, "_PERMUTATIONS", 99)
    plan = VisibilityPlan(model, dimension=2, **SMALL)
    whole = run_visibility(plan, tmp_path / "whole", quiet)

    def stop(progress):
        if progress.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_visibility(plan, tmp_path / "stopped", stop)
    again = run_visibility(plan, tmp_path / "stopped", quiet)
    expected, found = (run.records.drop("run").sort(KEY) for run in (whole, again))
    assert found.equals(expected)
    assert not found.select(KEY).is_duplicated().any()
    for site in plan.sites:
        for centres in ("corpus", "types"):
            ratio = found.filter(variant=centres, metric=RATIO, site=site)
            assert ratio.height == len(ALPHAS)
            # Of what may be flat there is no ratio.
            assert ratio.filter(alpha=0.0)["value"].fill_nan(1).item() == pytest.approx(1)
    assert found.filter(metric=CORRELATION)["value"].is_between(-1, 1).all()
    assert whole.manifest["counts"]["types"] > 200
    assert TokenCounts.load(whole).counts.sum() == whole.manifest["counts"]["tokens"]


def test_frequency_that_falls_around_one_place_falls_with_the_distance_and_dealt_out_it_does_not(monkeypatch):
    monkeypatch.setattr(in_models, "_PERMUTATIONS", 199)
    made = manifolds.quadratic(3000, 2, 8, seed=1)
    far = (made.rows - made.rows[made.curvature.argmax()]).norm(dim=1).argsort().argsort().double() + 1
    dealt = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    found = []
    for frequency in (1e6 / far, 1e6 / far[dealt]):
        plan = VisibilityPlan(dimension=2, anchors=200)
        records = as_frame("run", visibility_records(Record(model="bowl", site="resid.0"), made.rows, frequency, plan))
        found.append(records.filter(metric=CORRELATION, variant="corpus").row(0, named=True))
    assert found[0]["ci_high"] < 0
    assert found[1]["ci_low"] < 0 < found[1]["ci_high"]


def test_what_cannot_be_looked_at_is_refused(model, tmp_path):
    (tmp_path / "short.txt").write_text("a few words")
    with pytest.raises(InputError, match="at least 64 token types in windows of 16 tokens, but holds 0"):
        run_visibility(VisibilityPlan(model, text=str(tmp_path / "short.txt"), **SMALL), tmp_path / "run", quiet)
    told = run_visibility(VisibilityPlan(model, dimension=12, **SMALL), tmp_path / "other", quiet).records
    assert told.filter(metric="unmeasured")["site"].to_list() == list(SMALL["sites"])
    assert told["detail"].str.contains("curvature in dimension 12 needs at least 364 distinct rows").all()
    with pytest.raises(InputError, match=r"dimension must be below the width \d+ of tiny, but is 5000"):
        run_visibility(VisibilityPlan(model, dimension=5000, **SMALL), tmp_path / "wide", quiet)
    with pytest.raises(InputError, match="device must be auto or one that PyTorch can compute on here, but 'nope'"):
        run_visibility(VisibilityPlan(model, device="nope", **SMALL), tmp_path / "nowhere", quiet)
    with pytest.raises(InputError, match="sites, dimension must come with a model"):
        run_visibility(VisibilityPlan(dimension=2, sites=("embed",)), tmp_path / "third", quiet)


def test_a_report_says_where_frequencies_hide_curvature(tmp_path):
    run = create_run(tmp_path / "run", {}, "visibility")
    records = []
    for site, ratio, p_value in (("resid.0", 0.5, 0.001), ("resid.1", 2.0, 0.001), ("resid.2", 0.9, 0.5)):
        here = Record(model="m", quantity="activation", site=site, depth=0.0, variant="corpus", alpha=1.0)
        values = {RATIO: ratio, derived(NULL, RATIO): 1.0, derived(P_VALUE_OF, RATIO): p_value}
        records += [
            replace(here, metric=metric, value=value, ci_low=value - 0.2, ci_high=value + 0.2)
            for metric, value in values.items()
        ]
    run.write("part", records)
    (told,) = in_model(read_runs([run]))
    assert "hide curvature at resid.0 and reveal more of it at resid.1." in told
