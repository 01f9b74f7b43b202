"""What to train, and what to look at while it is trained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor, nn

from tangentlens.corpora.enwik8 import tokenize_enwik8
from tangentlens.corpora.symbols import N_IDS, encode, spell, text_of
from tangentlens.corpora.text import builtin_text, read_text
from tangentlens.corpora.tokens import MASK, TokenizedText, in_sequences, tokenize
from tangentlens.errors import InputError, check_name
from tangentlens.lens.schedule import log_steps
from tangentlens.models.device import AUTO, find_device
from tangentlens.models.small import SMALL_MODELS, Kind, small_model
from tangentlens.runs.files import Place, as_place
from tangentlens.runs.run import Run
from tangentlens.training.loop import Checkpoint
from tangentlens.training.regularisers import TERMS
from tangentlens.training.tempering import WAYS


@dataclass(frozen=True)
class TrainPlan:
    """What to train and what to look at.

    Attributes:
        models: Which models to train, of `SMALL_MODELS`: a decoder, an encoder, a masked decoder, or a variation.
        seeds: How many networks of each; their seeds are `seed`, `seed` + 1, and so on.
        text: A text file; the built-in text by default.
        units: What tokens are: `bpe`, those of a tokenizer trained on the text; `symbols`, the bytes that enwik8 has;
            or `enwik8`, the same for a file of enwik8, which is cleaned first.
        size: How many bytes to use, of enwik8 before it is cleaned, or of symbols; None for all.
        vocabulary: Token types of the tokenizer.
        length: Tokens in a sequence.
        layers: Blocks of each model.
        width: Width of each model.
        batch: Sequences in a training step.
        steps: Training steps of each model.
        learning_rate: Peak learning rate.
        mask_rate: Share of tokens that a masked model has to predict.
        in_epochs: Whether each sequence is seen once before any is seen again; otherwise each step draws from all.
        held_out: Share of the text, at its end, that no network is trained on.
        dense: Measure so many steps at the beginning, in addition to logarithmically spaced ones.
        sites: What to look at.
        measures: Further measures of activations.
        updates: Matrices whose updates are compared with proxies.
        predict: Whether to test the subspaces of each due step on the gradients of the next.
        probe: Whether to measure how representations of held-out text move.
        by_frequency: Whether to bin shares and gradients by token frequency too, which takes a third of a due step.
        rank: Rank of the proxy and of its controls.
        seed: Seed of the first network's weights, of its batches and of everything that is drawn.
        device: Where to compute; `auto` is the accelerator of this machine, or the CPU without one.
        concepts: Whether to put concepts into words.
        keep: Whether to keep the weights of every due step, as it begins, for a sweep.
        evaluate: Whether to write the loss on held-out text at every due step, as it begins.
        look: When to measure each network on held-out text too, with probes: at the `last` due step, at `every` one, as
            they begin, or never (empty).
        penalty: The name of a regulariser whose penalty is added to the loss; empty for none.
        strength: The strength of the penalty.
        tempering: How token frequencies p are made p^alpha, one of `WAYS`; empty if they are left as they are.
        alpha: The power of the frequencies.
    """

    models: tuple[str, ...] = ("decoder", "encoder")
    seeds: int = 1
    text: str | None = None
    units: Literal["bpe", "symbols", "enwik8"] = "bpe"
    size: int | None = None
    vocabulary: int = 2048
    length: int = 64
    layers: int = 6
    width: int = 128
    batch: int = 32
    steps: int = 257
    learning_rate: float = 1.5e-3
    mask_rate: float = 0.3
    in_epochs: bool = False
    held_out: float = 0.0
    dense: int = 0
    sites: str | tuple[str, ...] = "resid"
    measures: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    predict: bool = False
    probe: bool = False
    concepts: bool = False
    by_frequency: bool = True
    rank: int = 16
    seed: int = 0
    device: str = AUTO
    keep: bool = False
    evaluate: bool = False
    look: Literal["", "last", "every"] = ""
    penalty: str = ""
    strength: float = 0.0
    tempering: str = ""
    alpha: float = 1.0

    def __post_init__(self) -> None:
        for model in self.models:
            check_name("a small model", model, SMALL_MODELS)
        if not 1 <= self.rank <= self.width // 2:
            raise InputError(f"rank must be between 1 and half the width, {self.width // 2}, but is {self.rank}")
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, but is {self.seeds}")
        if not 0 <= self.held_out < 1:
            raise InputError(f"held_out must be from 0 to below 1, but is {self.held_out}")
        if self.keep and self.units != "bpe":
            raise InputError(f"checkpoints are kept of models with a tokenizer (bpe), but units are {self.units}")
        if self.probe and not self.held_out:
            raise InputError("a probe must be held-out text, but held_out is 0; hold out 0.1, for example")
        if (self.evaluate or self.look) and not self.held_out:
            raise InputError("evaluation needs held-out text, but held_out is 0; hold out 0.1, for example")
        self._check_treatment()

    def _check_treatment(self) -> None:
        """Raise if what is done to the training beyond the plain recipe is not one known change."""
        if self.penalty:
            check_name("a regulariser", self.penalty, TERMS)
        elif self.strength:
            raise InputError(f"a strength needs a penalty, but is {self.strength} without one; name a regulariser")
        if not self.tempering:
            if self.alpha != 1:
                raise InputError(f"an alpha needs a tempering, but is {self.alpha} without one; name a way to temper")
            return
        check_name("a way to temper", self.tempering, WAYS)
        masked = [model for model in self.models if Network("", model, 0).kind != "decoder"]
        if self.penalty or masked:
            raise InputError(
                "tempering must be the only change, and of models that predict each next token, but it comes with "
                f"{self.penalty or masked[0]}; leave one of the two out"
            )

    @classmethod
    def of(cls, config: dict[str, Any]) -> TrainPlan:
        """Return the plan that a run's manifest holds."""
        # JSON has lists in place of tuples.
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
        }
        return cls(**settings)

    def schedule(self) -> list[int]:
        """Return the steps at which to look: logarithmically spaced, the last one included, and the dense ones."""
        return sorted({*log_steps(self.steps - 1), *range(min(self.dense, self.steps))})

    def whole_text(self) -> str:
        """Return the text, if it is not enwik8."""
        return builtin_text() if self.text is None else read_text(Path(self.text))

    def tokens(self) -> TokenizedText:
        """Return the whole text, as tokens."""
        if self.units == "enwik8":
            if self.text is None:
                raise InputError("enwik8 must be given as a file, but none came; `tangentlens enwik8` downloads it")
            return tokenize_enwik8(Path(self.text), self.length, self.size)
        text = self.whole_text()
        if self.units == "symbols":
            return in_sequences(encode(spell(text)[: self.size]), N_IDS, self.length, text_of)
        return tokenize(text, self.vocabulary, self.length)

    def split(self, tokens: TokenizedText) -> tuple[Int[Tensor, "n length"], Int[Tensor, "m length"]]:
        """Return the sequences to train on and those that are held out."""
        kept = len(tokens.sequences) - int(self.held_out * len(tokens.sequences))
        return tokens.sequences[:kept], tokens.sequences[kept:]

    def looks_at(self, step: int) -> bool:
        """Return whether to measure networks on held-out text at a due step."""
        return self.look == "every" or (self.look == "last" and step == self.steps - 1)

    def epoch(self) -> int:
        """Return the number of steps in which every sequence to train on is seen once."""
        return len(self.split(self.tokens())[0]) // self.batch

    def networks(self) -> list[Network]:
        """Return the networks to train, one kind after the other."""
        return [
            Network(model if self.seeds == 1 else f"{model}-{seed}", model, seed)
            for model in self.models
            for seed in range(self.seed, self.seed + self.seeds)
        ]

    @property
    def treatment(self) -> str:
        """What is done to the training beyond the plain recipe; empty if nothing is."""
        if self.tempering:
            return f"{self.tempering} {self.alpha:g}"
        return f"{self.penalty} {self.strength:g}" if self.penalty else ""

    def family(self, network: Network, tokens: TokenizedText) -> str:
        """Return what a network has in common with those that differ from it in their seed alone.

        Words say the most of it. The text and the rest of what decides a training are in a short hash.
        """
        recipe = (tokens.sha256, self.batch, self.learning_rate, self.mask_rate, self.in_epochs, self.held_out)
        known_by = hashlib.sha256(repr(recipe).encode()).hexdigest()[:6]
        text = f"{tokens.vocabulary} types of {self.units}, recipe {known_by}"
        model = f"{network.model} with {self.treatment}" if self.treatment else network.model
        return f"{model}, {self.layers} blocks of width {self.width}, {self.steps} steps on {text}"

    def kept(self, out: str | Place, network: Network) -> Path:
        """Return the folder of a run that holds the weights of a network's due steps, and its tokenizer."""
        place = as_place(out)
        if not isinstance(place, Path):
            raise InputError(
                f"weights must be kept in a folder, where models can be loaded from, but {place} is a URL; name a "
                "folder, or leave out keep"
            )
        return place / "checkpoints" / network.name

    def untrained(self, network: Network, vocabulary: int) -> nn.Module:
        """Return a network before its training."""
        shape = (vocabulary, self.layers, self.width, self.length, MASK, network.seed)
        return small_model(network.model, *shape).to(find_device(self.device))


def at_full_scale(plan: TrainPlan) -> TrainPlan:
    """Return a plan for five seeds of networks with 100 million parameters, as studies train them on a GPU."""
    return replace(
        plan,
        seeds=5,
        vocabulary=16_384,
        length=512,
        layers=12,
        width=768,
        batch=64,
        steps=20_001,
        learning_rate=6e-4,
        rank=16,
    )


def many_decoders(steps: int, look: Literal["last", "every"]) -> dict[str, TrainPlan]:
    """Return plans for a study of very many small decoders, by scale. None of these is about frequency bins.

    Args:
        steps: Training steps at the scale `small`.
        look: When to look at the networks on held-out text.
    """
    small = TrainPlan(
        models=("decoder",),
        seeds=3,
        vocabulary=1024,
        layers=4,
        width=96,
        batch=16,
        steps=steps,
        held_out=0.1,
        evaluate=True,
        look=look,
        sites="resid:3",
        by_frequency=False,
        rank=8,
    )
    smoke = replace(small, seeds=2, vocabulary=300, length=32, layers=2, width=32, batch=8, steps=3, rank=4)
    return {
        "smoke": replace(smoke, sites=("resid.1",)),
        "small": small,
        "full": at_full_scale(small),
    }


@dataclass(frozen=True)
class Network:
    """A network of a training.

    Attributes:
        name: Its name in the records.
        model: What it is.
        seed: The seed of its weights and batches.
    """

    name: str
    model: str
    seed: int

    @property
    def kind(self) -> Kind:
        """What it has to predict: each next token (decoder) or masked ones (encoder)."""
        return "encoder" if self.model in ("encoder", "masked decoder") else "decoder"

    def checkpoint(self, run: Run) -> Checkpoint:
        """Return where its training state is kept."""
        return Checkpoint(run, f"{self.name}-checkpoint")
