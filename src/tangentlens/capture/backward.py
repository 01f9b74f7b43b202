"""Activations and gradients of batches that train nothing: one backward pass each, and the weights stay as they are."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.batch import Objective
from tangentlens.capture.sites import Site
from tangentlens.capture.step import Capture


def gradients(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    sites: Sequence[Site],
    objective: Objective,
    exclude: Sequence[int] = (),
) -> tuple[dict[str, TokenRows], float]:
    """The rows of every site over all batches, each a call that returns a loss; and the mean of the losses."""
    losses = []
    with Capture(model, sites, exclude, objective) as capture:
        for batch in batches:
            loss = model(**batch).loss
            loss.backward()
            losses.append(loss.item())
            model.zero_grad(set_to_none=True)
    return {site.name: capture.rows(site) for site in sites}, sum(losses) / len(losses)
