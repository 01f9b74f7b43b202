import pytest
import torch

from tangentlens import InputError
from tangentlens.models.small import small_model, weight_hash
from tiny import tiny_batch, tiny_model


def test_decoder_and_encoder_are_of_one_size_and_differ_in_what_they_see():
    models = {kind: tiny_model(kind).eval() for kind in ("decoder", "encoder")}
    assert len({sum(p.numel() for p in model.parameters()) for model in models.values()}) == 1
    ids = tiny_batch()["input_ids"]
    changed = ids.clone()
    changed[:, -1] = 3
    for kind, sees_ahead in (("decoder", False), ("encoder", True)):
        with torch.no_grad():
            before, after = (models[kind](input_ids=x).logits[:, 0] for x in (ids, changed))
        assert torch.equal(before, after) != sees_ahead


def test_the_seed_makes_the_weights_and_the_global_random_state_stays():
    state = torch.random.get_rng_state()
    hashes = [weight_hash(tiny_model(seed=seed)) for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_hash_sees_one_changed_weight():
    model = tiny_model()
    before = weight_hash(model)
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-6
    assert weight_hash(model) != before


def test_a_width_that_is_no_multiple_of_a_head_is_refused():
    with pytest.raises(InputError, match="multiple of 32"):
        small_model("decoder", 64, 2, 40, 16, 1, 0)
