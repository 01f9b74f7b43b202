"""How a profile is made: batches of token vectors of every site, measured with and without massive rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.capture.device import Devices
from tangentlens.capture.forward import activations
from tangentlens.capture.sites import Site, find_sites
from tangentlens.corpora.windows import Text, windows
from tangentlens.errors import InputError
from tangentlens.geometry.massive import Places
from tangentlens.geometry.measures import Cloud, measure_all
from tangentlens.geometry.rows import as_rows
from tangentlens.models.load import check_model, load_model, model_name
from tangentlens.models.small import weight_hash
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run
from tangentlens.runs.vocabulary import (
    ACTIVATION,
    ALL_ROWS,
    SD,
    SHAPE,
    SHAPE_BATCHES,
    SHAPE_MARGIN,
    WITHOUT_MASSIVE,
    derived,
)
from tangentlens.statistics.evidence import BATCHES
from tangentlens.statistics.interval import mean_interval
from tangentlens.statistics.shape import profile_shape
from tangentlens.studies.profile.plan import NAME, Profile
from tangentlens.studies.profile.skipping import measure_preset

# Tokens of one forward pass.
_FORWARD = 2048


def run_profile(profile: Profile, out: str | Path, watch: Watch = unwatched) -> Run:
    """Profile every model into the run directory `out`; an interrupted run is continued."""
    text = Text(None if profile.text is None else Path(profile.text))
    if text.size == 0:
        raise InputError(f"{profile.text} must hold text, but is empty; name another file")
    if len(profile.models) + len(profile.preset_models) > 1:
        for spec in profile.models:
            check_model(spec, profile.trust_remote_code)
    run = create_run(out, asdict(profile), NAME)
    run.claim_data(profile.text, text.identity)
    names = _names(profile)
    for spec in profile.models:
        _ModelProfile(profile, spec, names[spec], run, text, watch).make()
    if profile.preset is not None:
        measure_preset(
            profile, run, watch, lambda model: _ModelProfile(profile, model.spec, model.name, run, text, watch).make()
        )
    return run


def _names(profile: Profile) -> dict[str, str]:
    """Return the name of each model in the records; two of one name are called by what the user typed."""
    names = {spec: model_name(spec) for spec in profile.models}
    taken = [*names.values(), *(model.name for model in profile.preset_models)]
    return {spec: spec if taken.count(name) > 1 else name for spec, name in names.items()}


@dataclass(frozen=True, eq=False)
class _Batch:
    """One batch, measured.

    Attributes:
        values: The value at each site, by measure; without massive rows, by `without_massive/measure`.
        massive: Where the massive rows of each site are.
    """

    values: dict[str, Float[Tensor, "sites"]]
    massive: list[Places]

    def stored(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the batch as tensors, with text about them."""
        return self.values, {"massive": json.dumps([asdict(places) for places in self.massive])}

    @classmethod
    def read(cls, values: dict[str, Tensor], about: dict[str, str]) -> _Batch:
        """Return the batch that was stored."""
        massive = [
            Places(
                *({int(number): times for number, times in one.items()} for one in (site["positions"], site["tokens"]))
            )
            for site in json.loads(about["massive"])
        ]
        return cls(values, massive)


def both_ways(cloud: Cloud) -> dict[str, float]:
    """Return every measure of all rows and, under other names, without massive rows."""
    values = measure_all(cloud)
    without = measure_all(cloud.without_massive()) if cloud.massive.count else values
    return values | {f"{WITHOUT_MASSIVE}/{name}": value for name, value in without.items()}


class _ModelProfile:
    """One model of a profile."""

    def __init__(self, profile: Profile, spec: str, name: str, run: Run, text: Text, watch: Watch) -> None:
        self.profile, self.name, self.run, self.text, self.watch = profile, name, run, text, watch
        loaded = load_model(spec, profile.device, getattr(torch, profile.dtype), profile.trust_remote_code)
        self.loaded = loaded.beginning_with_bos() if profile.bos else loaded
        self.sites = find_sites(self.loaded.model, profile.sites)
        self.width = self.loaded.width
        self.length = self.loaded.text_length(profile.length, profile.skip_first)
        # The place of each token of text in what the model sees, special tokens counted.
        self.positions = torch.arange(self.length) + len(self.loaded.specials[0])

    def make(self) -> None:
        """Measure all batches that have not been measured yet, then write the summary."""
        parameters = sum(parameter.numel() for parameter in self.loaded.model.parameters())
        facts = {
            "kind": self.loaded.kind,
            "loaded_from": self.loaded.name,
            "commit": self.loaded.commit,
            "parameters": parameters,
            "weights_sha256": weight_hash(self.loaded.model, self.loaded.not_loaded),
            "sites": {site.name: site.place for site in self.sites},
            "window": self.length,
        }
        self.run.claim_model(self.name, facts)
        self.run.complete(self.name, lambda: self._summary(self._measured_batches()))

    def _measured_batches(self) -> list[_Batch]:
        """Return every batch, measured at every site."""
        cost = self._cost()
        self.watch(Progress(self.name, 0, self.profile.batches * len(self.sites), cost))
        return [self._measured(number, gathered, cost) for number, gathered in enumerate(self._batches())]

    def _counts(self, tokens: Int[Tensor, "*w length"]) -> Bool[Tensor, "*w length"]:
        """Return which tokens count: text, after the positions that are skipped."""
        return self.loaded.is_text(tokens) & (self.positions >= self.profile.skip_first)

    def _batches(self) -> Iterator[list[Tensor]]:
        """Yield the windows of one batch at a time, until there are enough batches or the text ends.

        No window is in two batches: tokens of one window depend on each other, and the spread must show that.
        """
        gathered: list[Tensor] = []
        count = done = 0
        for window in windows(self.text, self.loaded.encode, self.length, self.profile.seed):
            gathered.append(window)
            count += int(self._counts(window).sum())
            if count >= self.profile.batch_tokens:
                yield gathered
                done += 1
                gathered, count = [], 0
                if done == self.profile.batches:
                    return
        if done < 2:
            tokens = done * self.profile.batch_tokens + count
            raise InputError(
                f"the text must give at least {2 * self.profile.batch_tokens} tokens, two batches, in windows of "
                f"{self.length}, but gives {tokens}; use a longer text, a smaller --batch-tokens or a smaller --length"
            )

    def _measured(self, number: int, gathered: list[Tensor], cost: str) -> _Batch:
        """Return the values of one batch at all sites; from disk if they are there."""
        part = f"{self.name}-batch-{number:04d}"
        known = self.run.load_tensors(part)
        # An earlier version did not look for massive rows.
        if known is not None and "massive" in known[1]:
            return _Batch.read(*known)
        tokens = torch.stack(gathered)
        counts = self._counts(tokens)
        kept, positions = tokens[counts], self.positions.expand_as(tokens)[counts]
        mixed = torch.randperm(len(kept), generator=torch.Generator().manual_seed(self.profile.seed + number))
        mixed = mixed[: self.profile.batch_tokens]
        rows = self._rows(tokens)
        measured: list[dict[str, float]] = []
        massive: list[Places] = []
        for place, site in enumerate(self.sites):
            here = torch.cat(rows.pop(site.name))
            try:
                ids = kept[mixed].to(here.device)
                cloud = Cloud(as_rows(here[mixed.to(here.device)]), ids, ids, self.profile.massive)
                measured.append(both_ways(cloud))
                massive.append(Places.of(cloud.massive, positions[mixed].to(here.device), ids))
            except InputError as error:
                raise InputError(f"{self.name} at {site.name}: {error}") from error
            done = number * len(self.sites) + place + 1
            self.watch(Progress(self.name, done, self.profile.batches * len(self.sites), f"{site.name}; {cost}"))
        values = {name: torch.tensor([site[name] for site in measured], dtype=torch.float64) for name in measured[0]}
        batch = _Batch(values, massive)
        self.run.save_tensors(part, *batch.stored())
        return batch

    def _rows(self, tokens: Int[Tensor, "w length"]) -> dict[str, list[Tensor]]:
        """Return the rows of all sites at the positions of text, in pieces."""
        rows: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}
        for some in tokens.split(max(1, _FORWARD // self.length)):
            self._forward(some, lambda site, piece: rows[site.name].append(piece))
        return rows

    def _forward(self, some: Int[Tensor, "w length"], see: Callable[[Site, Tensor], None]) -> None:
        keep = self.loaded.beside_specials(self._counts(some), at_specials=False)
        device = self.profile.device
        activations(self.loaded.model, self.sites, self.loaded.framed(some).to(device), keep.to(device), see)

    def _cost(self) -> str:
        """Return how long all batches will take and how much memory, from one forward pass and one site's measures."""
        some = torch.zeros(max(1, _FORWARD // self.length // 4), self.length, dtype=torch.int64)
        for _ in range(2):
            start = time.perf_counter()
            self._forward(some, lambda site, piece: None)
            forward = (time.perf_counter() - start) / some.numel()
        size = self.profile.batch_tokens
        sample = torch.randn(size, self.width, generator=torch.Generator().manual_seed(0))
        sample = sample.to(Devices.of(self.loaded.model).measure)
        start = time.perf_counter()
        ids = torch.arange(size, device=sample.device)
        measure_all(Cloud(sample, ids, ids))
        measure = time.perf_counter() - start
        seconds = self.profile.batches * (size * forward + len(self.sites) * measure)
        weights = sum(parameter.nbytes for parameter in self.loaded.model.parameters())
        held = (len(self.sites) + 4) * size * self.width * 4
        about = f"about {seconds / 60:.0f} min" if seconds > 90 else f"about {seconds:.0f} s"
        return f"{about}, {(weights + held) / 2**30:.1f} GiB of memory"

    def _summary(self, batches: list[_Batch]) -> Iterator[Record]:
        """Yield mean, standard deviation and shape of each measure: of all rows and, if some are massive, without."""
        base = Record(
            model=self.name,
            revision=self.loaded.revision,
            quantity=ACTIVATION,
            seed=self.profile.seed,
            ci_over=BATCHES,
        )
        massive = [sum(of_site, Places({}, {})) for of_site in zip(*(batch.massive for batch in batches), strict=True)]
        n_massive = torch.stack([batch.values["massive_rows"] for batch in batches]).sum(dim=0)
        has_massive = n_massive > 0
        # What comes from disk is in another order.
        for name in sorted(batches[0].values):
            prefix, _, key = name.rpartition("/")
            metric, _, variant = key.partition(":")
            table = torch.stack([batch.values[name] for batch in batches])
            rows = WITHOUT_MASSIVE if prefix else ALL_ROWS
            n = len(table) * self.profile.batch_tokens
            about = replace(base, variant=variant, rows=rows, n=n)
            if rows == WITHOUT_MASSIVE and not has_massive.any():
                continue
            for place, (site, column) in enumerate(zip(self.sites, table.T, strict=True)):
                if rows == WITHOUT_MASSIVE and not has_massive[place]:
                    continue
                here = replace(about, site=site.name, depth=site.depth)
                if rows == WITHOUT_MASSIVE:
                    here = replace(here, n=n - int(n_massive[place]))
                is_count = metric == "massive_rows" and rows == ALL_ROWS
                detail = massive[place].told(self.loaded.token_name) if is_count else ""
                yield here.estimate(metric, mean_interval(column, BATCHES), detail=detail)
                yield replace(here, metric=derived(SD, metric), value=float(column.std()))
            if bool(table.isfinite().all()):
                yield from self._shape(about, metric, table)

    def _shape(self, about: Record, metric: str, table: Float[Tensor, "batches sites"]) -> Iterator[Record]:
        """Yield the shape over the residual sites, its margin, and how many batches an undecided one needs."""
        at = [i for i, site in enumerate(self.sites) if site.name.startswith("resid.")]
        if len(at) < 3:
            return
        depth = torch.tensor([self.sites[i].depth for i in at])
        shape = profile_shape(table[:, at], depth)
        yield replace(
            about,
            site=self.sites[at[shape.place]].name,
            metric=derived(SHAPE, metric),
            detail=shape.kind,
            value=shape.value,
            ci_low=shape.ci_low,
            ci_high=shape.ci_high,
        )
        yield replace(about, metric=derived(SHAPE_MARGIN, metric), value=shape.margin)
        if shape.batches_needed is not None:
            yield replace(about, metric=derived(SHAPE_BATCHES, metric), value=float(shape.batches_needed))
