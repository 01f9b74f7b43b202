"""Capture of activations and their true gradients in a training step as it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tangentlens.alignment.concepts import contexts
from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.batch import Batch, Objective
from tangentlens.capture.device import Devices, MeasureOn
from tangentlens.capture.flow import Flow, copied_rows, on_gradient
from tangentlens.capture.sites import Site
from tangentlens.capture.targets import Targets
from tangentlens.errors import InputError


@dataclass(eq=False)
class _Piece:
    """The rows of one forward pass at a site.

    Attributes:
        batch: The batch of the pass.
        activations: The activations at the positions that are stored.
        gradients: The sum of the gradients received so far; None before the first one.
    """

    batch: Batch
    activations: Float[Tensor, "n d"]
    gradients: Float[Tensor, "n d"] | None = None

    def add(self, gradient: Tensor) -> None:
        """Add a gradient: those of several backward passes are summed, as they are in a parameter's `grad`."""
        kept = copied_rows(gradient, self.batch)
        self.gradients = kept if self.gradients is None else self.gradients + kept


@dataclass(frozen=True, eq=False)
class Held:
    """Rows of several passes, of which some count.

    They are selected when they are read: the host has to wait for a GPU then, and the step that they are from must not.

    Attributes:
        parts: The rows of each pass, and which of them count.
    """

    parts: Sequence[tuple[Float[Tensor, "_ d"], Bool[Tensor, "_"]]]

    def read(self) -> Float[Tensor, "n d"]:
        """Return the rows that count."""
        return torch.cat([rows[counts] for rows, counts in self.parts])


class Capture:
    """A context that captures the rows of each site in every backward pass through `model`.

    Forward passes that are never back-propagated are not captured. Hooks read and copy; they change no tensor.

    Args:
        model: The model in training.
        sites: Where to look.
        exclude: Token ids to leave out, such as padding or a begin-of-sequence token.
        objective: What positions predict; None if that is not known.
        max_tokens: Keep at most this many tokens of all forward passes together; if there are more, a random sample.
        loss_scale: Returns the factor by which the loss is multiplied in mixed precision; gradients are divided by it.
        skip_first: How many positions at the beginning of each sequence to leave out.
        targets: What positions predict, if the user says it: the name of an argument of the call, or a function of it.
        measure_on: 'cpu' if rows are moved to the host as they are captured.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Site],
        exclude: Sequence[int] = (),
        objective: Objective | None = None,
        max_tokens: int | None = None,
        loss_scale: Callable[[], float] | None = None,
        skip_first: int = 0,
        targets: Targets | None = None,
        measure_on: MeasureOn | None = None,
    ) -> None:
        self.sites = sites
        self.loss_scale = loss_scale
        self._scale: float | None = None
        self._pieces: dict[str, list[_Piece]] = {site.name: [] for site in sites}
        self._flow = Flow(model, sites, self._see, exclude, objective, max_tokens, skip_first, targets, measure_on)

    def __enter__(self) -> Capture:
        self._flow.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flow.__exit__(kind, error, trace)

    def _see(self, site: Site, batch: Batch, hidden: Tensor) -> None:
        """Copy the activations, and have their gradient added when it comes."""
        piece = _Piece(batch, copied_rows(hidden, batch))
        self._pieces[site.name].append(piece)

        def receive(gradient: Tensor) -> None:
            # The scale is read now because the optimizer's step may change it.
            if self._scale is None and self.loss_scale is not None:
                self._scale = float(self.loss_scale())
            self._flow.count(batch, site)
            piece.add(gradient)

        on_gradient(hidden, receive)

    def _with_gradient(self, site: Site) -> list[_Piece]:
        """Return the pieces of a site that have received a gradient."""
        return [piece for piece in self._pieces[site.name] if piece.gradients is not None]

    @property
    def devices(self) -> Devices:
        """Return where ranks exchange numbers, and where rows are measured."""
        return self._flow.devices

    def ran(self, site: Site) -> bool:
        """Return whether any forward pass came through the site."""
        return self._flow.ran(site)

    @property
    def n_backward(self) -> int:
        """Return the number of forward passes that have been back-propagated."""
        return max((len(self._with_gradient(site)) for site in self.sites), default=0)

    def without_gradient(self) -> list[str]:
        """Return the names of the sites that a forward pass came through, but no gradient."""
        return [site.name for site in self.sites if self.ran(site) and not self._with_gradient(site)]

    def widths(self, sites: Sequence[Site]) -> dict[str, int]:
        """Return the width of each of the sites that a forward pass with gradients came through, by name."""
        return {site.name: pieces[0].activations.shape[1] for site in sites if (pieces := self._pieces[site.name])}

    def activations(self) -> dict[str, Held]:
        """Return the activations of each site that a gradient came through, by name of the site."""
        by_site = {site: self._with_gradient(site) for site in self.sites}
        return {
            site.name: Held([(piece.activations, self._flow.in_sample(site, piece.batch)) for piece in pieces])
            for site, pieces in by_site.items()
            if pieces
        }

    def rows(self, site: Site) -> TokenRows:
        """Return the activations and gradients of a site. Their memory is freed by `forget`."""
        pieces = self._with_gradient(site)
        if not pieces:
            raise no_gradient([str(site)])
        self._flow.check_calls(site)
        # As indices: a mask would make the host wait each time it is used.
        chosen = torch.cat([self._flow.in_sample(site, piece.batch) for piece in pieces]).nonzero()[:, 0]
        gradients = torch.cat([piece.gradients for piece in pieces if piece.gradients is not None])[chosen]

        def of(name: str) -> Tensor:
            return torch.cat([piece.batch.at_stored(getattr(piece.batch, name)) for piece in pieces])[chosen]

        return TokenRows(
            activations=torch.cat([piece.activations for piece in pieces])[chosen],
            gradients=gradients if self._scale is None else gradients.float() / self._scale,
            sequences=of("sequences"),
            tokens=of("tokens"),
            targets=of("targets"),
            positions=of("positions"),
        )

    def contexts(self, site: Site) -> Int[Tensor, "n width"]:
        """Return the tokens around each of the rows of a site, whether these are in the sample or not."""
        pieces = self._with_gradient(site)
        chosen = torch.cat([self._flow.in_sample(site, piece.batch) for piece in pieces])
        around = [
            piece.batch.among_stored(contexts(piece.batch.tokens.flatten(), piece.batch.sequences.flatten()))
            for piece in pieces
        ]
        return torch.cat(around)[chosen]

    def forget(self, site: Site) -> None:
        """Free the memory of a site's rows."""
        self._pieces[site.name] = []


def no_gradient(sites: Sequence[str]) -> InputError:
    """Return the error for sites that no gradient came through."""
    return InputError(
        f"{', '.join(sites)} must be in the loss, but no gradient came through {'it' if len(sites) == 1 else 'them'} "
        "since the last step; call backward before lens.step(), check that no site is frozen and that the model is not "
        "called through torch.compile(model), or choose other sites"
    )
