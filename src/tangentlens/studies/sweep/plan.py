"""What a sweep is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tangentlens.alignment.tangent_test import CONTROLS
from tangentlens.errors import InputError, check_name, check_whole
from tangentlens.geometry.massive import THRESHOLD, check_threshold
from tangentlens.geometry.measures import NAMES, USUAL
from tangentlens.models.device import AUTO
from tangentlens.models.loading import Loading
from tangentlens.proxies import DEFAULT, named_proxy
from tangentlens.studies.sweep.presets import family
from tangentlens.studies.sweep.series import Series, find_series

NAME = "sweep"


@dataclass(frozen=True)
class SweepPlan:
    """Which checkpoints to look at, and how.

    Attributes:
        models: Hub ids, folders of checkpoints, or directories with a checkpoint each.
        revisions: The revisions of models on the hub: a list, a range `step1000..step9000:1000`, a pattern, or `all`.
        preset: A family of models whose checkpoints are public.
        up_to: Of the preset, only models of up to this many billion parameters.
        text: A text file; the built-in text by default. All checkpoints of a model see the same tokens.
        sites: Where to look.
        measures: Names of the measures of activations.
        controls: What the proxy is compared with.
        rank: Rank of the proxy and of its controls.
        proxy: The name of the proxy.
        audit: Whether to audit every checkpoint too.
        tokens: How many tokens' gradients to look at.
        length: Tokens that the model sees at once.
        skip_first: How many positions at the beginning of each window to leave out.
        bos: Whether every window begins with the begin-of-sequence token, also if the tokenizer adds none.
        massive: How many times as long as the median row a row must be to count as massive.
        mask_rate: For a masked model, the share of tokens that it has to predict.
        fit_head: For a model without a head, the number of steps to train one; 0 refuses such a model.
        seed: Seed of everything that is drawn.
        device: Where to compute; `auto` is the accelerator of a machine, or the CPU without one.
        dtype: The format of weights and gradients; `auto` is that of the checkpoint or, on the CPU, float32.
        tokenizer: A directory or hub id of the tokenizer; None for that of the first checkpoint which has one.
        trust_remote_code: Whether to run code that a model's repository contains.
    """

    models: tuple[str, ...] = ()
    revisions: str | None = None
    preset: str | None = None
    up_to: float | None = None
    text: str | None = None
    sites: str | tuple[str, ...] = "resid"
    measures: tuple[str, ...] = USUAL
    controls: tuple[str, ...] = CONTROLS
    rank: int = 16
    proxy: str = DEFAULT
    audit: bool = False
    tokens: int = 8192
    length: int = 128
    skip_first: int = 0
    bos: bool = False
    massive: float = THRESHOLD
    mask_rate: float = 0.15
    fit_head: int = 0
    seed: int = 0
    device: str = AUTO
    dtype: str = "float32"
    tokenizer: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_whole(1, rank=self.rank)
        check_whole(256, tokens=self.tokens)
        check_whole(2, length=self.length)
        check_whole(0, skip_first=self.skip_first, fit_head=self.fit_head, seed=self.seed)
        for name in self.measures:
            check_name("a measure", name, NAMES)
        for name in self.controls:
            check_name("a control", name, CONTROLS)
        if self.up_to is not None and self.preset is None:
            raise InputError(f"up_to must come with a preset, but is {self.up_to:g} without one")
        named_proxy(self.proxy)
        check_threshold(self.massive, "massive")
        Loading.of(self)

    def series(self) -> list[Series]:
        """Return the series of checkpoints; revisions that are not named one by one are looked up on the hub."""
        chosen: Sequence[Any] = () if self.preset is None else family(self.preset, self.up_to)
        if self.preset is not None and not chosen:
            raise InputError(f"up_to must leave models of {self.preset}, but {self.up_to} leaves none; choose more")
        return find_series(self.models, self.revisions, chosen)
