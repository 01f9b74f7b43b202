import pytest
import torch

from tangentlens.capture.backward import gradients
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tiny import tiny_batch, tiny_model


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_gradients_of_activations_are_the_same_without_those_of_weights(kind):
    model, batch = tiny_model(kind), tiny_batch()
    frozen = model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    sites, objective = find_sites(model, ["embed", "resid", "mlp"]), "masked" if kind == "encoder" else "causal"
    held = []
    with model.register_forward_hook(lambda *_: held.append(sum(one.requires_grad for one in model.parameters()))):
        rows, _ = gradients(model, [batch], sites, objective)
    assert held == [1]
    assert [weight is frozen for weight in model.parameters() if not weight.requires_grad] == [True]
    with Capture(model, sites, objective=objective) as capture:
        model(**batch).loss.backward()
    for site in sites:
        assert torch.equal(rows[site.name].gradients, capture.rows(site).gradients)
