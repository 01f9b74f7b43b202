"""Small things that many tests share."""

import torch

from tangentlens.models.small import small_model
from tangentlens.studies.study import Study

TINY = Study(vocabulary=300, length=16, layers=2, width=32, batch=16, steps=5, rank=4)


def tiny_model(kind="decoder", seed=0):
    return small_model(kind, vocabulary=64, layers=2, width=32, length=16, mask=1, seed=seed)


def tiny_batch(seed=0, batch=8, length=12):
    tokens = torch.randint(2, 64, (batch, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": tokens, "labels": tokens}
