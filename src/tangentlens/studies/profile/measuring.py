"""How a profile is made: a few sites at once, as the model reaches them; what is measured is written at once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.capture.device import Devices
from tangentlens.capture.forward import activations
from tangentlens.capture.sites import Site, find_sites
from tangentlens.corpora.windows import Text, windows
from tangentlens.engine.side_by_side import at_once, side_by_side
from tangentlens.errors import InputError
from tangentlens.geometry.massive import Places
from tangentlens.geometry.measures import Cloud, chosen
from tangentlens.geometry.rows import as_rows
from tangentlens.models.foreign import explained
from tangentlens.models.load import check_model, load_model, model_name
from tangentlens.models.loaded import LoadedModel
from tangentlens.models.loading import Loading
from tangentlens.models.small import weight_hash
from tangentlens.runs.files import Place
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run
from tangentlens.runs.vocabulary import ACTIVATION
from tangentlens.statistics.evidence import BATCHES
from tangentlens.studies.in_hand import NOTHING, InHand, not_run
from tangentlens.studies.profile.expected import typical_cloud
from tangentlens.studies.profile.plan import NAME, Profile
from tangentlens.studies.profile.presets import PresetModel
from tangentlens.studies.profile.results import SiteBatch, cells, is_finished, measure_both_ways, summary
from tangentlens.studies.profile.skipping import measure_preset


def run_profile(profile: Profile, out: str | Place, watch: Watch = unwatched, in_hand: InHand = NOTHING) -> Run:
    """Profile every model into the run directory `out`; an interrupted run is continued.

    Args:
        profile: The plan.
        out: The run directory.
        watch: Told the progress.
        in_hand: The model and the text, where they need not be loaded.
    """
    text = in_hand.text_of(profile.text)
    if text.size == 0:
        raise InputError(f"{profile.text} must hold text, but is empty; name another file")
    for spec in profile.models if in_hand.model is None else ():
        check_model(spec, Loading.of(profile))
    run = create_run(out, asdict(profile), NAME)
    run.claim_data(profile.text, text.identity)
    names = _names(profile)
    for spec in profile.models:
        loaded = in_hand.model or load_model(spec, Loading.of(profile))
        _ModelProfile(profile, loaded, names[spec], run, text, watch).make()
    if profile.preset is not None:

        def make(model: PresetModel) -> None:
            loaded = load_model(model.spec, Loading.of(profile))
            _ModelProfile(profile, loaded, model.name, run, text, watch).make()

        measure_preset(profile, run, watch, make)
    return run


def _names(profile: Profile) -> dict[str, str]:
    """Return the name of each model in the records; two of one name are called by what the user typed."""
    names = {spec: model_name(spec) for spec in profile.models}
    taken = [*names.values(), *(model.name for model in profile.preset_models)]
    return {spec: spec if taken.count(name) > 1 else name for spec, name in names.items()}


class _ModelProfile:
    """One model of a profile."""

    def __init__(self, profile: Profile, loaded: LoadedModel, name: str, run: Run, text: Text, watch: Watch) -> None:
        self.profile, self.name, self.run, self.text, self.watch = profile, name, run, text, watch
        self.loaded = loaded.beginning_with_bos() if profile.bos else loaded
        self.sites = find_sites(self.loaded.model, profile.sites)
        self.measures = chosen(profile.measures)
        self.width = self.loaded.width
        self.length = self.loaded.text_length(profile.length, profile.skip_first)
        # The place of each token of text in what the model sees, special tokens counted.
        self.positions = torch.arange(self.length) + len(self.loaded.specials[0])
        self.measured: dict[str, list[SiteBatch]] = defaultdict(list)
        self.total = profile.batches * len(self.sites)

    def make(self) -> None:
        """Measure every site of every batch that has not been measured yet; from the second batch on, sum up."""
        parameters = sum(parameter.numel() for parameter in self.loaded.model.parameters())
        facts = {
            **self.loaded.facts,
            "loaded_from": self.loaded.name,
            "commit": self.loaded.commit,
            "parameters": parameters,
            "weights_sha256": weight_hash(self.loaded.model, self.loaded.not_loaded),
            "sites": {site.name: site.place for site in self.sites},
            "window": self.length,
        }
        self.run.claim_model(self.name, facts)
        if is_finished(self.run, self.name):
            return
        # A text that is too short is told before anything is measured.
        batches = list(self._batches())
        cost = self._cost(torch.cat(batches))
        self.watch(Progress(self.name, 0, self.total, cost))
        for number, gathered in enumerate(batches, start=1):
            self._measure_batch(number - 1, gathered, cost)
            if number > 1:
                self._sum_up()
                note = f"{number} batches summed up; {cost}"
                self.watch(Progress(self.name, number * len(self.sites), self.total, note, readable=self.run.path))
        self.run.describe("finished", {self.name: len(batches)})

    def _counts(self, tokens: Int[Tensor, "*w length"]) -> Bool[Tensor, "*w length"]:
        """Return which tokens count: text, after the positions that are skipped."""
        return self.loaded.is_text(tokens) & (self.positions >= self.profile.skip_first)

    def _batches(self) -> Iterator[Int[Tensor, "w length"]]:
        """Yield the windows of one batch at a time, until there are enough batches or the text ends.

        No window is in two batches: tokens of one window depend on each other, and the spread must show that.
        """
        gathered: list[Tensor] = []
        count = done = 0
        for window in windows(self.text, self.loaded.encode, self.length, self.profile.seed):
            gathered.append(window)
            count += int(self._counts(window).sum())
            if count >= self.profile.batch_tokens:
                yield torch.stack(gathered)
                done += 1
                gathered, count = [], 0
                if done == self.profile.batches:
                    return
        if done < 2:
            tokens = done * self.profile.batch_tokens + count
            raise InputError(
                f"the text must give at least {2 * self.profile.batch_tokens} tokens, two batches, in windows of "
                f"{self.length}, but gives {tokens}; use a longer text, a smaller batch_tokens or a smaller length"
            )

    def _measure_batch(self, number: int, tokens: Int[Tensor, "w length"], cost: str) -> None:
        """Measure one batch at all sites, while the model runs; what is on disk is not measured again.

        One pass sees the whole batch, so that only the rows of sites that are measured side by side are held at a time.
        """
        counts = self._counts(tokens)
        ids, positions = tokens[counts], self.positions.expand_as(tokens)[counts]
        mixed = torch.randperm(len(ids), generator=torch.Generator().manual_seed(self.profile.seed + number))
        mixed = mixed[: self.profile.batch_tokens]
        known = {site.name: SiteBatch.read(self.run, self._part(number, site)) for site in self.sites}
        for site in self.sites:
            self.measured[site.name] += [one for one in (known[site.name],) if one is not None]
        done = number * len(self.sites) + sum(one is not None for one in known.values())

        waiting: list[list[Callable[[], tuple[Site, SiteBatch]]]] = []
        device = Devices.of(self.loaded.model).measure

        def measure() -> None:
            nonlocal done
            works, waiting[:] = waiting[:], []
            for ((site, batch),) in side_by_side(works, device):
                self.measured[site.name].append(batch)
                done += 1
                shown = cells(self.measured[site.name])
                self.watch(Progress(self.name, done, self.total, f"{site.name}; {cost}", site.name, shown))

        def see(site: Site, rows: Float[Tensor, "n d"]) -> None:
            if known[site.name] is not None:
                return
            here = mixed.to(rows.device)
            of_site = rows[here], ids.to(rows.device)[here], positions.to(rows.device)[here]
            waiting.append([partial(self._kept, number, site, *of_site)])
            if len(waiting) == at_once(device):
                measure()

        if any(one is None for one in known.values()):
            self._forward(tokens, see)
            measure()

    def _part(self, number: int, site: Site) -> str:
        return f"{self.name}-batch-{number:04d}-{site.name}"

    def _kept(
        self, number: int, site: Site, rows: Float[Tensor, "n d"], ids: Int[Tensor, "n"], positions: Int[Tensor, "n"]
    ) -> tuple[Site, SiteBatch]:
        """Measure one batch at one site, and write it at once."""
        batch = self._measured(site, rows, ids, positions)
        batch.write(self.run, self._part(number, site))
        return site, batch

    def _measured(
        self, site: Site, rows: Float[Tensor, "n d"], ids: Int[Tensor, "n"], positions: Int[Tensor, "n"]
    ) -> SiteBatch:
        """Return the values of one batch at one site."""
        try:
            cloud = Cloud(as_rows(rows), ids, ids, self.profile.massive)
            return SiteBatch(measure_both_ways(cloud, self.measures), Places.of(cloud.massive, positions, ids))
        except InputError as error:
            raise InputError(f"{self.name} at {site.name}: {error}") from error

    def _forward(self, tokens: Int[Tensor, "w length"], see: Callable[[Site, Tensor], None]) -> None:
        keep = self.loaded.beside_specials(self._counts(tokens), at_specials=False)
        device = self.loaded.device
        activations(self.loaded.model, self.sites, self.loaded.framed(tokens).to(device), keep.to(device), see)

    def _cost(self, read: Int[Tensor, "w length"]) -> str:
        """Return how long all batches will take and how much memory, from a forward pass and a few sites at once."""
        # If the model cannot run on the text at all, it cannot on the windows with the largest token ids.
        some = read[read.amax(dim=1).argsort(descending=True)[: max(1, 512 // self.length)]]
        for _ in range(2):
            start = time.perf_counter()
            with explained(partial(not_run, self.name, some)):
                self._forward(some, lambda site, piece: None)
            forward = (time.perf_counter() - start) / some.numel()
        size = self.profile.batch_tokens
        device = Devices.of(self.loaded.model).measure
        held_at_once = at_once(device)
        samples = [typical_cloud(size, self.width, device) for _ in range(held_at_once)]
        start = time.perf_counter()
        for _ in side_by_side([[partial(measure_both_ways, sample, self.measures)] for sample in samples], device):
            pass
        measure = (time.perf_counter() - start) / held_at_once
        seconds = self.profile.batches * (size * forward + len(self.sites) * measure)
        weights = sum(parameter.nbytes for parameter in self.loaded.model.parameters())
        # The rows of each site in a few copies, and what flows through a block of the model.
        held = (8 + 8 * held_at_once) * size * self.width * 4
        about = f"about {seconds / 60:.0f} min" if seconds > 90 else f"about {seconds:.0f} s"
        return f"{about}, {(weights + held) / 2**30:.1f} GiB of memory on {self.loaded.where}"

    def _sum_up(self) -> None:
        """Write the summary of all batches so far, in place of that of fewer."""
        about = Record(
            model=self.name,
            revision=self.loaded.revision,
            quantity=ACTIVATION,
            seed=self.profile.seed,
            ci_over=BATCHES,
        )
        measured = [self.measured[site.name] for site in self.sites]
        self.run.write(
            self.name, summary(about, self.sites, measured, self.profile.batch_tokens, self.loaded.token_name)
        )
