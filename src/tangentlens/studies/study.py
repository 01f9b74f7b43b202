"""A study: small models trained side by side on one text, with the lens on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor, nn

from tangentlens.capture.sites import find_sites
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.text import builtin_text, read_text
from tangentlens.corpora.tokens import MASK, TokenizedText, tokenize
from tangentlens.errors import InputError
from tangentlens.lens.lens import Lens
from tangentlens.lens.schedule import log_steps
from tangentlens.models.small import Kind, small_model, weight_hash
from tangentlens.runs.run import Run, create_run
from tangentlens.training.loop import Checkpoint, Recipe, train
from tangentlens.training.objectives import batch_for, draw


@dataclass(frozen=True)
class Study:
    """What to train and what to look at. The defaults are the demo."""

    models: tuple[Kind, ...] = ("decoder", "encoder")
    text: str | None = None
    vocabulary: int = 2048
    length: int = 64
    layers: int = 6
    width: int = 128
    batch: int = 32
    steps: int = 257
    learning_rate: float = 1.5e-3
    mask_rate: float = 0.3
    sites: str | tuple[str, ...] = "resid"
    rank: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= self.width // 2:
            raise InputError(f"rank must be between 1 and half the width, {self.width // 2}, but is {self.rank}")

    def schedule(self) -> list[int]:
        """Steps at which to look: log-spaced, the last one included."""
        return log_steps(self.steps - 1)


DEMO = Study()

# Told the model, the steps done, and the loss.
StudyProgress = Callable[[str, int, float], None]


def run_study(study: Study, out: str | Path, progress: StudyProgress) -> Run:
    """Train each model of the study with the lens on, into the run directory `out`; goes on where it was stopped."""
    tokens = study_tokens(study)
    if len(tokens.sequences) < study.batch:
        raise InputError(
            f"the text must give at least {study.batch} sequences of {study.length} tokens, but gives "
            f"{len(tokens.sequences)}; use a longer text"
        )
    models = {kind: study_model(study, kind, tokens.vocabulary) for kind in study.models}
    for model in models.values():
        find_sites(model, study.sites)
    run = create_run(out, asdict(study))
    facts = {"sha256": tokens.sha256, "sequences": len(tokens.sequences), "vocabulary": tokens.vocabulary}
    run.claim_data(study.text, facts)
    TokenCounts(tokens.counts).save(run)
    for kind, model in models.items():
        _train_one(study, kind, model, tokens, run, progress)
    return run


def study_tokens(study: Study) -> TokenizedText:
    """The text that the study trains on."""
    text = builtin_text() if study.text is None else read_text(Path(study.text))
    return tokenize(text, study.vocabulary, study.length)


def study_model(study: Study, kind: Kind, vocabulary: int) -> nn.Module:
    """A model of the study before its training."""
    return small_model(kind, vocabulary, study.layers, study.width, study.length, MASK, study.seed)


def _train_one(
    study: Study, kind: Kind, model: nn.Module, tokens: TokenizedText, run: Run, progress: StudyProgress
) -> None:
    checkpoint = Checkpoint(run, f"{kind}-checkpoint")
    step, tokens_seen = checkpoint.position()
    progress(kind, step, float("nan"))
    if step >= study.steps:
        return
    parameters = sum(parameter.numel() for parameter in model.parameters())
    run.describe("models", {kind: {"parameters": parameters, "initial_weights_sha256": weight_hash(model)}})
    lens = Lens(
        model,
        sites=study.sites,
        rank=study.rank,
        every=study.schedule(),
        run=run,
        name=kind,
        counts=tokens.counts,
        seed=study.seed,
        step=step,
        tokens_seen=tokens_seen,
    )

    def batch(number: int) -> dict[str, Tensor]:
        sequences, generator = draw(tokens.sequences, study.batch, study.seed, number)
        return batch_for(kind, sequences, MASK, study.mask_rate, generator)

    recipe = Recipe(study.steps, study.learning_rate)
    train(model, batch, recipe, lens, checkpoint, lambda done, loss: progress(kind, done, loss))
