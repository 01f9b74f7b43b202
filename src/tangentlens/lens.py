"""The object people hold: a live model, its sites, when to look, and the run the numbers go to."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.capture.batch import Objective, named_arguments, objective_of, read_batch
from tangentlens.capture.hooks import Capture
from tangentlens.capture.sites import find_sites
from tangentlens.errors import InputError
from tangentlens.measures import MEAN_SITE, SiteMeasures, mean_records, measure_site, site_records
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, check_same, create_run


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
        objective: `causal` or `masked`, to bin by target token; Hugging Face classes are known by their names.
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
        objective: Objective | None = None,
        counts: Any = None,
        exclude: Iterable[int] = (),
        seed: int = 0,
        step: int = 0,
        tokens_seen: int = 0,
    ) -> None:
        _check_settings(rank, every)
        self.model = model
        self.sites = find_sites(model, sites)
        self.rank = rank
        self.every = [int(due) for due in every] if isinstance(every, Iterable) else int(every)
        self.name = name
        self.objective = objective or objective_of(model)
        self.bins = None if counts is None else FrequencyBins.of(torch.as_tensor(counts))
        self.exclude = tuple(exclude)
        self.seed = seed
        self.current = step
        self.tokens_seen: int | Tensor = tokens_seen
        self.run = run if isinstance(run, Run) else create_run(run, {})
        self._claim(fresh=not isinstance(run, Run))
        self._capture: Capture | None = None
        self._counter: RemovableHandle | None = None

    def _claim(self, fresh: bool) -> None:
        """Put the settings under the model's name in the manifest; another lens of that name is not overwritten."""
        settings = {
            "sites": {site.name: site.place for site in self.sites},
            "rank": self.rank,
            "every": self.every,
            "seed": self.seed,
            "objective": self.objective,
            "exclude": list(self.exclude),
            "bins": None if self.bins is None else hashlib.sha256(str(self.bins.bin_of.tolist()).encode()).hexdigest(),
        }
        known = self.run.manifest.get("lenses", {}).get(self.name)
        if known is not None:
            check_same(self.run.path, known, settings)
            if fresh and self.current == 0 and not self.run.records.is_empty():
                raise InputError(
                    f"{self.run.path} must be empty for a training that starts at step 0, but holds one; choose "
                    "another folder, delete this one, or pass step= and tokens_seen= to go on from a checkpoint"
                )
        self.run.describe("lenses", {self.name: settings})

    def __enter__(self) -> Lens:
        self._counter = self.model.register_forward_pre_hook(self._count_tokens, with_kwargs=True)
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._counter is not None:
            self._counter.remove()
            self._counter = None
        if error is None and self._capture is not None and self._capture.n_backward > 1:
            warnings.warn(
                f"{self._capture.n_backward} backward passes came since the last lens.step() and were not measured; "
                "call lens.step() once after each optimizer step",
                stacklevel=2,
            )
        self._disarm()

    def due(self) -> bool:
        """Whether the current step is to be measured."""
        return self.current % self.every == 0 if isinstance(self.every, int) else self.current in self.every

    def step(self, loss: Tensor | float | None = None) -> None:
        """Say that a training step has ended. A due step is measured and written, with its loss if given."""
        if self._counter is None:
            raise InputError("lens.step() must be called inside `with Lens(...) as lens:`, but is not; open that block")
        if self._capture is not None:
            capture, step = self._capture, self.current
            self._disarm()
            try:
                troubles = self._measure(capture, loss)
            finally:
                self._advance()
            if troubles:
                sites = ", ".join(troubles)
                warnings.warn(f"step {step} was not measured at {sites}: {next(iter(troubles.values()))}", stacklevel=2)
        else:
            self._advance()

    def _advance(self) -> None:
        self.current += 1
        self._arm()

    def _arm(self) -> None:
        if self.due():
            self._capture = Capture(self.model, self.sites, self.exclude, self.objective).__enter__()

    def _disarm(self) -> None:
        if self._capture is not None:
            self._capture.__exit__(None, None, None)
            self._capture = None

    def _count_tokens(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model.training and torch.is_grad_enabled():
            # A sum stays on the device: no step waits for it.
            self.tokens_seen = self.tokens_seen + read_batch(named_arguments(model, args, kwargs)).keep.sum()

    @torch.no_grad()
    def _measure(self, capture: Capture, loss: Tensor | float | None) -> dict[str, str]:
        """Measure and write; sites that could not be measured are returned with the reason."""
        part = f"{self.name}-step-{self.current:08d}"
        about = Record(model=self.name, step=self.current, tokens_seen=int(self.tokens_seen), seed=self.seed)
        records = [] if loss is None else [replace(about, quantity="loss", metric="loss", value=float(loss))]
        measured: dict[str, SiteMeasures] = {}
        troubles: dict[str, str] = {}
        for site in self.sites:
            rows = capture.rows(site)
            here = replace(about, site=site.name, depth=site.depth)
            try:
                measured[site.name] = measure_site(rows, self.rank, self.bins, self.seed)
            except InputError as error:
                # Such steps (not finite, no gradient, too few sequences) happen, and must not end a training.
                troubles[site.name] = str(error)
                records.append(replace(here, metric="unmeasured", variant=str(error), value=1.0))
            else:
                records += site_records(here, measured[site.name])
        if measured:
            records += mean_records(replace(about, site=MEAN_SITE), list(measured.values()))
            self.run.save_tensors(part, _bases(measured))
        self.run.write(part, records)
        return troubles


def _check_settings(rank: Any, every: Any) -> None:
    if not isinstance(rank, Integral) or rank < 1:
        raise InputError(f"rank must be a whole number of at least 1, but is {rank!r}")
    steps = list(every) if isinstance(every, Iterable) else [every]
    if (
        not steps
        or not all(isinstance(step, Integral) for step in steps)
        or (isinstance(every, Integral) and every < 1)
    ):
        raise InputError(f"every must be a whole number of at least 1, or a list of steps, but is {every!r}")


def log_steps(last: int) -> list[int]:
    """A log-spaced schedule: 0, 1, 2, 4, 8, ... and `last`.

    >>> log_steps(100)
    [0, 1, 2, 4, 8, 16, 32, 64, 100]
    """
    return sorted({0, last, *(2**power for power in range(last.bit_length()) if 2**power < last)})


def _bases(measured: Mapping[str, SiteMeasures]) -> dict[str, Tensor]:
    return {
        f"{site}/{name}": subspace.basis.float().cpu()
        for site, found in measured.items()
        for name, subspace in found.test.subspaces.items()
    }
