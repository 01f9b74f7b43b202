"""Train a small model with two threads, without a lens and with one, which measures two sites at once."""

import sys

import torch
import transformers

from tangentlens import Lens
from tangentlens.engine.side_by_side import at_once


def train(*run):
    """Return the losses and the weights."""
    torch.manual_seed(0)
    # Large enough for products to be shared between threads.
    shape = {"n_layer": 2, "n_embd": 128, "n_head": 2, "n_positions": 32, "vocab_size": 512}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **shape))
    optimizer = torch.optim.AdamW(model.parameters())
    lens = Lens(model, rank=8, every=1, run=run[0]).start() if run else None
    losses = []
    for _ in range(3):
        tokens = torch.randint(2, 512, (16, 32))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if lens is not None:
            lens.step(loss)
        losses.append(loss.item())
    return losses, torch.cat([weight.detach().flatten() for weight in model.parameters()])


if __name__ == "__main__":
    assert at_once(torch.device("cpu")) == 2, torch.get_num_threads()
    losses, weights = train()
    watched, watched_weights = train(sys.argv[1])
    assert watched == losses
    assert torch.equal(watched_weights, weights)
    sys.stdout.write("the same")
