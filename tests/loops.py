"""What tests of training loops share: data, the plain reference loop, and how two trainings and two runs compare."""

import polars as pl
import torch

from tangentlens import Lens, open_run
from tiny import tiny_batch, tiny_model

MATRICES = ["embed", "model.layers.1.mlp.down_proj"]
# Half of the text is a token that batches do not hold, so theirs are in two bins of four.
COUNTS = torch.arange(64).index_fill(0, torch.tensor(0), 2016)
SETTINGS = {"sites": ["resid.0", "resid.2", "mlp.1"], "rank": 4, "every": 2, "counts": COUNTS, "updates": MATRICES}
STEPS, BATCH, LENGTH = 5, 8, 12
PROBE = torch.randint(2, 64, (12, LENGTH), generator=torch.Generator().manual_seed(99))
MOVED = ("share", "distance", "shift", "growth", "growth_inside", "growth_outside", "growth_log_ratio")


class Sequences(torch.utils.data.Dataset):
    """Token sequences as Hugging Face datasets give them."""

    def __init__(self, n=STEPS * BATCH):
        self.tokens = torch.randint(2, 64, (n, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


def batches(size=BATCH):
    tokens = Sequences().tokens
    return [{"input_ids": part, "labels": part} for part in tokens.split(size)]


def train(model, lens=None, steps=4, first=0, optimizer=None, batches=tiny_batch):
    """A few steps of a model, from step `first` on, with a lens if there is one; the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2) if optimizer is None else optimizer
    losses = []
    for step in range(first, first + steps):
        loss = model(**batches(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if lens is not None:
            lens.step(loss)
        losses.append(loss.item())
    return losses


def plain(run=None, model=None, clip=None, **settings):
    """The plain loop, in full precision, one batch a step; with a lens if there is a run."""
    model = tiny_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lens = None if run is None else Lens(model, run=run, **SETTINGS | settings).__enter__()
    for batch in batches():
        loss = model(**batch).loss
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        if lens is not None:
            lens.step(loss)
    if lens is not None:
        lens.__exit__(None, None, None)
    return model


def assert_same_weights(a, b):
    for (name, one), (_, other) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert torch.equal(one, other), name


def assert_same_numbers(a, b, rel=1e-4, metrics=("share", "token_share", "anisotropy", "rms_norm")):
    """The records of two runs agree, row by row."""
    key = ["step", "site", "quantity", "metric", "variant", "order", "freq_bin"]
    one, other = (open_run(path).records.filter(pl.col("metric").is_in(list(metrics))).sort(key) for path in (a, b))
    assert one.height > 0
    assert one.select(key).equals(other.select(key))
    for column in ("value", "ci_low", "ci_high"):
        left, right = (table[column].fill_null(0.0).to_torch() for table in (one, other))
        torch.testing.assert_close(left, right, rtol=rel, atol=rel * 1e-1, equal_nan=True)


def n_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
