"""Activations and gradients of a model that is not trained: one backward pass for each batch, and no update."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

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
    skip_first: int = 0,
) -> tuple[dict[str, TokenRows], float]:
    """Return the rows of every site over all batches, by name of the site, and the mean of the losses.

    Args:
        model: A model that returns its loss.
        batches: The arguments of each call of the model, by name.
        sites: The sites to capture.
        objective: What positions predict.
        exclude: Token ids to leave out.
        skip_first: How many positions at the beginning of each sequence to leave out.
    """
    losses = []
    with _few_weight_gradients(model), Capture(model, sites, exclude, objective, skip_first=skip_first) as capture:
        for batch in batches:
            loss = model(**batch).loss
            loss.backward()
            losses.append(loss.item())
            model.zero_grad(set_to_none=True)
    rows = {}
    for site in sites:
        rows[site.name] = capture.rows(site)
        capture.forget(site)
    return rows, sum(losses) / len(losses)


@contextmanager
def _few_weight_gradients(model: nn.Module) -> Iterator[None]:
    """Let only embeddings have gradients, which then flow through every activation: those of all weights are as large.

    A model without embeddings is left as it is.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    paused = [weight for weight in model.parameters() if embeddings and id(weight) not in embeddings]
    paused = [weight for weight in paused if weight.requires_grad]
    for weight in paused:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in paused:
            weight.requires_grad_(True)
