"""The lens: measures a model while it trains, at chosen sites and steps, and writes the numbers to a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.prediction import GRADIENTS_THEN
from tangentlens.capture.batch import Objective, objective_of
from tangentlens.capture.device import MeasureOn
from tangentlens.capture.distributed import is_first, mean_of_all_ranks, world_size
from tangentlens.capture.sites import Wanted, check_visible, find_sites
from tangentlens.capture.step import Capture, Held
from tangentlens.capture.stream import MomentStream
from tangentlens.capture.targets import Targets, checked_targets, named_targets
from tangentlens.capture.updates import UpdateCapture, find_matrices
from tangentlens.errors import InputError, check_whole
from tangentlens.geometry.massive import THRESHOLD, check_threshold
from tangentlens.lens.alarms import Alarm, ring
from tangentlens.lens.concepts import as_wording
from tangentlens.lens.cost import Cost
from tangentlens.lens.due_step import DueStep, Outcome, measure_due_step
from tangentlens.lens.losses import Losses
from tangentlens.lens.measures import Fitting, SiteMeasures, scalars, scalars_by_site
from tangentlens.lens.memory import Memory
from tangentlens.lens.passes import Passes
from tangentlens.lens.probe import Probe
from tangentlens.lens.records import write_step
from tangentlens.lens.resume import resume
from tangentlens.lens.schedule import Schedule, as_schedule, is_due
from tangentlens.lens.settings import check_rank, check_settings, claim, logged, token_ids
from tangentlens.lens.updates import update_records
from tangentlens.lens.warned import warn_of_no_gradient, warn_of_no_pass, warn_of_troubles, warn_of_unmeasured
from tangentlens.proxies import DEFAULT, Fit, named_proxy
from tangentlens.runs.files import Place
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run
from tangentlens.runs.vocabulary import LOSS


class Lens:
    """Watches a model in training: on due steps it measures every site on the step's own activations and gradients.

    The proxy is fitted to the activations of the step before a due one and tested on the gradients of the due step. At
    the very first step, half of the sequences fit the proxy and the other half test it. Training does not change: hooks
    only read, and no global random state is touched. On other steps there are no hooks on sites.

    Under `torch.distributed` every rank makes a lens and calls `step`; the first rank measures the rows of all ranks
    and writes.

    Args:
        model: The model. It is called with token ids (as `input_ids` or first) and, to bin by target, with `labels`.
        sites: What to look at; see `find_sites`.
        rank: Rank of the proxy and of its controls.
        every: When to measure: every so many steps, a list of steps, 'log' (0, 1, 2, 4, 8, ...) or 'pythia' (0, 1, 2,
            4 ... 512, then every 1,000).
        run: A directory or URL to write to, which is made or continued, or a `Run`.
        name: The model's name in the records.
        proxy: The proxy: a name in `tangentlens.proxies.PROXIES`, or a function `(rows, rank, seed) -> Subspace`.
        measures: Further measures of the activations, such as `manifold_entropy`, by their names in
            `tangentlens.geometry.measures.MEASURES`.
        objective: `causal`, `masked` or `seq2seq`, to bin by target token; Hugging Face classes are known by name.
        targets: If the model is not called with `labels`: the name of the argument that holds the token each position
            has to predict, or a function `(args, kwargs) -> Tensor` of the call. They are not shifted.
        counts: Occurrences by token id over the corpus, to bin shares by token frequency.
        exclude: Token ids to leave out, such as padding or begin-of-sequence.
        skip_first: How many positions at the beginning of each sequence to leave out; the first ones are often
            attention sinks with massive activations.
        massive: How many times as long as the median row of its site a row must be to count as massive. Where there are
            such rows, every number is also measured without them.
        max_tokens: Measure at most this many tokens of a due step, over all ranks; if there are more, a random sample.
        moments_every: Every so many steps, also add the moments of the activations and gradients of all tokens to a
            running sum, which is measured and written with the next due step.
        loss_scale: Returns the factor by which the loss is multiplied in mixed precision, as `scaler.get_scale` does.
        predict: Whether to test the proxy of the last due step, and the leading directions of the gradients then, on
            the gradients of each due step.
        log_sites: Sites whose own values are in `scalars`, in addition to the means over sites; named as in `sites`.
        updates: Matrices whose gradients and actual updates are compared with proxies of the activations on either
            side: `embed`, or modules with a weight, by path or glob.
        probe: A fixed text: token ids (sequences, length), or a mapping of model inputs. Before each due step the model
            is run on it, without gradients and in evaluation mode, and the movement of its activations since the last
            due step is measured. Rows are kept on the CPU: tokens x width x sites x 4 bytes, twice while a step is due.
        concepts: The tokenizer, or a function from a list of token ids to their text, to put concepts into words, for
            `run.concepts(site, step)` and the report (docs/measures/concepts.md).
        alarms: What to warn of. A warning is raised when it begins; it is in `scalars` and in the records while it
            lasts.
        measure_on: 'cpu' to move rows to the host as they are captured and to measure there, if the model fills its
            GPU (docs/cost.md). By default they stay where the model is, unless that device has no fp64.
        seed: Seed of the proxy's fit.
        step: The number of the first step, if training continues from a checkpoint.
        tokens_seen: The number of tokens that the model had been trained on before; by default what the run says of
            the last step before `step`. Steps of the run from `step` on are moved to its folder `abandoned`.

    Attributes:
        scalars: The main numbers of the last due step, for a tracker.
        current: The number of the current step.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Wanted = "resid",
        rank: int = 16,
        every: Schedule = 100,
        run: str | Place | Run = "runs/lens",
        *,
        name: str = "model",
        proxy: str | Fit = DEFAULT,
        measures: Sequence[str] = (),
        objective: Objective | None = None,
        targets: Targets | None = None,
        counts: Any = None,
        exclude: Iterable[int] = (),
        skip_first: int = 0,
        massive: float = THRESHOLD,
        max_tokens: int = 16_384,
        moments_every: int | None = None,
        loss_scale: Callable[[], float] | None = None,
        predict: bool = False,
        log_sites: str | Sequence[str] = (),
        updates: str | Sequence[str] = (),
        probe: Any = None,
        concepts: Any = None,
        alarms: Sequence[Alarm] = (),
        measure_on: MeasureOn | None = None,
        seed: int = 0,
        step: int = 0,
        tokens_seen: int | None = None,
    ) -> None:
        check_whole(1, rank=rank, max_tokens=max_tokens, moments_every=1 if moments_every is None else moments_every)
        check_whole(0, step=step, tokens_seen=tokens_seen or 0, seed=seed, skip_first=skip_first)
        check_settings(proxy, measures, objective, alarms, loss_scale, measure_on)
        check_threshold(massive, "massive")
        self.model = model
        self.targets = checked_targets(model, targets)
        self.sites = find_sites(model, sites)
        self._updates = UpdateCapture(find_matrices(model, updates) if updates else [], loss_scale)
        self._watched = [*self.sites, *self._updates.sites]
        check_visible(model, self._watched)
        self.rank = int(rank)
        self.every = as_schedule(every)
        self.name = name
        self.proxy = proxy
        self.measures = tuple(measures)
        self.objective = objective or objective_of(model)
        self.bins = None if counts is None else FrequencyBins.of(counts)
        self.exclude = token_ids(exclude)
        self.skip_first = int(skip_first)
        self._probe = Probe(model, self.sites, probe, self.exclude, self.skip_first)
        self.massive = float(massive)
        self._wording = as_wording(concepts, counts)
        self.max_tokens = int(max_tokens)
        self.measure_on = measure_on
        self.moments_every = moments_every
        self.predict = predict
        self.loss_scale = loss_scale
        self.log_sites = logged(self.sites, log_sites)
        self.alarms = tuple(alarms)
        self.scalars: dict[str, float] = {}
        self.seed = seed
        self.current = step
        self._passes = Passes(model, 0 if step == 0 and tokens_seen is None else tokens_seen)
        self._losses = Losses(model, loss_scale)
        self._cost = Cost()
        self._run: Run | None = None
        if is_first():
            self._run = run if isinstance(run, Run) else create_run(run, {})
            claim(self._run, self.name, self._settings(), begins=step == 0 and not isinstance(run, Run))
        self._capture: Capture | None = None
        self._memory = Memory()
        self._stream = MomentStream(
            model, self.sites, self.exclude, loss_scale, self.skip_first, self.massive, measure_on
        )
        self._is_first_step = True
        self._troubles: dict[str, str] = {}

    @property
    def run(self) -> Run:
        """Return the run that numbers are written to; only the first rank of a distributed training has one."""
        if self._run is None:
            raise InputError(
                "the run must be read on the first rank, which writes it, but this is another; use it there"
            )
        return self._run

    @property
    def tokens_seen(self) -> int:
        """Return the number of tokens that all ranks have trained the model on; every rank must call this."""
        return self._passes.tokens()

    def _settings(self) -> dict[str, Any]:
        """Return what a run is told of this lens, and what a lens that continues it must agree with."""
        return {
            "sites": {site.name: site.place for site in self.sites},
            "proxy": named_proxy(self.proxy)[0],
            "rank": self.rank,
            "every": self.every,
            "seed": self.seed,
            **({"measures": list(self.measures)} if self.measures else {}),
            **({"predict": True} if self.predict else {}),
            **({"concepts": True} if self._wording else {}),
            "objective": self.objective,
            **({"targets": named_targets(self.targets)} if self.targets else {}),
            "exclude": list(self.exclude),
            "skip_first": self.skip_first,
            "massive": self.massive,
            "max_tokens": self.max_tokens,
            "moments_every": self.moments_every,
            "probe": self._probe.sha256,
            "updates": {matrix.name: matrix.place for matrix in self._updates.matrices},
            "bins": None if self.bins is None else self.bins.sha256,
        }

    def start(self) -> Lens:
        """Open the lens and return it; `with` does the same. A lens need not be closed before the program ends."""
        if self._passes.are_watched:
            raise InputError("a lens must be opened once at a time, but this one is open; make another")
        if self._run is not None:
            resume(self._run, self._passes, self.name, self.current)
        # This may raise, and then no hook must be left on the model.
        self._arm()
        self._passes.watch()
        self._cost.begin()
        return self

    __enter__ = start

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(finished=error is None)

    def close(self) -> None:
        """Remove everything that the lens has put on the model; the end of a `with` block does the same."""
        self._close(finished=True)

    def _close(self, finished: bool) -> None:
        self._passes.leave()
        if finished and self.due() and self._capture is not None and self._capture.n_backward > 1:
            warn_of_unmeasured(self._capture.n_backward)
        self._disarm()
        self._updates.forget()

    def due(self) -> bool:
        """Return whether the current step is to be measured."""
        return is_due(self.every, self.current)

    def step(self, loss: Tensor | float | None = None) -> None:
        """End a training step. If the step is due, it is measured and written.

        Args:
            loss: The loss of the step, in nats per predicted token. If several batches make a step, pass the mean of
                their losses, before they are divided for accumulation. Without it, the mean of the losses that the
                model returned is written, if it returned any.
        """
        self._passes.check_watched("step")
        # On a due step, a missing backward pass is an error.
        if not self._passes.came() and not self.due():
            warn_of_no_pass()
        capture, step = self._capture, self.current
        self._disarm()
        try:
            if capture is not None and self._is_first_step:
                check_rank(self.rank, capture.widths(self.sites))
            if capture is not None and self.due():
                # The mixed precision of the training must not apply to what is measured.
                plain = torch.autocast(self._stream.devices.exchange.type, enabled=False)
                with self._cost.of_due_step(self._run, self.name), plain, torch.no_grad():
                    troubles, before = self._measure(capture, loss), self._troubles
                self._troubles = troubles
                warn_of_troubles(step, troubles, before)
            elif capture is not None and is_due(self.every, step + 1):
                self._memory.fit_on = capture.activations()
            elif capture is not None and capture.n_backward:
                warn_of_no_gradient(capture.without_gradient())
        finally:
            self._is_first_step = False
            self.current += 1
            self._arm()

    def skip(self, reason: str) -> None:
        """End a step that did not train. If the step was due, a record says that it was not measured.

        Args:
            reason: Why it did not train, for the record.
        """
        self._passes.check_watched("skip")
        due = self.due()
        self._disarm()
        if due:
            about = self._about()
            if is_first():
                write_step(self.run, about, [about.unmeasured(reason)], {})
        self._updates.forget()
        self.current += 1
        self._arm()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a lens needs, in addition to the step, to continue from a checkpoint with the same numbers.

        In a distributed training every rank must call this; the first one gets the state of all ranks.
        """
        state = self._memory.state_dict(self._watched, self._stream.devices)
        state |= {f"scalar/{name}": torch.tensor(value) for name, value in self.scalars.items()}
        state |= {f"highest/{alarm.scalar}": torch.tensor(alarm.highest, dtype=torch.float64) for alarm in self.alarms}
        state |= self._stream.state_dict() | self._probe.state_dict()
        return state | {"tokens_seen": torch.tensor(self.tokens_seen)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the `state_dict` of a lens at the same step."""
        self._memory.load_state_dict(state, self._stream.devices)
        self._probe.load_state_dict(state)
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if kind == "scalar":
                self.scalars[name] = float(value)
            elif kind == "highest":
                for alarm in self.alarms:
                    alarm.highest = float(value) if alarm.scalar == name else alarm.highest
            elif kind == "tokens_seen":
                self._passes.before = int(value)
        # The state holds the sum over all ranks, so only one rank may continue from it.
        if is_first():
            self._stream.load_state_dict(state)

    def _arm(self) -> None:
        """Run the model on the probe if the current step is due, and put on the hooks that the step needs."""
        if self.due():
            self._probe.look()
        room, where = -(-self.max_tokens // world_size()), self.measure_on
        # A due step is measured; the proxy is fitted to the step before; the first step shows whether sites have
        # gradients at all.
        if self.due() or is_due(self.every, self.current + 1) or self._is_first_step:
            told = (self.exclude, self.objective, room, self.loss_scale, self.skip_first, self.targets, where)
            self._capture = Capture(self.model, self._watched, *told).__enter__()
        if self.due():
            self._updates.__enter__()
            self._losses.__enter__()
        if self.moments_every is not None and self.current % self.moments_every == 0:
            self._stream.__enter__()

    def _disarm(self) -> None:
        """Remove the hooks of the current step."""
        for watching in (self._capture, self._stream, self._updates, self._losses):
            if watching is not None:
                watching.__exit__(None, None, None)
        self._capture = None

    def _about(self) -> Record:
        """Return what all records of this step have in common; every rank must call this."""
        return Record(model=self.name, step=self.current, tokens_seen=self.tokens_seen, seed=self.seed)

    def _measure(self, capture: Capture, loss: Tensor | float | None) -> dict[str, str]:
        """Measure a due step and write it; return the sites that could not be measured, with the reason."""
        about = self._about()
        loss = mean_of_all_ranks(self._losses.mean() if loss is None else float(loss), self._stream.devices.exchange)
        records = [] if loss is None else [replace(about, quantity=LOSS, metric=LOSS, value=loss)]
        fit_next = capture.activations() if is_due(self.every, self.current + 1) else {}
        fitting = Fitting(self.proxy, self.rank, self.bins, self.seed, massive=self.massive, measures=self.measures)
        nothing_yet = not self._memory.subspaces
        seen = (capture, self._stream, self._memory)
        outcome = measure_due_step(DueStep(about, self.sites, *seen, fitting, self.predict, nothing_yet, self._wording))
        records += [*outcome.records, *update_records(about, self._updates, capture, self._memory, fitting)]
        moved, unmoved = self._probe.measure(about, fitting, self._stream.devices.measure)
        records += moved
        self._remember(outcome, fit_next)
        if is_first():
            alarms = self._tell(outcome.measured)
            records += [replace(about, metric=name, value=value) for name, value in alarms.items()]
            write_step(self.run, about, records, outcome.measured)
        return outcome.troubles | unmoved

    def _remember(self, outcome: Outcome, fit_next: dict[str, Held]) -> None:
        """Keep what the next due step needs and forget the rest."""
        self._updates.forget()
        self._stream.forget()
        # A block that was dropped at random keeps the rows of an earlier step.
        self._memory.fit_on = self._memory.fit_on | fit_next if fit_next else {}
        self._memory.subspaces = {name: dict(site.subspaces) for name, site in outcome.measured.items()}
        self._memory.concepts |= outcome.concepts
        for name, site in outcome.predictions.items():
            self._memory.subspaces[name][GRADIENTS_THEN] = site.leading

    def _tell(self, measured: Mapping[str, SiteMeasures]) -> dict[str, float]:
        """Set `scalars` to the numbers of this step, warn of alarms that begin, and return the state of all."""
        chosen = {name: site for name, site in measured.items() if name in self.log_sites}
        values = scalars(measured)
        states, messages = ring(self.alarms, values, self.scalars)
        self.scalars = values | scalars_by_site(chosen) | states
        for message in messages:
            warnings.warn(f"step {self.current} of {self.name}: {message}", stacklevel=5)
        return states
