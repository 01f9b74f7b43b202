"""What a lens measured, as records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from tangentlens.alignment.share import BINNED_ORDERS, moment_shares
from tangentlens.alignment.tangent_result import TangentTest, average
from tangentlens.errors import InputError
from tangentlens.geometry.measures import MEASURES, Estimate
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.spectrum.anisotropy import anisotropy
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.measures import SiteMeasures
from tangentlens.lens.resume import part_name
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run
from tangentlens.runs.vocabulary import ACTIVATION, GRADIENT, PROXY, UNCENTRED, WITHOUT_MASSIVE
from tangentlens.statistics.jackknife import share_jackknife


def write_step(run: Run, about: Record, records: Sequence[Record], measured: Mapping[str, SiteMeasures]) -> None:
    """Write the records of a due step, and the bases of its subspaces.

    Args:
        run: The run.
        about: What the records have in common.
        records: The records.
        measured: What was measured at each site.
    """
    part = part_name(about.model, about.step)
    bases = {
        f"{site}/{name}": subspace.basis.float().cpu()
        for site, of_site in measured.items()
        for name, subspace in of_site.subspaces.items()
    }
    if bases:
        run.save_tensors(part, bases)
    run.write(part, records)


def site_records(about: Record, site: SiteMeasures, token_name: Callable[[int], str] = str) -> Iterator[Record]:
    """Yield the measures of a site as records like `about`: of all rows and, if some are massive, without these.

    Args:
        about: What the records have in common.
        site: The measures.
        token_name: Returns what to call a token, given its id.
    """
    yield from _records(about, site, token_name)
    here = replace(about, rows=WITHOUT_MASSIVE)
    if isinstance(site.without_massive, SiteMeasures):
        yield from _records(here, site.without_massive, token_name)
    elif site.without_massive is not None:
        yield here.unmeasured(str(site.without_massive))


def _records(about: Record, site: SiteMeasures, token_name: Callable[[int], str]) -> Iterator[Record]:
    activation = replace(about, quantity=ACTIVATION, n=site.n)
    for measure in MEASURES:
        here, estimate = replace(activation, variant=measure.variant), site.estimates.get(measure.key)
        if isinstance(estimate, Estimate):
            yield here.estimate(measure.name, estimate.interval, n=estimate.n)
        elif estimate is not None:
            detail = site.massive.told(token_name) if measure.name == "massive_rows" else ""
            yield replace(here, metric=measure.name, value=estimate, detail=detail)
    gradient = replace(about, quantity=GRADIENT, n=site.n)
    if site.gradient_anisotropy is not None:
        yield replace(gradient, metric="anisotropy", variant=UNCENTRED, value=site.gradient_anisotropy)
    yield replace(gradient, metric="rms_norm", value=site.gradient_rms)
    if isinstance(site.test, TangentTest):
        yield from share_records(about, site.test)
    else:
        yield replace(about, quantity=GRADIENT).unmeasured(f"no shares: {site.test}")


def mean_records(about: Record, sites: Sequence[SiteMeasures]) -> Iterator[Record]:
    """Yield means over sites with the same tokens: of all rows and, if some are massive at a site, without these."""
    if len({site.n for site in sites}) > 1:
        return
    yield from _means(about, sites)
    without = [site.without_massive for site in sites]
    if any(without) and not any(isinstance(one, InputError) for one in without):
        kept = [one if isinstance(one, SiteMeasures) else site for one, site in zip(without, sites, strict=True)]
        yield from _means(replace(about, rows=WITHOUT_MASSIVE), kept)


def _means(about: Record, sites: Sequence[SiteMeasures]) -> Iterator[Record]:
    """Yield means over sites, if all have the same width; of shares, if all were tested on the same sequences."""
    tests = [site.test for site in sites if isinstance(site.test, TangentTest)]
    # A site may lack frequency bins, as the last one of an encoder does, but not groups of sequences.
    groups = {len(shares) for test in tests for shares in test.shares.values()}
    if len({site.dim for site in sites}) > 1 or len(groups) > 1:
        return
    for measure in MEASURES:
        replicates = [_replicates(site, measure.key) for site in sites]
        known = [one for one in replicates if one is not None]
        if len(known) == len(sites) and len({len(one) for one in known}) == 1:
            mean = share_jackknife(torch.stack(known).mean(dim=0))
            here = replace(about, quantity=ACTIVATION, variant=measure.variant, n=min(site.n for site in sites))
            yield here.estimate(measure.name, mean)
    if len(tests) == len(sites):
        yield from share_records(about, average(tests))


def _replicates(site: SiteMeasures, key: str) -> Tensor | None:
    estimate = site.estimates.get(key)
    return estimate.replicates if isinstance(estimate, Estimate) else None


def share_records(about: Record, test: TangentTest, quantity: str = GRADIENT) -> Iterator[Record]:
    """Yield the result of a tangent test as records like `about`; `quantity` is what the shares are of."""
    about = replace(about, quantity=quantity, rank=test.rank)

    def detail(variant: str) -> str:
        return PROXY if variant == test.proxy else ""

    for cell in test.shares:
        here = replace(about, n=test.n_tokens[cell.freq_bin], **cell._asdict())
        yield here.estimate("share", test.share(*cell), detail=detail(cell.variant))
        if cell.variant != test.proxy:
            yield here.estimate("log_ratio", test.log_ratio(*cell))
        if cell in test.p_values:
            yield replace(here, metric="p_value", value=test.p_values[cell])
    for token_cell in test.token_shares:
        here = replace(about, n=test.n_tokens[token_cell.freq_bin], order=1.0, **token_cell._asdict())
        yield here.estimate("token_share", test.token_share(*token_cell), detail=detail(token_cell.variant))
        if token_cell.variant != test.proxy:
            yield here.estimate("token_log_ratio", test.token_log_ratio(*token_cell))
    for freq_bin in dict.fromkeys(cell.freq_bin for cell in test.shares):
        here = replace(about, n=test.n_tokens[freq_bin], freq_bin=freq_bin, rank=None)
        yield replace(here, metric="effective_tokens", value=test.effective_tokens[freq_bin])
        yield replace(here, metric="effective_sequences", value=test.effective_sequences[freq_bin])
    if quantity == GRADIENT:
        yield from _bin_records(replace(about, rank=None), test)
    for order, held in test.held_by_top.items():
        here = replace(about, n=test.n_tokens["all"], variant=test.proxy, order=order)
        yield replace(here, metric="held_by_top", value=held, detail=PROXY)
    for variant, kind, order in product(dict.fromkeys((test.proxy, "pca")), ("input", "target"), BINNED_ORDERS):
        ratio = test.frequency_log_ratio(kind, order, variant)
        if ratio is not None:
            here = replace(about, variant=variant, order=order, freq_bin=kind)
            yield here.estimate("frequency_log_ratio", ratio, detail=detail(variant))


def _bin_records(about: Record, test: TangentTest) -> Iterator[Record]:
    """Yield how long the gradients of each frequency bin are, and how much they point the same way."""
    for freq_bin in test.rms:
        here = replace(about, freq_bin=freq_bin, n=test.n_tokens[freq_bin])
        yield here.estimate("rms_norm", test.rms_of_bin(freq_bin))
        yield here.estimate("anisotropy", test.anisotropy_of_bin(freq_bin), variant=UNCENTRED)


def window_records(
    about: Record, activations: Moments, gradients: Moments, proxies: Mapping[str, Subspace], proxy: str
) -> Iterator[Record]:
    """Yield what the moments of many steps say, and the share of their gradients in subspaces fitted before.

    One moment does not tell noise from signal, so `window_share` at order 2 is biased towards r / d, unlike `share`.

    Args:
        about: What the records have in common.
        activations: Moments of the activations since the last due step.
        gradients: Moments of the gradients since then.
        proxies: The subspaces that were fitted at the last due step, by name.
        proxy: Which of them is the proxy.
    """
    activation = replace(about, quantity=ACTIVATION, n=activations.count)
    yield replace(activation, metric="window_anisotropy", value=anisotropy(activations))
    gradient = replace(about, quantity=GRADIENT, n=gradients.count)
    moment = gradients.second_moment()
    energy = float(moment.trace())
    yield replace(gradient, metric="window_rms_norm", value=math.sqrt(energy))
    if energy <= 0:
        return
    yield replace(gradient, metric="window_anisotropy", variant=UNCENTRED, value=anisotropy(gradients, False))
    shares = moment_shares(moment, proxies, BINNED_ORDERS) if proxies else ()
    for (name, q), of_proxy in zip(proxies.items(), shares, strict=True):
        for order, share in zip(BINNED_ORDERS, of_proxy, strict=True):
            here = replace(gradient, variant=name, order=order, rank=q.rank, detail=PROXY if name == proxy else "")
            yield replace(here, metric="window_share", value=float(share))
