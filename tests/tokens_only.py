"""Batches of tokens and nothing else, for what counts and matches them."""

import torch

from tangentlens.capture.batch import Batch


def batch(n, hidden=0):
    """A batch of `n` tokens of which the first `hidden` do not count."""
    tokens = torch.arange(n)[None]
    return Batch(
        tokens, tokens, torch.zeros_like(tokens), torch.zeros_like(tokens), keep=tokens >= hidden, whole=hidden == 0
    )
