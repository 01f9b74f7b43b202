"""A plain training loop that can be stopped at any moment and continues with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tangentlens.errors import InputError
from tangentlens.lens.lens import Lens
from tangentlens.runs.progress import Progress, Watch
from tangentlens.runs.run import Run
from tangentlens.training.penalty import Penalty
from tangentlens.training.tempering import weighted_loss

Batches = Callable[[int], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: with AdamW, a linear warm-up, and then a linear decay to a tenth of the learning rate.

    Attributes:
        steps: The number of steps.
        learning_rate: The peak learning rate.
        warmup: The number of steps of the warm-up.
        betas: The betas of AdamW.
        weight_decay: The weight decay of AdamW.
        clip: The largest norm of the gradient; longer ones are clipped.
    """

    steps: int
    learning_rate: float
    warmup: int = 20
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * max(0.1, 1 - step / self.steps)


def train(
    model: nn.Module,
    batches: Batches,
    recipe: Recipe,
    lens: Lens,
    checkpoint: Checkpoint,
    watch: Watch,
    before_due: Callable[[int], None] = lambda step: None,
    penalty: Penalty | None = None,
    weights: Float[Tensor, "vocabulary"] | None = None,
) -> None:
    """Train to the recipe's last step, from the last checkpoint if there is one; the lens decides when to measure.

    Args:
        model: A model that returns its loss.
        batches: Returns the batch of a step, given the number of the step.
        recipe: How to train.
        lens: The lens, made with the step of the checkpoint.
        checkpoint: Where the training state is kept; it is saved after every due step.
        watch: Called with the number of steps done, and the loss as a note.
        before_due: Called with the number of each due step before it begins.
        penalty: What is added to the loss, if anything. The loss that is written is without it.
        weights: The weight of each token type as a target, for a model that predicts each next token; equal by default.
            The loss that is written is without them.
    """
    optimizer = checkpoint.restore(model, recipe)
    lens.load_state_dict(checkpoint.state_of("lens"))
    if penalty is not None:
        penalty.load_state_dict(checkpoint.state_of("penalty"))
    with lens, penalty or nullcontext():
        while lens.current < recipe.steps:
            step, due = lens.current, lens.due()
            if due:
                before_due(step)
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate(step)
            batch = batches(step)
            output = model(**batch)
            loss = output.loss
            if not math.isfinite(loss.item()):
                raise InputError(
                    f"the loss must stay finite, but {lens.name}'s is {loss.item()} at step {step}; lower the learning "
                    f"rate ({recipe.learning_rate}); what was measured before is in {lens.run.path}"
                )
            trained = loss if weights is None else weighted_loss(output.logits, batch["labels"], weights)
            (trained if penalty is None else trained + penalty()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss.detach())
            watch(Progress(lens.name, step + 1, recipe.steps, f"loss {loss.item():.3f}"))
            if due or lens.current == recipe.steps:
                checkpoint.save(model, optimizer, lens, penalty)


@dataclass(frozen=True)
class Checkpoint:
    """Weights and optimizer state in a run directory, which are replaced atomically.

    Attributes:
        run: The run.
        name: The name of the file in the run.
    """

    run: Run
    name: str

    def position(self) -> tuple[int, int]:
        """Return the number of steps done and of tokens seen; zeros without a checkpoint."""
        kept = self.run.load_tensors(self.name)
        return (int(kept[1]["step"]), int(kept[1]["tokens_seen"])) if kept else (0, 0)

    def restore(self, model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
        """Load the weights into the model if any were saved, and return the optimizer with its saved state."""
        parameters = dict(model.named_parameters())
        optimizer = torch.optim.AdamW(
            parameters.values(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay
        )
        kept = self.run.load_tensors(self.name)
        if kept:
            tensors = kept[0]
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(tensors[f"weight/{name}"])
                    if f"step/{name}" not in tensors:
                        # What is not trained has no state.
                        continue
                    state = {key: tensors[f"{key}/{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
                    optimizer.state[parameter] = {
                        key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
                    }
        return optimizer

    def state_of(self, what: str) -> dict[str, Tensor]:
        """Return the saved state of the lens or of the penalty; empty without a checkpoint."""
        kept = self.run.load_tensors(self.name)
        return {
            key.removeprefix(f"{what}/"): value
            for key, value in (kept or ({},))[0].items()
            if key.startswith(f"{what}/")
        }

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, lens: Lens, penalty: Penalty | None = None
    ) -> None:
        """Save the weights and the states of the optimizer, the lens and the penalty."""
        tensors = {f"lens/{name}": value.cpu() for name, value in lens.state_dict().items()}
        if penalty is not None:
            tensors |= {f"penalty/{name}": value.cpu() for name, value in penalty.state_dict().items()}
        for name, parameter in model.named_parameters():
            tensors[f"weight/{name}"] = parameter.detach().cpu()
            tensors |= {f"{key}/{name}": value.cpu() for key, value in optimizer.state[parameter].items()}
        about = {"step": str(lens.current), "tokens_seen": str(lens.tokens_seen)}
        self.run.save_tensors(self.name, tensors, about)
