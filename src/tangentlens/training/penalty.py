"""A regulariser on a model in training: its term at every site, as one number to add to the loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from types import TracebackType

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tangentlens.capture.batch import Batch
from tangentlens.capture.flow import Flow
from tangentlens.capture.sites import Site, Wanted, find_sites
from tangentlens.errors import InputError, check_whole
from tangentlens.training.regularisers import Term, named_term

# Tokens of a forward pass that a term sees: enough for its estimates, few enough to cost a small part of a step.
MAX_TOKENS = 512
# The name in a state of how many sequences were seen, from which samples of tokens are drawn.
_SEEN = "sequences seen"


class Penalty:
    """The mean of a term over sites, times a strength, to add to the loss of each forward pass.

    Padding does not count, nor do the token ids in `exclude`. Of a pass with more than `max_tokens` tokens, a random
    sample counts; it has a random generator of its own, so that a strength of 0 changes nothing.

    Args:
        model: The model in training.
        term: A function of rows `(n, d)` that returns a scalar, such as those of `tangentlens.regularisers`, or the
            name of one of these. One that remembers something, in an attribute `running`, is copied for each site.
        strength: What the mean over sites is multiplied by. If negative, the term is made larger.
        sites: Where, as in `Lens`.
        exclude: Token ids to leave out, such as a begin-of-sequence token.
        max_tokens: The largest number of tokens of a pass that count.

    >>> from tangentlens.models.small import small_model
    >>> model = small_model("decoder", vocabulary=50, layers=2, width=32, length=8, mask=1, seed=0)
    >>> tokens = torch.arange(40).reshape(5, 8)
    >>> with Penalty(model, "cosine", strength=0.1) as penalty:
    ...     loss = model(input_ids=tokens, labels=tokens).loss + penalty()
    >>> loss.backward()
    """

    def __init__(
        self,
        model: nn.Module,
        term: str | Term,
        strength: float,
        sites: Wanted = "resid",
        exclude: tuple[int, ...] = (),
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        if isinstance(strength, bool) or not math.isfinite(strength):
            raise InputError(f"strength must be a finite number, but is {strength!r}; 0.1 is a place to begin")
        check_whole(2, max_tokens=max_tokens)
        self.strength = float(strength)
        self.sites = find_sites(model, sites)
        term = named_term(term) if isinstance(term, str) else term
        self._terms = {site.name: copy.deepcopy(term) for site in self.sites}
        self._found: dict[str, Float[Tensor, ""]] = {}
        self._flow = Flow(model, self.sites, self._see, exclude, max_tokens=max_tokens)
        self._batch: Batch | None = None
        self._kept: Int[Tensor, "n"] | None = None

    def start(self) -> Penalty:
        """Begin to watch the model, for loops that no `with` stands around, and return this penalty."""
        self._flow.__enter__()
        return self

    def close(self) -> None:
        """Stop watching the model."""
        self._flow.__exit__(None, None, None)
        self._found.clear()
        self._batch = self._kept = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a penalty needs to continue from a checkpoint with the same numbers."""
        kept = {name: getattr(term, "running", None) for name, term in self._terms.items()}
        running = {name: value for name, value in kept.items() if value is not None}
        return {_SEEN: torch.tensor(self._flow.n_sequences), **running}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the `state_dict` of a penalty with the same settings; an empty one is that of a new penalty."""
        for name, value in state.items():
            if name == _SEEN:
                self._flow.n_sequences = int(value)
            else:
                vars(self._terms[name])["running"] = value

    def __enter__(self) -> Penalty:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self) -> Float[Tensor, ""]:
        """Return the penalty of the last forward pass, to be added to its loss."""
        if not self._found:
            raise InputError(
                "a penalty must be asked for after a forward pass with gradients through its sites, but there was none "
                "since the last time; call the model first, inside `with Penalty(...)` or after `start()`, and where "
                "activations are recomputed use checkpointing that is not reentrant"
            )
        # Blocks may be spread over devices.
        found = list(self._found.values())
        self._found.clear()
        return self.strength * torch.stack([one.to(found[-1].device) for one in found]).mean()

    def _see(self, site: Site, batch: Batch, hidden: Tensor) -> None:
        """Take the term of a site."""
        if site.name in self._found:
            # Nobody asked for the penalty of the pass before.
            self._found.clear()
        rows, chosen = hidden.flatten(0, -2), self._positions(batch)
        # Where autocast is on, products would be in half precision.
        with torch.autocast(hidden.device.type, enabled=False):
            self._found[site.name] = self._terms[site.name](
                rows if chosen is None else rows.index_select(0, chosen.to(rows.device))
            )

    def _positions(self, batch: Batch) -> Int[Tensor, "n"] | None:
        """Return the positions that count, numbered over the whole batch; None for all.

        A GPU is waited for, once for all sites of a batch.
        """
        if batch is not self._batch:
            keep = batch.keep.flatten()
            self._batch, self._kept = batch, None if batch.whole else keep.nonzero()[:, 0]
        return self._kept
