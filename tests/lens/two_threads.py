"""Train a small model with two threads, without a lens and with one, which measures two sites at once."""

import sys
from functools import partial

import torch
import transformers

from loops import assert_same_weights, train
from tangentlens import Lens
from tangentlens.engine.side_by_side import at_once
from tiny import tiny_batch


def model():
    torch.manual_seed(0)
    # Large enough for products to be shared between threads.
    shape = {"n_layer": 2, "n_embd": 128, "n_head": 2, "n_positions": 32, "vocab_size": 512}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **shape))


if __name__ == "__main__":
    assert at_once(torch.device("cpu")) == 2, torch.get_num_threads()
    alone, watched, batches = model(), model(), partial(tiny_batch, batch=16, length=32)
    # Dropout draws the same numbers, unless the lens draws some.
    torch.manual_seed(1)
    losses = train(alone, steps=3, batches=batches)
    torch.manual_seed(1)
    with Lens(watched, rank=8, every=1, run=sys.argv[1]) as lens:
        assert train(watched, lens, steps=3, batches=batches) == losses
    assert_same_weights(alone, watched)
    sys.stdout.write("the same")
