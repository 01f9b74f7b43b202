"""The checks of the audit, one function each, and their table. docs/measures/audit.md says what each measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.alignment.active_check import own_and_swapped_concepts
from tangentlens.alignment.audit_data import AuditData, Check
from tangentlens.alignment.chart_test import chart_test
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_planes import in_tangent_planes
from tangentlens.alignment.tangent_result import Cell
from tangentlens.errors import InputError
from tangentlens.geometry.curvature.local_geometry import local_geometry
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies import DEFAULT
from tangentlens.proxies.charts import charts
from tangentlens.proxies.pca import pca
from tangentlens.proxies.random import random
from tangentlens.proxies.semi_nmf import SPAN_TOL, SemiNMF
from tangentlens.proxies.tail import tail
from tangentlens.statistics.bootstrap import bootstrap_interval
from tangentlens.statistics.interval import Interval, exactly
from tangentlens.statistics.jackknife import jackknife, log_odds, log_share, share_jackknife
from tangentlens.statistics.words import WORDS, compare, grouped, relation

N_CHARTS = 12
# The number of refits of the proxy.
N_REFITS = 5
# The number of patches in which curvature is measured.
N_CURVED = 128


def proxy_and_tangents(on: AuditData) -> Check:
    """Compare how much of the tangent planes and of their orthogonal complements, the normals, the proxy contains."""
    rank, (d, m) = on.proxy.rank, on.planes.shape[1:]
    inside = torch.einsum("dr,adm->arm", on.proxy.basis, on.planes)
    taken = inside.square().sum(dim=(1, 2))
    angles = torch.linalg.svdvals(inside).clamp(0, 1).acos().rad2deg()
    means, n = on.anchor_means(torch.stack([taken / m, (rank - taken) / (d - m)], dim=1))
    tangent, normal = (bootstrap_interval(log_odds(means[:, column]), n).from_log_odds() for column in (0, 1))
    ratio = bootstrap_interval(log_share(means[:, 0]) - log_share(means[:, 1]), n)
    return Check(
        "proxy and tangents",
        f"the proxy contains {tangent} of the tangent planes and {normal} of their orthogonal complements, the normals "
        f"(chance {rank / d:.3g}); the medians of the smallest and largest principal angle between the proxy and a "
        f"tangent plane are {float(angles[:, 0].median()):.0f} and {float(angles[:, -1].median()):.0f} degrees",
        f"the part of the tangent planes that the proxy contains is {WORDS[relation(ratio)]} its part of the normals",
        {"tangents in the proxy": tangent, "normals in the proxy": normal, "log_ratio": ratio},
    )


def curvature_along_the_proxy(on: AuditData) -> Check:
    """Compare curvature along the proxy with that along random directions and directions of high and low variance."""
    rank = on.proxy.rank
    geometry = local_geometry(on.fit.activations, N_CURVED, dimension=on.plane_dimension, seed=on.seed)
    controls = {
        "random": random(on.proxy.dim, rank, on.seed),
        "pca": pca(on.principal, rank),
        "tail": tail(on.principal, rank),
    }
    along = geometry.along(on.proxy)
    ratios = {name: geometry.along_ratio(on.proxy, control) for name, control in controls.items()}
    means = f"the curvature along the proxy is {WORDS[relation(ratios['random'].log())]} that along random directions"
    if math.isnan(ratios["random"].value):
        means = "the curvature is too small to compare the proxy with random directions"
    return Check(
        "curvature",
        f"the rms curvature of the activations along the tangent part of the proxy is {along} (along all tangent "
        f"directions {geometry.rms_curvature}; dimension {geometry.dimension}, patches of {geometry.k} tokens with "
        f"radius {geometry.radius:.3g}). That is "
        + "; ".join(f"{ratio} times that along {name}" for name, ratio in ratios.items()),
        means
        + ("" if geometry.resolved else "; but tangent planes are not resolved here: this is about whole patches"),
        {"curvature along the proxy": along, "curvature": geometry.rms_curvature}
        | {f"ratio to {name}": ratio for name, ratio in ratios.items()},
    )


def own_and_swapped_charts(on: AuditData) -> Check:
    """Compare the share of a chart's gradients in its own plane with that in the planes of other charts.

    As a null, the comparison is repeated with the gradients randomly permuted over tokens.
    """
    fitted = charts(on.principal, N_CHARTS, max(on.rank // 2, 1), on.seed)
    permutation = torch.randperm(len(on.test.sequences), generator=on.generator()).to(on.test.sequences.device)
    chart = fitted.assign(on.test.activations)
    real, null = (
        chart_test(fitted, chart, gradients, on.test.sequences)
        for gradients in (on.test.gradients, on.test.gradients[permutation])
    )
    energy, anisotropy, permuted = real.log_ratio(1.0), real.log_ratio(2.0), null.log_ratio(1.0)
    means = (
        f"on average over charts, the share of a chart's gradients in its own plane is {WORDS[relation(energy)]} that "
        "in other charts' planes"
    )
    if relation(energy) == "above":
        means += (
            ", which one global subspace cannot explain"
            if energy.ci_low > permuted.ci_high
            else ", but the interval of their ratio overlaps with that of permuted gradients"
        )
    # One plane that takes much of all gradients puts some charts above and others below, which the mean does not feel.
    means += f". Chart by chart, it is {real.by_chart()}"
    return Check(
        "charts",
        f"the share of a chart's gradients in its own plane (rank {real.rank}, chance {real.rank / real.dim:.3g}) is "
        f"{real.share()}, and in the planes of other charts {real.share('swapped')}: a ratio of {energy.exp()} for "
        f"energy and {anisotropy.exp()} for anisotropy. The own share is larger in {real.wins} of {real.n_charts} "
        f"charts. With gradients randomly permuted over tokens, the ratio for energy is {permuted.exp()}",
        means,
        {"log_ratio": energy, "log_ratio at order 2": anisotropy, "log_ratio of permuted gradients": permuted}
        | {f"log_ratio of chart {name}": ratio for name, ratio in real.log_ratios.items()},
    )


def against_controls(on: AuditData) -> Check:
    """Compare the energy share of the proxy with that of every control."""
    test = on.tangent_test
    ratios = {control: test.log_ratio(control) for control in test.variants[1:]}
    p_values = {name: test.p_values.get(Cell(name, 1.0, "all")) for name in ratios}
    words = {name: relation(ratio) for name, ratio in ratios.items()}
    # A share above the mean of random subspaces may still be one that a single one of them reaches.
    words |= {name: "undecided" for name, p in p_values.items() if words[name] == "above" and (p or 0.0) >= 0.05}
    return Check(
        "controls",
        f"the energy share of the proxy is {test.share()}: "
        + "; ".join(compare(name, ratio, p_values[name]) for name, ratio in ratios.items()),
        f"its share is {grouped(words, than='that of')}",
        {f"log_ratio to {name}": ratio for name, ratio in ratios.items()},
    )


def stability(on: AuditData) -> Check:
    """Refit the proxy with other seeds and to resampled sequences, and compare the refits with it."""
    refits = {
        "seeds": [on.fitted(on.principal, seed=on.seed + number) for number in range(1, N_REFITS + 1)],
        "resampled sequences": [on.fitted(_resampled(on, number)) for number in range(N_REFITS)],
    }
    estimates = {}
    for over, subspaces in refits.items():
        named = {str(number): subspace for number, subspace in enumerate(subspaces)}
        shares = [float(share[0]) for share in on.test.energy_shares(named).values()]
        estimates[f"overlap over {over}"] = _range([subspace.overlap(on.proxy) for subspace in subspaces], over)
        estimates[f"energy share over {over}"] = _range(shares, over)
    least = min(value.ci_low for name, value in estimates.items() if name.startswith("overlap"))
    return Check(
        "stability",
        "; ".join(f"{name} {value}" for name, value in estimates.items())
        + " (mean [lowest, highest]; overlap is the mean squared cosine of the principal angles)",
        f"every refit overlaps with the proxy by at least {least:.0%}",
        estimates,
    )


def _resampled(on: AuditData, number: int) -> Float[Tensor, "n d"]:
    """Return the activations of as many sequences as there are, drawn with replacement."""
    names, index = on.fit.sequences.unique(return_inverse=True)
    drawn = torch.randint(0, len(names), (len(names),), generator=on.generator(number)).tolist()
    return torch.cat([on.fit.activations[index == sequence] for sequence in drawn])


def _range(values: list[float], over: str) -> Interval:
    """Return the mean of the values, with their range in place of an interval."""
    return Interval(sum(values) / len(values), min(values), max(values), over)


def rank_sweep(on: AuditData) -> Check:
    """Compare the energy share of the proxy with chance and with pca, at ranks from 2 to half the width."""
    d = on.proxy.dim
    ranks = [2**power for power in range(1, 13) if 2**power <= min(d // 2, len(on.fit.sequences))]
    to_chance, to_pca = {}, {}
    for rank in ranks:
        proxy = on.fitted(on.principal, rank)
        shares = on.test.energy_shares({"proxy": proxy, "pca": pca(on.principal, proxy.rank)})
        to_chance[str(rank)] = jackknife(log_share(shares["proxy"]) - math.log(proxy.rank / d))
        to_pca[str(rank)] = _ratio(*shares.values())
    against_chance, against_pca = (
        grouped({rank: relation(ratio) for rank, ratio in ratios.items()}, than)
        for ratios, than in ((to_chance, "chance at ranks"), (to_pca, "pca at ranks"))
    )
    return Check(
        "rank",
        "the energy share of the proxy is "
        + "; ".join(
            f"{to_chance[rank].exp()} times chance and {to_pca[rank].exp()} times pca at rank {rank}"
            for rank in to_chance
        ),
        f"its share is {against_chance}; {against_pca}",
        {f"enrichment at {rank}": ratio.exp() for rank, ratio in to_chance.items()}
        | {f"log_ratio to pca at {rank}": value for rank, value in to_pca.items()},
    )


def centred_or_raw(on: AuditData) -> Check:
    """Compare the proxy with one that is fitted to rows from which the mean was not subtracted."""
    if on.how != DEFAULT:
        raise InputError(
            "only semi-NMF can be fitted without subtracting the mean, but the proxy is another; use semi_nmf"
        )
    raw = SemiNMF(on.rank, center=False, seed=on.seed, tol=SPAN_TOL).fit(on.fit.activations).subspace()
    shares = on.test.energy_shares({"proxy": on.proxy, "raw": raw})
    ratio, share = _ratio(*shares.values()), share_jackknife(shares["raw"])
    return Check(
        "centred or raw",
        f"the energy share of the raw proxy, fitted to uncentred rows, is {share}, and that of the centred proxy is "
        f"{ratio.exp()} times as large; the two overlap by {on.proxy.overlap(raw):.2f}",
        f"the energy share of the centred proxy is {WORDS[relation(ratio)]} that of the raw proxy",
        {"share of the raw proxy": share, "log_ratio": ratio},
    )


def random_signs(on: AuditData) -> Check:
    """Show that random signs of the gradients are no null: they change no second moment, and so no share."""
    signs = torch.randint(0, 2, (len(on.test.sequences), 1), generator=on.generator()).mul(2).sub(1)
    flipped = replace(on.test, gradients=on.test.gradients * signs.to(on.test.gradients))
    before, after = (float(rows.energy_shares({"proxy": on.proxy})["proxy"][0]) for rows in (on.test, flipped))
    return Check(
        "random signs",
        f"with a random sign for each token's gradient, the energy share is {after:.4g}; without, it is {before:.4g}",
        "shares depend on second moments, which have no sign, so this null cannot differ and says nothing",
    )


def against(on: AuditData, name: str, rows: TokenRows) -> Check:
    """Test this proxy and that of the same site under other conditions, each on its own and on the other's gradients.

    Args:
        on: The data of the audit.
        name: What the other conditions are called.
        rows: The rows of the site under these conditions.
    """
    fit, test = rows.halves()
    if fit.activations.shape[1] != on.proxy.dim:
        raise InputError(
            f"rows of {name} must have width {on.proxy.dim}, but have {fit.activations.shape[1]}; use the same site"
        )
    theirs = on.fitted(fit.activations)
    pair = {"this proxy": on.proxy, f"that of {name}": theirs}
    on_these, on_those = (gradients.energy_shares(pair) for gradients in (on.test, test))
    estimates = {
        f"{whose} on {gradients}": share_jackknife(shares[whose])
        for gradients, shares in (("these gradients", on_these), (f"those of {name}", on_those))
        for whose in pair
    }
    (ours, *_, their_own), ratio = estimates.values(), _ratio(*on_these.values())
    # The two shares are of different sequences: there is no jackknife of their ratio.
    own = relation(ours.log_over(their_own))
    return Check(
        f"against {name}",
        "energy shares: "
        + "; ".join(f"{what} {value}" for what, value in estimates.items())
        + f" (chance {on.proxy.rank / on.proxy.dim:.3g}); the proxies overlap by {on.proxy.overlap(theirs):.2f}",
        f"the share of this proxy on these gradients is {WORDS[own]} that of the proxy of {name} on its own gradients, "
        f"and {WORDS[relation(ratio)]} that of the proxy of {name} on these gradients",
        estimates | {"log_ratio of the proxies on these gradients": ratio},
    )


def fitted_elsewhere(on: AuditData, proxies: Mapping[str, Subspace]) -> Check:
    """Compare the energy share of proxies that were fitted under other conditions with chance, on these gradients."""
    shares = on.test.energy_shares({**proxies, "proxy": on.proxy})
    estimates = {f"share of {name}": share_jackknife(shares[name]) for name in proxies}
    kinds = {
        name: relation(estimates[f"share of {name}"].log_over(exactly(proxy.rank / proxy.dim)))
        for name, proxy in proxies.items()
    }
    return Check(
        "fitted elsewhere",
        "energy shares on these gradients: "
        + "; ".join(f"{name} {estimates[f'share of {name}']}" for name in proxies)
        + f"; this proxy {share_jackknife(shares['proxy'])} (chance {on.proxy.rank / on.proxy.dim:.3g})",
        f"their share of these gradients is {grouped(kinds, than='chance')}",
        estimates,
    )


def _ratio(one: Float[Tensor, "replicates"], other: Float[Tensor, "replicates"]) -> Interval:
    """Return the log-ratio of two energy shares with its 95% interval over sequences."""
    return jackknife(log_share(one) - log_share(other))


# A new check is a function, above or in a file of its own, and a line here.
CHECKS: dict[str, Callable[[AuditData], Check]] = {
    "local tangents": in_tangent_planes,
    "proxy and tangents": proxy_and_tangents,
    "curvature": curvature_along_the_proxy,
    "charts": own_and_swapped_charts,
    "active concepts": own_and_swapped_concepts,
    "controls": against_controls,
    "stability": stability,
    "rank": rank_sweep,
    "centred or raw": centred_or_raw,
    "random signs": random_signs,
}
