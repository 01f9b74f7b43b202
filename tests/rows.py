"""Activations and gradients that look like those of a trained site: concepts, frequent tokens, a few loud rows."""

import torch


def site_rows(n=720, d=16, n_sequences=48, massive=0, seed=0):
    """Activations, gradients, sequences, tokens and targets, the same on every machine."""
    make = torch.Generator().manual_seed(seed)
    draw = {"generator": make, "dtype": torch.float64}
    codes = torch.rand(n, 6, **draw).square() * (torch.rand(n, 6, **draw) < 0.5)
    concepts = torch.randn(6, d, **draw)
    spread = torch.linspace(1.0, 0.2, d, dtype=torch.float64)
    activations = codes @ concepts + 0.3 * torch.randn(n, d, **draw) * spread + 0.5
    loud = 1 + 4 * (torch.rand(n, 1, **draw) < 0.05)
    gradients = loud * ((codes * torch.randn(n, 6, **draw)) @ concepts + 0.5 * torch.randn(n, d, **draw))
    sequences = torch.arange(n) * n_sequences // n
    tokens, targets = (torch.randn(2, n, **draw).abs() * 9).long()
    activations[:massive] *= 60
    # A repeated row, and a token without a gradient.
    activations[-1], gradients[-2] = activations[-3], 0
    return activations, gradients, sequences, tokens, targets
