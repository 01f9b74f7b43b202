import pytest
import torch

from tangentlens.capture.sample import TokenSample
from tokens_only import batch


def sampled(sizes, max_tokens, stack="encoder"):
    """Batches as they come, each used, and which of their tokens are in the sample in the end."""
    sample, batches = TokenSample(max_tokens), []
    for seed, size in enumerate(sizes):
        batches.append(sample.draw(batch(size), stack, seed))
        sample.count(batches[-1], stack)
    return batches, [sample.holds(one, stack) for one in batches]


@pytest.mark.parametrize("sizes", [[50], [10, 10, 30], [3, 40, 7], [20, 20]])
def test_the_sample_has_its_size_however_the_tokens_come(sizes):
    _, held = sampled(sizes, max_tokens=20)
    assert sum(int(one.sum()) for one in held) == 20


def test_fewer_tokens_than_asked_for_are_all_kept():
    batches, held = sampled([5, 6], max_tokens=20)
    assert [int(one.sum()) for one in held] == [5, 6]
    assert all(bool(one.keep.all()) for one in batches)


def test_every_token_has_the_same_chance():
    counts = torch.zeros(30)
    for trial in range(400):
        sample = TokenSample(6)
        batches = [sample.draw(batch(10), "encoder", 3 * trial + part) for part in range(3)]
        for one in batches:
            sample.count(one, "encoder")
        for part, one in enumerate(batches):
            chosen = one.tokens[one.keep][sample.holds(one, "encoder")]
            counts[10 * part + chosen] += 1
    # A fifth of 400, give or take four standard deviations.
    assert (counts - 80).abs().max() < 32


def test_a_batch_that_is_never_used_takes_no_room():
    sample = TokenSample(8)
    sample.draw(batch(8), "encoder", 0)
    used = sample.draw(batch(8), "encoder", 1)
    sample.count(used, "encoder")
    assert int(sample.holds(used, "encoder").sum()) == 8


def test_tokens_that_do_not_count_are_never_drawn_and_stacks_are_apart():
    sample = TokenSample(4)
    encoder, decoder = (sample.draw(batch(10, hidden=5), stack, 0) for stack in ("encoder", "decoder"))
    for one, stack in ((encoder, "encoder"), (decoder, "decoder")):
        sample.count(one, stack)
        assert bool((one.tokens[one.keep] >= 5).all())
        assert int(sample.holds(one, stack).sum()) == 4


def test_the_training_has_its_random_numbers_for_itself():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    sampled([50], max_tokens=20)
    assert torch.equal(torch.random.get_rng_state(), before)
