from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tangentlens.capture.backward import gradients
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tangentlens.errors import InputError
from tiny import tiny_batch, tiny_model


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_gradients_of_activations_are_the_same_without_those_of_weights(kind):
    model, batch = tiny_model(kind), tiny_batch()
    frozen = model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    sites, objective = find_sites(model, ["embed", "resid", "mlp"]), "masked" if kind == "encoder" else "causal"
    held = []
    with model.register_forward_hook(lambda *_: held.append(sum(one.requires_grad for one in model.parameters()))):
        rows, _ = gradients(model, [batch], sites, objective)
    assert held == [0]
    assert [weight is frozen for weight in model.parameters() if not weight.requires_grad] == [True]
    with Capture(model, sites, objective=objective) as capture:
        model(**batch).loss.backward()
    for site in sites:
        assert torch.equal(rows[site.name].gradients, capture.rows(site).gradients)


def test_gradients_flow_back_no_further_than_the_first_site():
    model, batch = tiny_model("decoder"), tiny_batch()
    reached = []
    for name in ("resid.1", "resid.2"):
        (site,) = find_sites(model, [name])
        site.module.register_forward_hook(
            lambda module, args, output, name=name: reached.append((name, output.requires_grad)), prepend=True
        )
    rows, _ = gradients(model, [batch], find_sites(model, ["resid.2"]), "causal")
    assert reached == [("resid.1", False), ("resid.2", False)]
    with Capture(model, sites := find_sites(model, ["resid.2"]), objective="causal") as capture:
        model(**batch).loss.backward()
    assert torch.equal(rows["resid.2"].gradients, capture.rows(sites[0]).gradients)


def test_a_model_may_change_what_flows_through_a_site_in_place():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.embed = nn.Embedding(9, 4)

        def forward(self, input_ids, labels):
            hidden = self.embed(input_ids)
            for block in self.blocks:
                hidden = block(hidden)
                hidden += 1
            return SimpleNamespace(loss=hidden.square().mean())

    torch.manual_seed(0)
    model, tokens = InPlace(), torch.arange(8).reshape(2, 4)
    sites = find_sites(model, ["blocks.1"])
    rows, _ = gradients(model, [{"input_ids": tokens, "labels": tokens}], sites, "causal")
    held = rows["blocks.1"]
    assert torch.allclose(held.gradients, 2 * (held.activations + 1) / 32)


def test_a_site_that_is_not_in_the_loss_is_an_error():
    model, batch = tiny_model("decoder"), tiny_batch()
    model.spare = nn.Linear(2, 2)
    with pytest.raises(InputError, match="must be in the loss"):
        gradients(model, [batch], find_sites(model, ["spare"]), "causal")
