"""The geometry of finished models, layer by layer: what someone wants who wants one plot of one model, now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.capture.forward import activations
from tangentlens.capture.sites import Site, find_sites
from tangentlens.corpora.windows import Text, windows
from tangentlens.errors import InputError
from tangentlens.lens.measures import estimate, profile_measures
from tangentlens.models.load import check_device, load_model, model_name
from tangentlens.models.small import weight_hash
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run
from tangentlens.statistics.interval import mean_interval
from tangentlens.statistics.shape import BATCHES, profile_shape

# Tokens of one forward pass.
_FORWARD = 2048
SHAPE = "shape_of_"


@dataclass(frozen=True)
class Profile:
    """What to look at: models (directories, hub ids, `id@revision`), a text, sites, how much, and where to compute."""

    models: tuple[str, ...]
    text: str | None = None
    sites: str | tuple[str, ...] = "resid"
    batches: int = 5
    batch_tokens: int = 4096
    length: int = 128
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        least = {"batches": 2, "batch_tokens": 64, "length": 2}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise InputError(f"{name} must be at least {smallest}, but is {getattr(self, name)}")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise InputError(f"dtype must be float32, bfloat16 or float16, but is {self.dtype!r}")
        check_device(self.device)


@dataclass(frozen=True)
class Estimate:
    """What a profile of one model will take."""

    model: str
    seconds: float
    bytes: int


class Watcher(NamedTuple):
    """Who is told time and memory before the work on a model begins, and sites times batches done, of all."""

    estimate: Callable[[Estimate], None] = lambda found: None
    progress: Callable[[str, int, int], None] = lambda model, done, total: None


NOBODY = Watcher()


def run_profile(profile: Profile, out: str | Path, watcher: Watcher = NOBODY) -> Run:
    """Profile every model into the run directory `out`; goes on where it was stopped."""
    text = Text(None if profile.text is None else Path(profile.text))
    if text.size == 0:
        raise InputError(f"{profile.text} must hold text, but is empty; name another file")
    run = create_run(out, {"command": "profile", **asdict(profile)})
    run.claim_data(profile.text, {"fingerprint": text.fingerprint, "bytes": text.size})
    for spec in profile.models:
        _ModelProfile(profile, spec, run, text, watcher).make()
    return run


class _ModelProfile:
    """One model of a profile."""

    def __init__(self, profile: Profile, spec: str, run: Run, text: Text, watcher: Watcher) -> None:
        self.profile, self.run, self.text, self.watcher = profile, run, text, watcher
        self.loaded = load_model(spec, profile.device, getattr(torch, profile.dtype), profile.trust_remote_code)
        same = [model_name(other) for other in profile.models].count(model_name(spec)) > 1
        self.name = spec if same else self.loaded.name
        self.sites = find_sites(self.loaded.model, profile.sites)
        self.width = self.loaded.width
        self.length = self.loaded.text_length(profile.length)

    def make(self) -> None:
        """Measure all batches that are not there yet, then write the summary."""
        parameters = sum(parameter.numel() for parameter in self.loaded.model.parameters())
        facts = {
            "kind": self.loaded.kind,
            "parameters": parameters,
            "weights_sha256": weight_hash(self.loaded.model, self.loaded.not_loaded),
            "sites": {site.name: site.place for site in self.sites},
            "window": self.length,
        }
        self.run.claim_model(self.name, facts)
        if self.run.has(self.name):
            return
        self.watcher.estimate(self._estimate())
        found = [self._measured(number, gathered) for number, gathered in enumerate(self._batches())]
        # What comes from disk is in another order.
        values = {name: torch.stack([batch[name] for batch in found]) for name in sorted(found[0])}
        self.run.write(self.name, self._summary(values))

    def _batches(self) -> Iterator[list[Tensor]]:
        """Windows for a batch at a time, until there are enough batches or the text ends.

        No window is in two batches: tokens of one window depend on each other, and the spread over batches must see it.
        """
        gathered: list[Tensor] = []
        count = done = 0
        for window in windows(self.text, self.loaded.encode, self.length, self.profile.seed):
            gathered.append(window)
            count += int(self.loaded.is_text(window).sum())
            if count >= self.profile.batch_tokens:
                yield gathered
                done += 1
                gathered, count = [], 0
                if done == self.profile.batches:
                    return
        if done < 2:
            found = done * self.profile.batch_tokens + count
            raise InputError(
                f"the text must give at least {2 * self.profile.batch_tokens} tokens, two batches, in windows of "
                f"{self.length}, but gives {found}; use a longer text, a smaller --batch-tokens or a smaller --length"
            )

    def _measured(self, number: int, gathered: list[Tensor]) -> dict[str, Float[Tensor, "sites"]]:
        """Values at all sites by measure, of one batch; from disk if they are there."""
        part = f"{self.name}-batch-{number:04d}"
        known = self.run.load_tensors(part)
        if known is not None:
            return known[0]
        tokens = torch.stack(gathered)
        kept = tokens[self.loaded.is_text(tokens)]
        mixed = torch.randperm(len(kept), generator=torch.Generator().manual_seed(self.profile.seed + number))
        mixed = mixed[: self.profile.batch_tokens]
        rows = self._rows(tokens)
        found = []
        for place, site in enumerate(self.sites):
            here = torch.cat(rows.pop(site.name))
            try:
                found.append(profile_measures(here[mixed.to(here.device)], kept[mixed].to(here.device)))
            except InputError as error:
                raise InputError(f"{self.name} at {site.name}: {error}") from error
            done = number * len(self.sites) + place + 1
            self.watcher.progress(self.name, done, self.profile.batches * len(self.sites))
        values = {name: torch.tensor([site[name] for site in found], dtype=torch.float64) for name in found[0]}
        self.run.save_tensors(part, values)
        return values

    def _rows(self, tokens: Int[Tensor, "w length"]) -> dict[str, list[Tensor]]:
        """Rows of all sites at the positions of text, in pieces."""
        rows: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}
        for some in tokens.split(max(1, _FORWARD // self.length)):
            self._forward(some, lambda site, piece: rows[site.name].append(piece))
        return rows

    def _forward(self, some: Int[Tensor, "w length"], see: Callable[[Site, Tensor], None]) -> None:
        keep = self.loaded.beside_specials(self.loaded.is_text(some), at_specials=False)
        device = self.profile.device
        activations(self.loaded.model, self.sites, self.loaded.framed(some).to(device), keep.to(device), see)

    def _estimate(self) -> Estimate:
        """From one forward pass and one site's measures, at full size."""
        some = torch.zeros(max(1, _FORWARD // self.length // 4), self.length, dtype=torch.int64)
        for _ in range(2):
            start = time.perf_counter()
            self._forward(some, lambda site, piece: None)
            forward = (time.perf_counter() - start) / some.numel()
        size = self.profile.batch_tokens
        sample = torch.randn(size, self.width, generator=torch.Generator().manual_seed(0)).to(self.profile.device)
        start = time.perf_counter()
        profile_measures(sample, torch.arange(size, device=sample.device))
        measure = time.perf_counter() - start
        seconds = self.profile.batches * (size * forward + len(self.sites) * measure)
        weights = sum(parameter.nbytes for parameter in self.loaded.model.parameters())
        held = (len(self.sites) + 4) * size * self.width * 4
        return Estimate(self.name, seconds, weights + held)

    def _summary(self, values: dict[str, Float[Tensor, "batches sites"]]) -> Iterator[Record]:
        """Mean, standard deviation and shape of each measure."""
        base = Record(
            model=self.name,
            revision=self.loaded.revision,
            quantity="activation",
            seed=self.profile.seed,
            ci_over=BATCHES,
        )
        for name, table in values.items():
            metric, _, variant = name.partition(":")
            about = replace(base, variant=variant, n=len(table) * self.profile.batch_tokens)
            for site, column in zip(self.sites, table.T, strict=True):
                here = replace(about, site=site.name, depth=site.depth)
                yield estimate(here, metric, mean_interval(column, BATCHES))
                yield replace(here, metric=f"{metric}_sd", value=float(column.std()))
            if bool(table.isfinite().all()):
                yield from self._shape(about, metric, table)

    def _shape(self, about: Record, metric: str, table: Float[Tensor, "batches sites"]) -> Iterator[Record]:
        """The shape over the sites that have a depth."""
        at = [i for i, site in enumerate(self.sites) if site.name.startswith("resid.")]
        if len(at) < 3:
            return
        depth = torch.tensor([self.sites[i].depth for i in at])
        shape = profile_shape(table[:, at], depth)
        yield replace(
            about,
            site=self.sites[at[shape.place]].name,
            metric=SHAPE + metric,
            variant=":".join(filter(None, (about.variant, shape.kind))),
            value=shape.value,
            ci_low=shape.ci_low,
            ci_high=shape.ci_high,
        )
