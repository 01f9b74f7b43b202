"""What a caller has in hand, where a plan would name a model or a text file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Int
from torch import Tensor

from tangentlens.corpora.windows import Text
from tangentlens.errors import InputError
from tangentlens.models.loaded import LoadedModel


@dataclass(frozen=True)
class InHand:
    """A model and a text that need not be loaded.

    Attributes:
        model: The model, which a plan calls by its name; None if the plan says where it is.
        text: The text; None if the plan says where it is.
    """

    model: LoadedModel | None = None
    text: Text | None = None

    def text_of(self, name: str | None) -> Text:
        """Return the text, or that of the file which a plan names, or the built-in one."""
        return self.text or Text(None if name is None else Path(name))


NOTHING = InHand()


def not_run(name: str, tokens: Int[Tensor, "w length"], reason: str) -> InputError:
    """Return the error of a model that does not run.

    Args:
        name: What the error calls the model.
        tokens: The token ids `(w, length)` that it was run on.
        reason: What it raised.
    """
    return InputError(
        f"{name} must run on windows of {tokens.shape[1]} tokens, here with ids up to {int(tokens.max())}, but "
        f"raised: {reason}; if its context is shorter, choose a smaller length, and if it has fewer embeddings, pass "
        "ids below their number"
    )
