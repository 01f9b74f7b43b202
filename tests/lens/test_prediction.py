"""Prediction in a training: the subspaces of one due step on the gradients of the next, by hand."""

import pytest
import torch

from tangentlens import Lens, open_run
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tiny import tiny_batch, tiny_model


def trained(path, **settings):
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    site, rows = find_sites(model, "resid.1")[0], []
    with Lens(model, ["resid.1", "resid.2"], rank=4, every=[0, 3], run=path, **settings) as lens:
        for step in range(4):
            with Capture(model, [site], objective="causal") as capture:
                loss = model(**tiny_batch(step)).loss
                loss.backward()
            rows.append(capture.rows(site))
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
    return open_run(path), rows


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("predicted") / "run", predict=True)


def test_shares_are_those_of_the_kept_subspaces_in_the_gradients_of_the_next_due_step(predicted):
    run, rows = predicted
    then, now = rows[0], rows[3]
    later = now.sequences.unique()[len(now.sequences.unique()) // 2 :]
    half = now.gradients[torch.isin(now.sequences, later)].double()
    kept = run.load_tensors("model-step-00000000")[0]
    bases = {name: kept[f"resid.1/{name}"].double() for name in ("semi_nmf", "pca")}
    bases["gradients_then"] = torch.linalg.svd(then.gradients.double(), full_matrices=False).Vh[:4].T
    records = run.records.filter(quantity="later_gradient", metric="share", site="resid.1", order=1.0)
    for name, basis in bases.items():
        expected = float((half @ basis).square().sum() / half.square().sum())
        assert records.filter(variant=name)["value"].item() == pytest.approx(expected, rel=1e-4), name
    assert records["step"].unique().to_list() == [3]
    assert set(records["variant"]) == {*bases, "gradients_now", "random"}


def test_the_mean_over_sites_is_there(predicted):
    records = predicted[0].records.filter(quantity="later_gradient", metric="share", order=1.0, variant="semi_nmf")
    sites, mean = (records.filter((records["site"] == "mean") == is_mean)["value"] for is_mean in (False, True))
    assert mean.item() == pytest.approx(sites.mean())


def test_everything_else_stays_as_it_is_without_predictions(predicted, tmp_path):
    plain, _ = trained(tmp_path / "plain")
    ours = predicted[0].records
    known = ours.filter((ours["quantity"] != "later_gradient") & (ours["variant"] != "gradients_then"))
    assert known.drop("run").equals(plain.records.drop("run"))
