"""Shares of a matrix's gradient, and of its actual update, in proxies of the activations on either side of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.alignment.chance import chance_beside
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.group_moments import GroupMoments
from tangentlens.alignment.share import BINNED_ORDERS, moment_shares, spectral_power
from tangentlens.capture.distributed import gathered_rows, is_first
from tangentlens.capture.sites import Site
from tangentlens.capture.step import Capture
from tangentlens.capture.updates import Matrix, Side, UpdateCapture
from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows, product
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.measures import Fitting
from tangentlens.lens.memory import Memory
from tangentlens.proxies import named_proxy
from tangentlens.proxies.pca import pca
from tangentlens.proxies.principal import Principal
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import PARAMETER_GRADIENT, PROXY, UPDATE
from tangentlens.statistics.jackknife import share_jackknife

# Groups of token types that are left out in turn.
_GROUPS = 16


def update_records(
    about: Record,
    updates: UpdateCapture,
    capture: Capture,
    memory: Memory,
    fitting: Fitting,
) -> list[Record]:
    """Return the records of all matrices. All ranks take part; the first one gets the records."""
    records: list[Record] = []
    for matrix in updates.matrices:
        whole = {PARAMETER_GRADIENT: updates.gradient(matrix), UPDATE: updates.update(matrix)}
        changes = {name: None if one is None else one.to(capture.devices.measure) for name, one in whole.items()}
        for side, site in matrix.sites().items():
            here, activations = replace(about, site=site.name, depth=site.depth), memory.earlier(site, capture.devices)
            # What ranks exchange comes first and on all of them.
            as_input = _as_input(matrix, capture, site) if matrix.is_embedding and matrix.tied else None
            if not is_first():
                continue
            try:
                subspaces = fitted(activations, fitting)
                for quantity, change in changes.items():
                    about_change = replace(here, quantity=quantity)
                    records += _change_records(about_change, matrix, change, side, subspaces, fitting.bins)
                if as_input is not None:
                    part = replace(here, site=f"{site.name} (as input)", quantity=PARAMETER_GRADIENT)
                    records += embedding_records(part, as_input, subspaces, fitting.bins)
            except InputError as error:
                records.append(here.unmeasured(str(error)))
    return records


def _change_records(
    about: Record,
    matrix: Matrix,
    change: Tensor | None,
    side: Side,
    subspaces: dict[str, Subspace],
    bins: FrequencyBins | None,
) -> Iterator[Record]:
    if change is None:
        raise InputError(f"{matrix.name} must have a gradient, but none came; is it frozen?")
    if not bool(change.any()):
        raise InputError(f"{matrix.name} must have changed, or have a gradient, but this is all 0: {about.quantity}")
    rows = matrix.rows(change, side)
    return (
        embedding_records(about, rows, subspaces, bins)
        if matrix.is_embedding
        else matrix_records(about, rows, subspaces)
    )


def _as_input(matrix: Matrix, capture: Capture, site: Site) -> Float[Tensor, "types d"] | None:
    """Return the part of a tied embedding's gradient that comes from its use as input; the rest is as output."""
    try:
        own = capture.rows(site)
    except InputError:
        # The weight is used without its module, or the module more than once.
        own = None
    of_all = gathered_rows(own, capture.devices)
    if of_all is None:
        return None
    rows = torch.zeros(matrix.weight.shape, device=of_all.gradients.device)
    rows.index_add_(0, of_all.tokens, of_all.gradients.float())
    padding = getattr(matrix.module, "padding_idx", None)
    if padding is not None:
        rows[padding] = 0
    return rows


def fitted(activations: Float[Tensor, "n d"] | None, fitting: Fitting) -> dict[str, Subspace]:
    """Return the proxy of the activations on one side of a matrix, and their top-variance directions."""
    if activations is None:
        raise InputError("the step before must have activations to fit the proxy on, but there was none")
    principal = Principal.of(as_rows(activations))
    if not 1 <= fitting.rank <= activations.shape[1] // 2:
        raise InputError(f"rank must be at most half of the width {activations.shape[1]}, but is {fitting.rank}")
    name, fit = named_proxy(fitting.proxy)
    proxy = fit(principal, fitting.rank, fitting.seed)
    return {"pca": pca(principal, proxy.rank)} | {name: proxy}


def matrix_records(about: Record, rows: Float[Tensor, "n d"], subspaces: dict[str, Subspace]) -> Iterator[Record]:
    """Yield shares of the rows of a matrix, with chance in closed form.

    One matrix is one observation, so these shares have no intervals, and order 2 is that of this very matrix. The last
    of `subspaces` is the proxy.
    """
    moment = product(as_rows(rows))
    about = replace(about, n=len(rows))
    shares = moment_shares(moment, subspaces, BINNED_ORDERS)
    for (name, subspace), of_order in zip(subspaces.items(), shares.tolist(), strict=True):
        for order, share in zip(BINNED_ORDERS, of_order, strict=True):
            here = replace(about, variant=name, order=order, rank=subspace.rank)
            yield replace(here, metric="share", value=share, detail=_detail(name, subspaces))
            if _detail(name, subspaces):
                yield from _chance_records(here, spectral_power(moment, order), subspace, share)


def embedding_records(
    about: Record, rows: Float[Tensor, "types d"], subspaces: dict[str, Subspace], bins: FrequencyBins | None
) -> Iterator[Record]:
    """Yield shares of the rows of an embedding, one row per token type, by frequency and with intervals over types."""
    rows = as_rows(rows)
    chosen = {"all": torch.ones(len(rows), dtype=torch.bool, device=rows.device)}
    if bins is not None:
        of_type = bins.assign(torch.arange(len(rows), device=rows.device))
        chosen |= {f"input.{number}": of_type == number for number in range(bins.n_bins)}
    for freq_bin, types in chosen.items():
        moving = types & rows.abs().amax(dim=1).gt(0)
        if int(moving.sum()) >= 2:
            yield from _types_records(replace(about, freq_bin=freq_bin), rows, moving, subspaces)


def _types_records(
    about: Record, rows: Float[Tensor, "types d"], moving: Bool[Tensor, "types"], subspaces: dict[str, Subspace]
) -> Iterator[Record]:
    kept = rows[moving]
    groups = _random_groups(len(kept)).to(rows.device)
    moments = GroupMoments.of(kept, groups, int(groups.max()) + 1)
    about = replace(about, n=len(kept))
    for name, shares in moments.shares(subspaces, BINNED_ORDERS).items():
        for place, order in enumerate(BINNED_ORDERS):
            here = replace(about, variant=name, order=order, rank=subspaces[name].rank)
            share = replace(share_jackknife(shares[:, place], moments.energy), ci_over="types")
            yield here.estimate("share", share, detail=_detail(name, subspaces))
            if _detail(name, subspaces):
                yield from _chance_records(here, moments.power(order), subspaces[name], share.value)


def _detail(name: str, subspaces: dict[str, Subspace]) -> str:
    """Return the detail that marks records of the proxy, the last of the subspaces."""
    return PROXY if name == next(reversed(subspaces)) else ""


def _random_groups(n: int) -> Int[Tensor, "n"]:
    """Return a random group for each of `n` types; groups are of equal size."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0)) % min(_GROUPS, n)


def _chance_records(about: Record, matrix: Float[Tensor, "d d"], proxy: Subspace, share: float) -> Iterator[Record]:
    """Yield what random subspaces of the rank take, and the probability that one takes as much as the proxy."""
    random, normal = chance_beside(matrix, proxy)
    for name, control in (("random", random), ("normal", normal)):
        yield replace(about, variant=name).estimate("share", control.interval())
    yield replace(about, variant="random", metric="p_value", value=random.p_value(share))
