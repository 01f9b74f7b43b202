"""Parameter gradients and the optimizer's actual updates of chosen matrices, in one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Literal

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.capture.distributed import of_all_ranks, world_size
from tangentlens.capture.sites import Site, find_sites
from tangentlens.capture.stacks import find_stacks
from tangentlens.errors import InputError

Side = Literal["input", "output"]


@dataclass(frozen=True, eq=False)
class Matrix:
    """The weight of a linear map, (outputs, inputs), or of an embedding, (token types, width).

    Attributes:
        name: Its name, that of its site.
        site: The output of the module whose weight it is.
        is_embedding: Whether it is an embedding.
        is_transposed: Whether the module keeps it as (inputs, outputs).
        tied: Whether the model uses the same weight elsewhere or several times, so that its gradient is a sum.
    """

    name: str
    site: Site
    is_embedding: bool
    is_transposed: bool
    tied: bool

    @property
    def module(self) -> nn.Module:
        """Return the module whose weight it is."""
        return self.site.module

    @property
    def place(self) -> str:
        """Return a description of the matrix: the class of its module, and whether its gradient is a sum."""
        several = f", run {self.site.calls} times" if self.site.calls > 1 else ", tied to another"
        return type(self.module).__name__ + (several if self.tied else "")

    @property
    def weight(self) -> nn.Parameter:
        """Return the parameter as the module keeps it."""
        weight = self.module.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def rows(self, weight: Tensor, side: Side) -> Float[Tensor, "n d"]:
        """Return a weight, its gradient or its update as rows in the space of its inputs or of its outputs.

        The rows of an embedding are token types in the space of its outputs.

        Args:
            weight: A tensor of the weight's shape.
            side: The space: that of 'input' or of 'output'.
        """
        weight = weight.T if self.is_transposed else weight
        return weight if self.is_embedding or side == "input" else weight.T

    def sites(self) -> dict[Side, Site]:
        """Return the sites of the activations on either side; an embedding has an output side only."""
        sides: tuple[Side, ...] = ("output",) if self.is_embedding else ("input", "output")
        return {side: replace(self.site, name=f"{self.name}:{side}", side=side) for side in sides}


def find_matrices(model: nn.Module, wanted: str | Sequence[str]) -> list[Matrix]:
    """Return the matrices that `wanted` names.

    Args:
        model: Any module.
        wanted: Modules with a matrix as their weight, by portable name, path or glob, as in `find_sites`.
    """
    matrices = []
    everywhere = [parameter for module in model.modules() for parameter in module.parameters(recurse=False)]
    of_tokens = [stack.embedding for stack in find_stacks(model) if stack.embedding is not None]
    for site in find_sites(model, wanted):
        weight = getattr(site.module, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.ndim != 2:
            parts = [name for name, part in site.module.named_modules() if name and hasattr(part, "weight")]
            inside = f", but it has {', '.join(parts[:4])} inside" if parts else ""
            raise InputError(
                f"updates must name modules with a matrix as their weight, but {site.name} has none{inside}; name such "
                "modules by their paths, or `embed`"
            )
        if hasattr(weight, "device_mesh"):
            raise InputError(
                f"updates need matrices that are whole on each rank, but that of {site.name} is sharded; leave it out"
            )
        # Hugging Face's GPT-2 keeps its matrices the other way round.
        flipped = type(site.module).__name__ == "Conv1D"
        tied = sum(parameter is weight for parameter in everywhere) > 1 or site.calls > 1
        is_embedding = isinstance(site.module, nn.Embedding)
        if is_embedding and of_tokens and not any(site.module is module for module in of_tokens):
            raise InputError(
                f"updates may name the embedding of tokens, but {site.name} is one of something else, such as "
                "positions, which has no row for each token; leave it out"
            )
        matrices.append(Matrix(site.name, site, is_embedding, flipped, tied))
    return matrices


class UpdateCapture:
    """A context around one training step that captures the gradients and updates of matrices, and changes nothing.

    Gradients are those of the whole step, before clipping, averaged over ranks. Updates are what the optimizer added.

    Args:
        matrices: The matrices.
        loss_scale: Returns the factor by which the loss is multiplied in mixed precision; gradients are divided by it.
    """

    def __init__(self, matrices: Sequence[Matrix], loss_scale: Callable[[], float] | None = None) -> None:
        self.matrices = matrices
        self.sites = [site for matrix in matrices for site in matrix.sites().values()]
        self.loss_scale = loss_scale
        self._before: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> UpdateCapture:
        self.forget()
        for matrix in self.matrices:
            self._before[matrix.name] = matrix.weight.detach().clone()
            if matrix.weight.requires_grad:
                hook = partial(self._receive, matrix)
                self._handles.append(matrix.weight.register_post_accumulate_grad_hook(hook))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def forget(self) -> None:
        """Forget what was captured."""
        self._before.clear()
        self._gradients.clear()

    def _receive(self, matrix: Matrix, weight: Tensor) -> None:
        """Copy the gradient that a backward pass has accumulated."""
        if weight.grad is not None:
            # Gradients of several backward passes are accumulated, so after the last one this is the whole step's.
            scale = 1.0 if self.loss_scale is None else float(self.loss_scale())
            gradient = weight.grad.detach()
            self._gradients[matrix.name] = (gradient.to_dense() if gradient.is_sparse else gradient).float() / scale

    def gradient(self, matrix: Matrix) -> Tensor | None:
        """Return the gradient of the step, or None if there was none; every rank must call this."""
        own = self._gradients.get(matrix.name)
        if world_size() == 1 or not any(of_all_ranks(own is not None, matrix.weight.device)):
            return own
        # Whether each rank has its own gradient or already the mean of all: the mean over ranks is the same.
        total = torch.zeros_like(matrix.weight, dtype=torch.float32) if own is None else own.clone()
        dist.all_reduce(total)
        return total / world_size()

    def update(self, matrix: Matrix) -> Tensor:
        """Return what the step has added to the matrix."""
        return (matrix.weight.detach() - self._before[matrix.name]).float()
