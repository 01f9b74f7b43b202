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
    """The weight of a module, as (outputs, inputs): of a linear map, or of an embedding (a row a token type).

    `tied` says that the same weight also stands elsewhere in the model, so its gradient is the sum of two.
    """

    name: str
    site: Site
    is_embedding: bool
    is_transposed: bool
    tied: bool

    @property
    def module(self) -> nn.Module:
        """Whose weight it is."""
        return self.site.module

    @property
    def place(self) -> str:
        """What kind of module it is of."""
        return type(self.module).__name__ + (", tied to another" if self.tied else "")

    @property
    def weight(self) -> nn.Parameter:
        """The parameter as the module keeps it."""
        weight = self.module.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def rows(self, weight: Tensor, side: Side) -> Float[Tensor, "n d"]:
        """A weight, its gradient or its update, as rows in the space of its inputs or of its outputs.

        The rows of an embedding are token types in the space of its outputs.
        """
        weight = weight.T if self.is_transposed else weight
        return weight if self.is_embedding or side == "input" else weight.T

    def sites(self) -> dict[Side, Site]:
        """Where the activations on its sides are; an embedding has token ids on one of them."""
        sides: tuple[Side, ...] = ("output",) if self.is_embedding else ("input", "output")
        return {side: replace(self.site, name=f"{self.name}:{side}", side=side) for side in sides}


def find_matrices(model: nn.Module, wanted: str | Sequence[str]) -> list[Matrix]:
    """The matrices that `wanted` names: modules with one weight, by portable name, path or glob, as for sites."""
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
        tied = sum(parameter is weight for parameter in everywhere) > 1
        is_embedding = isinstance(site.module, nn.Embedding)
        if is_embedding and of_tokens and not any(site.module is module for module in of_tokens):
            raise InputError(
                f"updates may name the embedding of tokens, but {site.name} is one of something else, such as "
                "positions, which has no row for each token; leave it out"
            )
        matrices.append(Matrix(site.name, site, is_embedding, flipped, tied))
    return matrices


class UpdateCapture:
    """A context around one training step that sees what it does to some matrices. Nothing is changed.

    Gradients are those of the whole step, before clipping, averaged over ranks; updates are what the optimizer did.
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
        """Let go of what was seen."""
        self._before.clear()
        self._gradients.clear()

    def _receive(self, matrix: Matrix, weight: Tensor) -> None:
        if weight.grad is not None:
            # Several backward passes add up in it, so the last one has all.
            scale = 1.0 if self.loss_scale is None else float(self.loss_scale())
            gradient = weight.grad.detach()
            self._gradients[matrix.name] = (gradient.to_dense() if gradient.is_sparse else gradient).float() / scale

    def gradient(self, matrix: Matrix) -> Tensor | None:
        """Of the step, or None if none came; all ranks must ask."""
        found = self._gradients.get(matrix.name)
        if world_size() == 1 or not any(of_all_ranks(found is not None, matrix.weight.device)):
            return found
        # Whether the ranks' own or already their mean: the mean over ranks is the same.
        total = torch.zeros_like(matrix.weight, dtype=torch.float32) if found is None else found.clone()
        dist.all_reduce(total)
        return total / world_size()

    def update(self, matrix: Matrix) -> Tensor:
        """What the step has added to the matrix."""
        return (matrix.weight.detach() - self._before[matrix.name]).float()
