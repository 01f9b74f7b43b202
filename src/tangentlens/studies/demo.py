"""The demo: a small decoder and a small encoder, trained side by side on one text with the lens on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tangentlens.capture.sites import find_sites
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.text import builtin_text, read_text
from tangentlens.corpora.tokens import MASK, TokenizedText, tokenize
from tangentlens.errors import InputError
from tangentlens.lens.lens import Lens
from tangentlens.lens.schedule import log_steps
from tangentlens.models.small import Kind, small_model, weight_hash
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.run import Run, create_run
from tangentlens.studies.study import Study
from tangentlens.training.loop import Checkpoint, Recipe, train
from tangentlens.training.objectives import batch_for, draw

NAME = "demo"


@dataclass(frozen=True)
class DemoPlan:
    """What to train and what to look at.

    Attributes:
        models: Which models to train: decoder, encoder.
        text: A text file; the built-in text by default.
        vocabulary: Token types of the tokenizer, which is trained on the text.
        length: Tokens in a sequence.
        layers: Blocks of each model.
        width: Width of each model.
        batch: Sequences in a training step.
        steps: Training steps of each model.
        learning_rate: Peak learning rate.
        mask_rate: Share of tokens that the encoder has to predict.
        sites: What to look at.
        rank: Rank of the proxy and of its controls.
        seed: Seed of weights, batches and everything that is drawn.
    """

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

    @classmethod
    def of(cls, config: dict[str, Any]) -> DemoPlan:
        """Return the plan that a run's manifest holds."""
        # JSON has lists in place of tuples.
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
        }
        return cls(**settings)

    def schedule(self) -> list[int]:
        """Return the steps at which to look: logarithmically spaced, the last one included."""
        return log_steps(self.steps - 1)

    def tokens(self) -> TokenizedText:
        """Return the text that the models are trained on, as tokens."""
        text = builtin_text() if self.text is None else read_text(Path(self.text))
        return tokenize(text, self.vocabulary, self.length)

    def model(self, kind: Kind, vocabulary: int) -> nn.Module:
        """Return a model before its training."""
        return small_model(kind, vocabulary, self.layers, self.width, self.length, MASK, self.seed)


def run_demo(plan: DemoPlan, out: str | Path, watch: Watch = unwatched) -> Run:
    """Train each model of the plan with the lens on, into the run directory `out`; an interrupted run is continued."""
    tokens = plan.tokens()
    if len(tokens.sequences) < plan.batch:
        raise InputError(
            f"the text must give at least {plan.batch} sequences of {plan.length} tokens, but gives "
            f"{len(tokens.sequences)}; use a longer text"
        )
    models = {kind: plan.model(kind, tokens.vocabulary) for kind in plan.models}
    for model in models.values():
        find_sites(model, plan.sites)
    run = create_run(out, asdict(plan), NAME)
    facts = {"sha256": tokens.sha256, "sequences": len(tokens.sequences), "vocabulary": tokens.vocabulary}
    run.claim_data(plan.text, facts)
    TokenCounts(tokens.counts).save(run)
    for kind, model in models.items():
        _train_one(plan, kind, model, tokens, run, watch)
    return run


def _train_one(plan: DemoPlan, kind: Kind, model: nn.Module, tokens: TokenizedText, run: Run, watch: Watch) -> None:
    checkpoint = Checkpoint(run, f"{kind}-checkpoint")
    step, tokens_seen = checkpoint.position()
    watch(Progress(kind, step, plan.steps))
    if step >= plan.steps:
        return
    parameters = sum(parameter.numel() for parameter in model.parameters())
    run.describe("models", {kind: {"parameters": parameters, "initial_weights_sha256": weight_hash(model)}})
    lens = Lens(
        model,
        sites=plan.sites,
        rank=plan.rank,
        every=plan.schedule(),
        run=run,
        name=kind,
        counts=tokens.counts,
        seed=plan.seed,
        step=step,
        tokens_seen=tokens_seen,
    )

    def batch(number: int) -> dict[str, Tensor]:
        sequences, generator = draw(tokens.sequences, plan.batch, plan.seed, number)
        return batch_for(kind, sequences, MASK, plan.mask_rate, generator)

    train(model, batch, Recipe(plan.steps, plan.learning_rate), lens, checkpoint, watch)


DEMO = Study(NAME, DemoPlan, run_demo, folder=lambda plan: Path("runs") / NAME)
