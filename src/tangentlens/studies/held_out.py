"""What a network is on text that it was not trained on: its loss, its geometry, and where its gradients lie."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tangentlens.corpora.tokens import MASK
from tangentlens.lens.lens import Lens
from tangentlens.models.small import Kind
from tangentlens.training.objectives import batch_for
from tangentlens.training.tempering import Tempered

# The largest number of sequences on which the loss is evaluated, and of those on which a network is looked at.
EVALUATED, LOOKED_AT = 256, 64


def held_out_batch(
    model: nn.Module, kind: Kind, sequences: Int[Tensor, "n length"], mask_rate: float
) -> dict[str, Tensor]:
    """Return the batch that a model is given, on its device. Which tokens are masked is always the same.

    Args:
        model: The model.
        kind: What it has to predict.
        sequences: Token ids `(n, length)`.
        mask_rate: For a masked model, the share of tokens that it has to predict.
    """
    batch = batch_for(kind, sequences, MASK, mask_rate, torch.Generator().manual_seed(0))
    device = next(model.parameters()).device
    return {name: ids.to(device) for name, ids in batch.items()}


@torch.no_grad()
def held_out_loss(
    model: nn.Module, kind: Kind, text: Tempered, sequences: Int[Tensor, "n length"], mask_rate: float
) -> float:
    """Return the loss of a model on sequences, a mean over tokens of the text.

    Args:
        model: The model, which returns its loss.
        kind: What it has to predict.
        text: The text that it was trained on.
        sequences: Token ids `(n, length)`.
        mask_rate: For a masked model, the share of tokens that it has to predict.
    """
    output = model(**held_out_batch(model, kind, text.read(sequences), mask_rate))
    return float(output.loss) if text.labels is None else text.labels.loss(output.logits, sequences)


def look(lens: Lens, batch: Mapping[str, Tensor]) -> None:
    """Measure a model on a batch; nothing is trained.

    Args:
        lens: A lens on the model, at a step that is due. A model that is being trained must be looked at in a copy,
            because a lens on the training would see the pass as well.
        batch: The batch.
    """
    lens.model.eval()
    with lens:
        loss = lens.model(**batch).loss
        loss.backward()
        lens.step(loss.detach())
    lens.model.zero_grad()
