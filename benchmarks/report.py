"""How large the report of a long sweep is, and how long it takes to write and to draw its first figure.

A sweep over three tiny checkpoints is measured. Its records are the pattern for those of a model with 48 sites and 154
checkpoints, as many as Pythia has: every number is repeated for each site and step, with other values.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch
from choreographer import Browser
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tangentlens.corpora.text import builtin_text
from tangentlens.corpora.tokens import train_tokenizer
from tangentlens.report.page import write_report
from tangentlens.runs.run import Run, create_run, open_run
from tangentlens.studies import SECTIONS
from tangentlens.studies.sweep import SweepPlan, run_sweep

SITES, STEPS = 48, [0, *(2**power for power in range(10)), *range(1000, 144_000, 1000)]
# What the page tells of itself: when it began, and when its first figure had been drawn.
FIRST = """new Promise((done) => {
  const look = () => document.querySelector(".plot .main-svg") ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 5);
  look();
})"""  # noqa: E501


def pattern(folder: Path) -> pl.DataFrame:
    """The records of a sweep over three checkpoints of a tiny decoder, everything measured that a sweep measures."""
    text = builtin_text()[:200_000]
    tokenizer = Tokenizer.from_str(train_tokenizer(text, 400).to_str())
    config = LlamaConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    for step in range(3):
        torch.manual_seed(step)
        LlamaForCausalLM(config).save_pretrained(folder / "model" / f"step{step}")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "model")
    plan = SweepPlan((str(folder / "model"),), rank=4, tokens=1024, length=32, device="cpu")
    return run_sweep(plan, folder / "sweep").records


def planted(folder: Path, records: pl.DataFrame, sites: int = SITES, steps: list[int] = STEPS) -> Run:
    """A run with the records of the last checkpoint, at as many sites and steps; no two values are alike."""
    last = records.filter(pl.col("step") == pl.col("step").max())
    at_site = last.filter(pl.col("site") == "resid.1").drop("site", "depth")
    places = pl.DataFrame(
        {"site": [f"resid.{i}" for i in range(sites)], "depth": [i / max(sites - 1, 1) for i in range(sites)]}
    )
    whole = last.filter(~pl.col("site").str.starts_with("resid"))
    one = pl.concat([at_site.join(places, how="cross").select(last.columns), whole])
    run = create_run(folder / "long-sweep", {"sites": sites, "steps": len(steps)}, "sweep")
    draw = np.random.default_rng(0)
    for step in steps:
        factor = pl.Series(np.exp(0.1 * draw.standard_normal(one.height)))
        # What was between 0 and 1, such as a share or a p-value, stays there.
        most = pl.when(pl.col("value") <= 1).then(1.0).otherwise(float("inf"))
        numbers = [
            pl.min_horizontal(pl.col(name) * factor, most).alias(name) for name in ("value", "ci_low", "ci_high")
        ]
        frame = one.with_columns(*numbers, step=pl.lit(step, pl.Int64), revision=pl.lit(f"step{step}"))
        frame.write_parquet(run.path / "records" / f"step{step}.parquet")
    return run


async def first_figure(page: Path) -> tuple[float, float]:
    """Seconds from the beginning of the page to its first figure, as the page tells, and those of its main thread.

    The second number does not depend on what else the machine does.
    """
    async with Browser(headless=True, enable_sandbox=False) as browser:
        tab = await browser.create_tab("about:blank")
        await tab.send_command("Performance.enable", {"timeDomain": "threadTicks"})
        await tab.send_command("Page.navigate", {"url": page.as_uri()})
        asked = {"expression": FIRST, "awaitPromise": True, "returnByValue": True}
        # The first answers may be of the empty page before.
        for _ in range(100):
            told = (await tab.send_command("Runtime.evaluate", asked)).get("result", {})
            if "value" in told.get("result", {}):
                metrics = (await tab.send_command("Performance.getMetrics"))["result"]["metrics"]
                busy = next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
                return told["result"]["value"] / 1000, busy
            await asyncio.sleep(0.05)
    raise RuntimeError(f"no figure was drawn: {told}")


def measured(run: Run, page: Path) -> None:
    """Write the report of a run and print how long that takes, how large it is and when its first figure is there."""
    print(f"{run.name}: {run.records.height:,} records")
    start = time.perf_counter()
    write_report([run], page, SECTIONS)
    print(f"  written in {time.perf_counter() - start:.1f} s, {page.stat().st_size / 1e6:.1f} MB")
    for wall, busy in (asyncio.run(first_figure(page)) for _ in range(3)):
        print(f"  first figure after {wall:.2f} s, of which the page worked {busy:.2f} s")


def main() -> None:
    sites = int(sys.argv[1]) if len(sys.argv) > 1 else SITES
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        records = pattern(folder)
        measured(open_run(folder / "sweep"), folder / "short.html")
        measured(planted(folder, records, sites), folder / "long.html")


if __name__ == "__main__":
    main()
