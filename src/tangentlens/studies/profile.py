"""The profile of finished models: every measure of the activations, layer by layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path

import polars as pl
import torch
from jaxtyping import Float, Int
from plotly.subplots import make_subplots
from torch import Tensor

from tangentlens.capture.forward import activations
from tangentlens.capture.sites import Site, find_sites
from tangentlens.corpora.windows import Text, windows
from tangentlens.errors import InputError
from tangentlens.geometry.measures import measure_all
from tangentlens.models.load import check_device, load_model, model_name
from tangentlens.models.small import weight_hash
from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, bars, labelled, log_axis, models_of, styled
from tangentlens.report.reading import IN_BATCHES, KEY, interval_text, text_of
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run
from tangentlens.runs.vocabulary import ACTIVATION, METRICS, SD, SHAPE, SHAPE_BATCHES, SHAPE_MARGIN, derived
from tangentlens.statistics.evidence import BATCHES
from tangentlens.statistics.interval import mean_interval
from tangentlens.statistics.shape import profile_shape
from tangentlens.studies.study import Study

NAME = "profile"
# Tokens of one forward pass.
_FORWARD = 2048


@dataclass(frozen=True)
class Profile:
    """What to look at.

    Attributes:
        models: Directories, hub ids or `id@revision`.
        text: A text file; the built-in text by default.
        sites: Where to look.
        batches: How many batches of token vectors.
        batch_tokens: Token vectors in a batch.
        length: Tokens that the model sees at once.
        seed: Seed of the windows and of the vectors drawn from them.
        device: Where to compute.
        dtype: The format of the weights.
        trust_remote_code: Whether to run code that a model's repository contains.
    """

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


def run_profile(profile: Profile, out: str | Path, watch: Watch = unwatched) -> Run:
    """Profile every model into the run directory `out`; an interrupted run is continued."""
    text = Text(None if profile.text is None else Path(profile.text))
    if text.size == 0:
        raise InputError(f"{profile.text} must hold text, but is empty; name another file")
    run = create_run(out, asdict(profile), NAME)
    run.claim_data(profile.text, {"fingerprint": text.fingerprint, "bytes": text.size})
    for spec in profile.models:
        _ModelProfile(profile, spec, run, text, watch).make()
    return run


class _ModelProfile:
    """One model of a profile."""

    def __init__(self, profile: Profile, spec: str, run: Run, text: Text, watch: Watch) -> None:
        self.profile, self.run, self.text, self.watch = profile, run, text, watch
        self.loaded = load_model(spec, profile.device, getattr(torch, profile.dtype), profile.trust_remote_code)
        same = [model_name(other) for other in profile.models].count(model_name(spec)) > 1
        self.name = spec if same else self.loaded.name
        self.sites = find_sites(self.loaded.model, profile.sites)
        self.width = self.loaded.width
        self.length = self.loaded.text_length(profile.length)

    def make(self) -> None:
        """Measure all batches that have not been measured yet, then write the summary."""
        parameters = sum(parameter.numel() for parameter in self.loaded.model.parameters())
        facts = {
            "kind": self.loaded.kind,
            "parameters": parameters,
            "weights_sha256": weight_hash(self.loaded.model, self.loaded.not_loaded),
            "sites": {site.name: site.place for site in self.sites},
            "window": self.length,
        }
        self.run.claim_model(self.name, facts)
        self.run.complete(self.name, lambda: self._summary(self._values()))

    def _values(self) -> dict[str, Float[Tensor, "batches sites"]]:
        """Return the values of every measure."""
        cost = self._cost()
        self.watch(Progress(self.name, 0, self.profile.batches * len(self.sites), cost))
        measured = [self._measured(number, gathered, cost) for number, gathered in enumerate(self._batches())]
        # What comes from disk is in another order.
        return {name: torch.stack([batch[name] for batch in measured]) for name in sorted(measured[0])}

    def _batches(self) -> Iterator[list[Tensor]]:
        """Yield the windows of one batch at a time, until there are enough batches or the text ends.

        No window is in two batches: tokens of one window depend on each other, and the spread must show that.
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
            tokens = done * self.profile.batch_tokens + count
            raise InputError(
                f"the text must give at least {2 * self.profile.batch_tokens} tokens, two batches, in windows of "
                f"{self.length}, but gives {tokens}; use a longer text, a smaller --batch-tokens or a smaller --length"
            )

    def _measured(self, number: int, gathered: list[Tensor], cost: str) -> dict[str, Float[Tensor, "sites"]]:
        """Return the values of one batch at all sites, by measure; from disk if they are there."""
        part = f"{self.name}-batch-{number:04d}"
        known = self.run.load_tensors(part)
        if known is not None:
            return known[0]
        tokens = torch.stack(gathered)
        kept = tokens[self.loaded.is_text(tokens)]
        mixed = torch.randperm(len(kept), generator=torch.Generator().manual_seed(self.profile.seed + number))
        mixed = mixed[: self.profile.batch_tokens]
        rows = self._rows(tokens)
        measured = []
        for place, site in enumerate(self.sites):
            here = torch.cat(rows.pop(site.name))
            try:
                measured.append(measure_all(here[mixed.to(here.device)], kept[mixed].to(here.device)))
            except InputError as error:
                raise InputError(f"{self.name} at {site.name}: {error}") from error
            done = number * len(self.sites) + place + 1
            self.watch(Progress(self.name, done, self.profile.batches * len(self.sites), f"{site.name}; {cost}"))
        values = {name: torch.tensor([site[name] for site in measured], dtype=torch.float64) for name in measured[0]}
        self.run.save_tensors(part, values)
        return values

    def _rows(self, tokens: Int[Tensor, "w length"]) -> dict[str, list[Tensor]]:
        """Return the rows of all sites at the positions of text, in pieces."""
        rows: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}
        for some in tokens.split(max(1, _FORWARD // self.length)):
            self._forward(some, lambda site, piece: rows[site.name].append(piece))
        return rows

    def _forward(self, some: Int[Tensor, "w length"], see: Callable[[Site, Tensor], None]) -> None:
        keep = self.loaded.beside_specials(self.loaded.is_text(some), at_specials=False)
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
        sample = torch.randn(size, self.width, generator=torch.Generator().manual_seed(0)).to(self.profile.device)
        start = time.perf_counter()
        measure_all(sample, torch.arange(size, device=sample.device))
        measure = time.perf_counter() - start
        seconds = self.profile.batches * (size * forward + len(self.sites) * measure)
        weights = sum(parameter.nbytes for parameter in self.loaded.model.parameters())
        held = (len(self.sites) + 4) * size * self.width * 4
        about = f"about {seconds / 60:.0f} min" if seconds > 90 else f"about {seconds:.0f} s"
        return f"{about}, {(weights + held) / 2**30:.1f} GiB of memory"

    def _summary(self, values: dict[str, Float[Tensor, "batches sites"]]) -> Iterator[Record]:
        """Yield mean, standard deviation and shape of each measure."""
        base = Record(
            model=self.name,
            revision=self.loaded.revision,
            quantity=ACTIVATION,
            seed=self.profile.seed,
            ci_over=BATCHES,
        )
        for name, table in values.items():
            metric, _, variant = name.partition(":")
            about = replace(base, variant=variant, n=len(table) * self.profile.batch_tokens)
            for site, column in zip(self.sites, table.T, strict=True):
                here = replace(about, site=site.name, depth=site.depth)
                yield here.estimate(metric, mean_interval(column, BATCHES))
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


def _profiled(shown: tuple[str, ...]) -> list[str]:
    return [name for name, metric in METRICS.items() if metric.shown in shown]


def profile_over_depth(records: pl.DataFrame) -> Figure | None:
    """Draw every measure over depth, all models together."""
    rows = labelled(records).filter(pl.col("quantity") == ACTIVATION, pl.col("depth").is_not_null(), IN_BATCHES)
    rows = rows.with_columns(key=KEY)
    shown = [name for name in _profiled(("table", "figure")) if name in rows["key"]]
    if not shown or rows["depth"].n_unique() < 2:
        return None
    n_rows = -(-len(shown) // 3)
    titles = [METRICS[name].axis for name in shown]
    plot = make_subplots(n_rows, 3, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.09)
    for place, name in enumerate(shown):
        row, col = place // 3 + 1, place % 3 + 1
        for colour, model in zip(cycle(COLOURS), models_of(rows), strict=False):
            line = rows.filter(pl.col("key") == name, pl.col("model_label") == model).sort("depth")
            if line.height:
                trace = bars(line, "depth", model, colour).update(
                    legendgroup=model, showlegend=place == 0, text=line["site"].to_list()
                )
                plot.add_trace(trace, row=row, col=col)
        log_axis(plot, METRICS[name], row, col)
    plot.update_xaxes(title_text="depth (0: before the first block, 1: after the last)", row=n_rows, col=2)
    caption = (
        "Means over batches of shuffled token vectors, with 95% intervals over batches. The shape of a profile (bell, "
        "valley, irregular, monotone, flat) is decided over the same batches; undecided: neither a shape nor flatness "
        "could be shown."
    )
    return Figure(_title(rows, records), caption, styled(plot, 260 * n_rows + 80))


def _title(rows: pl.DataFrame, records: pl.DataFrame) -> str:
    shapes = labelled(records).filter(pl.col("metric") == derived(SHAPE, "anisotropy"))
    kinds = {
        model: _decided(records.filter(pl.col("run") == run, pl.col("model") == name), "anisotropy", "", kind)[0]
        for model, run, name, kind in shapes.select("model_label", "run", "model", "detail").rows()
    }
    told = []
    for (model,), line in rows.filter(pl.col("key") == "anisotropy").group_by(["model_label"], maintain_order=True):
        values = line["value"].to_list()
        told.append(f"{model} {min(values):.2g} to {max(values):.2g} ({kinds.get(str(model), 'no shape decided')})")
    return "Anisotropy over depth: " + "; ".join(sorted(told))


def profile_tables(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate mean and standard deviation over batches, site by site, one table per model."""
    key = ["run", "model", "site", "key"]
    is_sd = pl.col("metric").str.starts_with(f"{SD}/")
    rows = records.with_columns(key=KEY.str.strip_prefix(f"{SD}/"))
    wide = (
        rows.filter(~is_sd)
        .join(rows.filter(is_sd).select(*key, sd="value"), on=key)
        .filter(pl.col("key").is_in(_profiled(("table",))))
        .with_columns(text=text_of(pl.struct("value", "sd"), lambda row: f"{row['value']:.3g} ±{row['sd']:.1g}"))
        .sort("run", "model", "depth", maintain_order=True)
        .pivot("key", index=key[:-1], values="text", maintain_order=True)
    )
    columns = [pl.col(name).alias(METRICS[name].axis) for name in _profiled(("table",)) if name in wide.columns]
    for (model,), frame in wide.select(*key[:-1], *columns).group_by(["model"], maintain_order=True):
        yield Table(f"{model}, site by site: mean ± standard deviation over batches", frame.drop("model"))


def _decided(rows: pl.DataFrame, metric: str, variant: str, kind: str) -> tuple[str, str, str]:
    """Return a profile's shape, the margin within which differences count as none, and how many batches would decide.

    An earlier version called flat what had no significant difference, and had no margin: that is undecided.
    """
    margins, needed = (
        rows.filter(metric=derived(prefix, metric), variant=variant)["value"].to_list()
        for prefix in (SHAPE_MARGIN, SHAPE_BATCHES)
    )
    if not margins:
        return "undecided" if kind == "flat" else kind, "a margin", "an earlier version tested no margin"
    more = f"about {needed[0]:.0f} batches of this spread would decide" if needed else "more batches would not decide"
    return kind, f"{margins[0]:.2g}", more


def shapes(rows: pl.DataFrame) -> Iterator[str]:
    """Say what the profile of each headline measure looks like over depth, by the test over batches."""
    values = rows.with_columns(key=KEY)
    for name in _profiled(("table",)):
        metric, _, variant = name.partition(":")
        for row in rows.filter(metric=derived(SHAPE, metric), variant=variant).iter_rows(named=True):
            value = values.filter(pl.col("key") == name, pl.col("site") == row["site"])["value"][0]
            at = f"{value:#.3g} at {row['site']}"
            kind, margin, more = _decided(rows, metric, variant, row["detail"])
            told = {
                "bell": f"a bell, {at}, above the higher end by {interval_text(row)}",
                "valley": f"a valley, {at}, off the lower end by {interval_text(row)}",
                "irregular": f"irregular, {at} stands out by {interval_text(row)}; no bell, valley or monotone profile",
                "monotone": f"monotone, the last site is off the first by {interval_text(row)}",
                "flat": f"flat, all differences between sites are within {margin}; the widest is {interval_text(row)}",
                "undecided": (
                    f"undecided, neither a shape nor that all differences between sites are within {margin} could be "
                    f"shown; the widest difference is {interval_text(row)}, and {more}"
                ),
            }[kind]
            label = METRICS[name].label
            yield f"{label[0].upper()}{label[1:]} over depth: {told} (95% interval over batches)."


def clusters(rows: pl.DataFrame) -> Iterator[str]:
    """Say whether the space is rounder inside clusters than as a whole."""
    inside, random = (rows.filter(metric="local_anisotropy", variant=variant) for variant in ("", "matched"))
    both = inside.join(random, on="site", suffix="_random")
    if both.height:
        rounder = both.filter(pl.col("ci_high") < pl.col("ci_low_random")).height
        longer = both.filter(pl.col("ci_low") > pl.col("ci_high_random")).height
        means = " and ".join(f"{both[name].sum() / both.height:#.3g}" for name in ("value", "value_random"))
        yield (
            f"Inside clusters, the anisotropy is significantly below that of as many random rows at {rounder} of "
            f"{both.height} sites, significantly above it at {longer} and not significantly different from it at "
            f"{both.height - rounder - longer} (means {means})."
        )


PROFILE = Study(
    NAME,
    Profile,
    run_profile,
    folder=lambda plan: Path("runs") / f"{NAME}-{'-'.join(Path(model).name or 'model' for model in plan.models)}",
    section=Section(figures=(profile_over_depth,), tables=(profile_tables,), findings=(shapes, clusters)),
)
