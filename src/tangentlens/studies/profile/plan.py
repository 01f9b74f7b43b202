"""The plan of a profile: which models to look at, and how."""

from __future__ import annotations

from dataclasses import dataclass

from tangentlens.errors import InputError, check_name, check_whole
from tangentlens.geometry.massive import THRESHOLD, check_threshold
from tangentlens.geometry.measures import NAMES, USUAL
from tangentlens.models.device import AUTO
from tangentlens.models.loading import Loading
from tangentlens.studies.profile.presets import PRESETS, PresetModel

NAME = "profile"


@dataclass(frozen=True)
class Profile:
    """What to look at.

    Attributes:
        models: Directories, hub ids or `id@revision`. One that cannot be had is an error.
        text: A text file; the built-in text by default.
        sites: Where to look: names, or a mapping of names to module paths.
        measures: Names of the measures: by default those that take little time; `NAMES` are all.
        batches: How many batches of token vectors.
        batch_tokens: Token vectors in a batch.
        length: Tokens that the model sees at once.
        skip_first: How many positions at the beginning of each window to leave out.
        bos: Whether every window begins with the begin-of-sequence token, also if the tokenizer adds none.
        massive: How many times as long as the median row a row must be to count as massive.
        seed: Seed of the windows and of the vectors drawn from them.
        device: Where to compute; `auto` is the accelerator of this machine, or the CPU without one.
        dtype: The format of the weights; `auto` is that of the checkpoint or, on the CPU, float32.
        trust_remote_code: Whether to run code that a model's repository contains.
        preset: A set of further models by its name in `PRESETS`. One that cannot be had is skipped.
        up_to: Only models of the preset with at most so many billions of parameters.
        device_map: `auto` spreads a model that is larger than the device over all devices, memory and disk.
        tokenizer: A directory or hub id of the tokenizer; None for each model's own.
    """

    models: tuple[str, ...] = ()
    text: str | None = None
    sites: str | tuple[str, ...] | dict[str, str] = "resid"
    measures: tuple[str, ...] = USUAL
    batches: int = 5
    batch_tokens: int = 4096
    length: int = 128
    skip_first: int = 0
    bos: bool = False
    massive: float = THRESHOLD
    seed: int = 0
    device: str = AUTO
    dtype: str = AUTO
    trust_remote_code: bool = False
    # None and not another value: the manifests of runs from before there were presets have none.
    preset: str | None = None
    up_to: float | None = None
    device_map: str | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        check_whole(2, batches=self.batches, length=self.length)
        check_whole(64, batch_tokens=self.batch_tokens)
        check_whole(0, skip_first=self.skip_first, seed=self.seed)
        if not self.measures:
            raise InputError(f"measures must name at least one, but is empty; choose from {', '.join(NAMES)}")
        for name in self.measures:
            check_name("a measure", name, NAMES)
        check_threshold(self.massive, "massive")
        Loading.of(self)
        self._check_models()

    def _check_models(self) -> None:
        """Raise if there are no models, or no such preset."""
        if self.preset is not None:
            check_name("a preset", self.preset, PRESETS)
            if not self.preset_models:
                least = min(model.parameters for model in PRESETS[self.preset].models) / 1e9
                raise InputError(
                    f"up_to must leave a model, but is {self.up_to:g} billion parameters; choose at least {least:.2g}"
                )
        elif self.up_to is not None:
            raise InputError("up_to must come with a preset, but there is none; name one: preset=shape-of-learning")
        elif not self.models:
            raise InputError("a model or a preset must be named, but none is; name a directory or a hub id")

    @property
    def preset_models(self) -> tuple[PresetModel, ...]:
        """The models of the preset, the smallest first."""
        return () if self.preset is None else PRESETS[self.preset].up_to(self.up_to)
