"""Presets: families of models whose checkpoints are public, as data. A new family is an entry of `FAMILIES`."""

from __future__ import annotations

from dataclasses import dataclass

from tangentlens.errors import check_name

# Pythia's checkpoints: powers of two, then every 1,000 steps; 154 in all.
_PYTHIA = ",".join(["step0", *(f"step{2**power}" for power in range(10)), "step1000..step143000:1000"])


@dataclass(frozen=True)
class SweepModel:
    """A model on the hub with public checkpoints.

    Attributes:
        hub_id: Its id on the hub.
        billions: Its parameters, in billions.
        revisions: Its checkpoints, as `wanted_revisions` takes them; patterns are looked up on the hub.
        tokens_per_step: Training tokens in a step; 0 if that is not known, or if names of revisions say the tokens.
    """

    hub_id: str
    billions: float
    revisions: str
    tokens_per_step: int = 0


def _pythia(size: str, billions: float) -> SweepModel:
    return SweepModel(f"EleutherAI/pythia-{size}", billions, _PYTHIA, 2_097_152)


def _smollm2(size: str, billions: float) -> SweepModel:
    return SweepModel(f"HuggingFaceTB/SmolLM2-{size}-intermediate-checkpoints", billions, "step-*")


# fmt: off
FAMILIES: dict[str, tuple[SweepModel, ...]] = {
    "pythia": tuple(
        _pythia(size, billions)
        for size, billions in (("14m", 0.014), ("31m", 0.031), ("70m", 0.070), ("160m", 0.162), ("410m", 0.405),
                               ("1b", 1.01), ("1.4b", 1.41), ("2.8b", 2.78), ("6.9b", 6.86), ("12b", 11.8))
    ),
    "smollm2": (_smollm2("135M", 0.135), _smollm2("360M", 0.362), _smollm2("1.7B", 1.71)),
    "olmo": (
        SweepModel("allenai/OLMo-1B-hf", 1.18, "step*-tokens*"),
        SweepModel("allenai/OLMo-2-0425-1B", 1.48, "stage1-step*-tokens*"),
        SweepModel("allenai/OLMo-2-1124-7B", 7.30, "stage1-step*-tokens*"),
    ),
    # What the branches of its checkpoints are called is not known here: all whose names have a number.
    "eurobert": (
        SweepModel("EuroBERT/EuroBERT-210m", 0.212, "all"),
        SweepModel("EuroBERT/EuroBERT-610m", 0.608, "all"),
        SweepModel("EuroBERT/EuroBERT-2.1B", 2.11, "all"),
    ),
}
# fmt: on


def family(name: str, up_to: float | None = None) -> list[SweepModel]:
    """Return the models of a family with at most so many billions of parameters, the smallest first.

    >>> [model.hub_id for model in family("pythia", up_to=0.1)]
    ['EleutherAI/pythia-14m', 'EleutherAI/pythia-31m', 'EleutherAI/pythia-70m']
    """
    check_name("a preset", name, FAMILIES)
    most = float("inf") if up_to is None else up_to
    return sorted((one for one in FAMILIES[name] if one.billions <= most), key=lambda one: one.billions)
