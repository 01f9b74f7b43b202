"""Checkpoints of a short training, as a Trainer leaves them, for tests of sweeps."""

import shutil

import polars as pl
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tangentlens import Lens
from tangentlens.corpora.text import builtin_text
from tangentlens.lens.measures import WATCHED
from tangentlens.runs.records import KEY
from tangentlens.studies.subjects import Backward, model_subject
from tangentlens.studies.sweep import SweepPlan
from tiny import save_tiny

STEPS = (0, 4, 8, 12)
SITES = ("resid.1", "resid.2")
SETTINGS = {"sites": SITES, "rank": 4, "tokens": 512, "length": 32, "device": "cpu", "controls": WATCHED}


def sweep_plan(folder, **changed):
    text = {"text": str(folder.parent / "text.txt")}
    return SweepPlan(**{"models": (str(folder),), **SETTINGS, **text, **changed})


def train_with_lens(folder, run):
    """Train a tiny decoder on the tokens that a sweep will see, and keep its weights at some steps.

    At each of these steps a lens that begins there measures the gradients, as a sweep does: without an earlier step,
    half of the sequences fit the proxy.
    """
    save_tiny(folder / "start")
    (folder.parent / "text.txt").write_text(builtin_text()[:40_000], encoding="utf-8")
    subject = model_subject(str(folder / "start"), Backward.of(sweep_plan(folder)), lambda progress: None)
    model = AutoModelForCausalLM.from_pretrained(folder / "start")
    whole = {name: torch.cat([batch[name] for batch in subject.batches]) for name in ("input_ids", "labels")}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS[-1] + 1):
        lens = None
        if step in STEPS:
            model.save_pretrained(folder / f"checkpoint-{step}")
            AutoTokenizer.from_pretrained(folder / "start").save_pretrained(folder / f"checkpoint-{step}")
            settings = {"rank": SETTINGS["rank"], "exclude": subject.exclude, "counts": subject.counts}
            lens = Lens(
                model, SITES, every=[step], run=run / str(step), name="model", step=step, tokens_seen=0, **settings
            ).start()
        model(**whole).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if lens is not None:
            lens.step()
            lens.close()
    shutil.rmtree(folder / "start")
    return folder


def assert_same(records, expected):
    """The same numbers under the same keys. Where memory lies decides on the last digits."""
    assert records.select(KEY).is_duplicated().sum() == 0
    one, other = (frame.sort(KEY) for frame in (records, expected))
    exact = [*KEY, "ci_over", "n", "detail"]
    assert one.select(exact).equals(other.select(exact), null_equal=True)
    for column in ("value", "ci_low", "ci_high"):
        same = (torch.tensor(frame[column].cast(pl.Float64).fill_null(torch.nan).to_numpy()) for frame in (one, other))
        torch.testing.assert_close(*same, rtol=1e-12, atol=1e-14, equal_nan=True)


def change_weights(checkpoint, change):
    """Replace the weights of a checkpoint by what `change` makes of them."""
    path = checkpoint / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
