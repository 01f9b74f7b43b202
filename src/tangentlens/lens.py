"""The object people hold: a live model, its sites, when to look, and the run the numbers go to."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.intervals import Interval, anisotropy_replicates, share_jackknife
from tangentlens.alignment.tangent_test import ORDERS, PROXY, TangentTest, average, tangent_test
from tangentlens.capture.hooks import Capture, Rows
from tangentlens.capture.sites import find_sites
from tangentlens.geometry.anisotropy import anisotropy
from tangentlens.geometry.dimension import intrinsic_dimension
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run

MEAN_SITE = "mean"


class Lens:
    """Watches a model in training: on due steps it measures every site on the step's own activations and gradients.

    Half of the step's sequences fit the proxy, the gradients of the other half test it. Nothing about the training
    changes: hooks only read, and no global random state is touched. Between due steps there are no hooks on sites.

    Args:
        model: The model, called with token ids (as `input_ids` or first) and, to bin by target, with `labels`.
        sites: What to look at; see `find_sites`.
        rank: Rank of the proxy and of its controls.
        every: Measure when the step is a multiple of this, or in this list of steps.
        run: A directory to write to (made, or gone on with), or a `Run`.
        name: The model's name in the records.
        counts: Occurrences by token id over the corpus, to tell shares apart by token frequency.
        exclude: Token ids to leave out, such as padding or begin-of-sequence.
        seed: Of the proxy's fit.
        step: The number of the first step, if training goes on from a checkpoint.
        tokens_seen: How many tokens the model had been trained on before.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: str | Sequence[str] = "resid",
        rank: int = 16,
        every: int | Sequence[int] = 50,
        run: str | Path | Run = "runs/lens",
        *,
        name: str = "model",
        counts: Tensor | None = None,
        exclude: Iterable[int] = (),
        seed: int = 0,
        step: int = 0,
        tokens_seen: int = 0,
    ) -> None:
        self.model = model
        self.sites = find_sites(model, sites)
        self.rank = rank
        self.every = every
        self.name = name
        self.bins = None if counts is None else FrequencyBins.of(counts)
        self.exclude = tuple(exclude)
        self.seed = seed
        self.current = step
        self.tokens_seen: int | Tensor = tokens_seen
        self.run = run if isinstance(run, Run) else create_run(run, self._config())
        self._capture: Capture | None = None
        self._counter: Any = None

    def _config(self) -> dict[str, Any]:
        every = self.every if isinstance(self.every, int) else list(self.every)
        sites = [site.name for site in self.sites]
        return {"model": self.name, "sites": sites, "rank": self.rank, "every": every, "seed": self.seed}

    def __enter__(self) -> Lens:
        self._counter = self.model.register_forward_pre_hook(self._count_tokens, with_kwargs=True)
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._counter.remove()
        self._disarm()

    def due(self) -> bool:
        """Whether the current step is to be measured."""
        return self.current % self.every == 0 if isinstance(self.every, int) else self.current in self.every

    def step(self, loss: Tensor | float | None = None) -> None:
        """Say that a training step has ended. A due step is measured and written, with its loss if given."""
        if self._capture is not None:
            capture = self._capture
            self._disarm()
            self._measure(capture, loss)
        self.current += 1
        self._arm()

    def _arm(self) -> None:
        if self.due():
            self._capture = Capture(self.model, self.sites, self.exclude).__enter__()

    def _disarm(self) -> None:
        if self._capture is not None:
            self._capture.__exit__(None, None, None)
            self._capture = None

    def _count_tokens(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tokens = kwargs.get("input_ids", args[0] if args else None)
        if torch.is_grad_enabled() and isinstance(tokens, Tensor):
            mask = kwargs.get("attention_mask")
            # A sum stays on the device: no step waits for it.
            self.tokens_seen = self.tokens_seen + (tokens.numel() if mask is None else mask.sum())

    @torch.no_grad()
    def _measure(self, capture: Capture, loss: Tensor | float | None) -> None:
        part = f"{self.name}-step-{self.current:08d}"
        about = Record(model=self.name, step=self.current, tokens_seen=int(self.tokens_seen), seed=self.seed)
        records = [] if loss is None else [replace(about, quantity="loss", metric="loss", value=float(loss))]
        tests: dict[str, TangentTest] = {}
        spreads: list[Tensor] = []
        for site in self.sites:
            rows = capture.rows(site)
            here = replace(about, site=site.name, depth=site.depth)
            trouble = _trouble(rows, self.rank)
            if trouble:
                warnings.warn(f"{site.name} was not measured at step {self.current}: {trouble}", stacklevel=3)
                records.append(replace(here, metric="unmeasured", variant=trouble, value=1.0))
                continue
            tests[site.name] = self._test(rows)
            spreads.append(anisotropy_replicates(rows.activations.float(), rows.sequences))
            records += _spread_records(here, spreads[-1], len(rows.tokens))
            records += _row_records(here, rows)
            records += _test_records(here, tests[site.name])
        if tests:
            mean = replace(about, site=MEAN_SITE)
            records += _spread_records(mean, torch.stack(spreads).mean(dim=0), len(rows.tokens))
            records += _test_records(mean, average(tests.values()))
            self.run.save_tensors(part, _bases(tests))
        self.run.write(part, records)

    def _test(self, rows: Rows) -> TangentTest:
        return tangent_test(
            rows.activations,
            rows.gradients,
            rows.sequences,
            rank=self.rank,
            seed=self.seed,
            tokens=None if self.bins is None else rows.tokens,
            targets=None if self.bins is None else rows.targets,
            bins=self.bins,
        )


def log_steps(last: int) -> list[int]:
    """A log-spaced schedule: 0, 1, 2, 4, 8, ... and `last`.

    >>> log_steps(100)
    [0, 1, 2, 4, 8, 16, 32, 64, 100]
    """
    return sorted({0, last, *(2**power for power in range(last.bit_length()) if 2**power < last)})


def _trouble(rows: Rows, rank: int) -> str | None:
    """Why these rows cannot be measured: things that happen in a healthy training and must not stop it."""
    if not (rows.activations.isfinite().all() and rows.gradients.isfinite().all()):
        return "not finite"
    if not rows.gradients.any():
        return "all gradients are zero"
    if len(rows.sequences.unique()) < 4 or len(rows.tokens) < 4 * rank:
        return f"fewer than 4 sequences, or than {4 * rank} tokens"
    return None


def _row_records(about: Record, rows: Rows) -> Iterator[Record]:
    dimension = intrinsic_dimension(rows.activations)
    interval = Interval(dimension.value, dimension.ci_low, dimension.ci_high, over="tokens")
    about = replace(about, n=len(rows.tokens))
    here = replace(about, quantity="activation")
    yield _estimate(replace(here, n=dimension.n_used), "intrinsic_dimension", interval)
    yield replace(here, metric="duplicates", value=float(dimension.n_duplicates))
    here = replace(about, quantity="gradient")
    yield replace(here, metric="anisotropy", variant="uncentred", value=anisotropy(rows.gradients, center=False))
    yield replace(here, metric="rms_norm", value=float(rows.gradients.float().square().sum(dim=1).mean().sqrt()))


def _spread_records(about: Record, replicates: Tensor, n: int) -> Iterator[Record]:
    yield _estimate(replace(about, quantity="activation", n=n), "anisotropy", share_jackknife(replicates))


def _test_records(about: Record, test: TangentTest) -> Iterator[Record]:
    about = replace(about, quantity="gradient", rank=test.rank)
    for cell in test.shares:
        here = replace(about, n=test.n_tokens[cell.freq_bin], **cell._asdict())
        yield _estimate(here, "share", test.share(*cell))
        if cell.variant != PROXY:
            yield _estimate(here, "log_ratio", test.log_ratio(*cell))
        if cell in test.p_values:
            yield replace(here, metric="p_value", value=test.p_values[cell])
    for kind, order in product(("input", "target"), ORDERS):
        ratio = test.frequency_log_ratio(kind, order)
        if ratio is not None:
            here = replace(about, variant=PROXY, order=order, freq_bin=kind)
            yield _estimate(here, "frequency_log_ratio", ratio)


def _estimate(about: Record, metric: str, interval: Interval) -> Record:
    return replace(
        about,
        metric=metric,
        value=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
        ci_over=interval.over,
    )


def _bases(tests: Mapping[str, TangentTest]) -> dict[str, Tensor]:
    return {
        f"{site}/{name}": subspace.basis.float().cpu()
        for site, test in tests.items()
        for name, subspace in test.subspaces.items()
    }
