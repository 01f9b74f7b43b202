import torch

from tangentlens.training.objectives import IGNORED, draw, masked_batch

SEQUENCES = torch.arange(50 * 20).reshape(50, 20)


def test_a_step_draws_the_same_whenever_it_is_asked_for():
    (a, _), (b, _), (c, _), (d, _) = (draw(SEQUENCES, 8, *at) for at in ((0, 3), (0, 3), (0, 4), (1, 3)))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not torch.equal(a, d)
    assert len(a.unique(dim=0)) == 8


def test_masked_positions_are_the_ones_to_predict():
    batch = masked_batch(SEQUENCES, mask=-7, rate=0.3, generator=torch.Generator().manual_seed(0))
    hidden = batch["input_ids"] == -7
    assert 0.2 < hidden.float().mean() < 0.4
    assert torch.equal(batch["labels"][hidden], SEQUENCES[hidden])
    assert (batch["labels"][~hidden] == IGNORED).all()
    assert torch.equal(batch["input_ids"][~hidden], SEQUENCES[~hidden])
