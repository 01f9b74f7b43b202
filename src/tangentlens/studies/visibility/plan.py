"""What a study of visible curvature looks at."""

from __future__ import annotations

from dataclasses import dataclass

from tangentlens.models.device import AUTO

# Exponents of frequency, from equal weights for all types to the frequencies of the corpus.
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Metrics in the records: visible curvature; its ratio to that of types with equal weights; the correlation of a type's
# frequency with its distance from the anchor; the share of draws in which the ratio fell with alpha.
VISIBLE, RATIO = "visible_curvature", "visible_curvature_ratio"
CORRELATION, FELL = "frequency_distance_correlation", "visible_curvature_fell"
# Variants in the records: anchors drawn with the corpus' frequencies, or drawn evenly among types; and frequencies that
# are permuted at random among types.
CORPUS, TYPES, PERMUTED = "corpus", "types", "permuted"


@dataclass(frozen=True)
class VisibilityPlan:
    """What to look at.

    Attributes:
        model: A directory, a hub id or `id@revision`; without one, synthetic manifolds are looked at.
        text: A text file; the built-in text by default.
        sites: Where to look.
        types: The most frequent token types, at most so many.
        length: Tokens that the model sees at once.
        anchors: How many patches to look at.
        dimension: The dimension of the tangent planes; by default the intrinsic one, if there are types enough for it.
        seed: Seed of everything that is drawn.
        device: Where to compute; `auto` is the accelerator of this machine, or the CPU without one.
        dtype: The format of the weights; `auto` is that of the checkpoint or, on the CPU, float32.
        device_map: `auto` spreads a model that is larger than the device over all devices, memory and disk.
        tokenizer: A directory or hub id of the tokenizer; None for the model's own.
        trust_remote_code: Whether to run code that a model's repository contains.
    """

    model: str | None = None
    text: str | None = None
    sites: tuple[str, ...] = ("resid",)
    types: int = 4096
    length: int = 128
    anchors: int = 128
    dimension: int | None = None
    seed: int = 0
    device: str = AUTO
    dtype: str = AUTO
    device_map: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool = False
