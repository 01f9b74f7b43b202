"""The checks of the audit, one function each: what was found, in numbers and in words, and what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from tangentlens.alignment.audit_data import AuditData, Check
from tangentlens.alignment.chance import Chance
from tangentlens.alignment.chart_test import chart_test
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import replicate_shares
from tangentlens.alignment.tangent_result import Cell
from tangentlens.errors import InputError
from tangentlens.geometry.curvature.local_geometry import local_geometry
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.charts import charts
from tangentlens.proxies.pca import pca
from tangentlens.proxies.random import random
from tangentlens.proxies.semi_nmf import SemiNMF
from tangentlens.proxies.tail import tail
from tangentlens.statistics.bootstrap import bootstrap_interval
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife, log_odds, log_share, share_jackknife
from tangentlens.statistics.words import compare

N_CHARTS = 12
# Planes of other places that an anchor's gradient is held against, and refits of the proxy.
N_SWAPS, N_REFITS = 8, 5
# Patches whose curvature is looked at.
N_CURVED = 128
# Planes that overlap more than this are one plane for the purpose of swapping them.
SAME_PLANE = 0.9
# The word that sums up an audit is held to more than the 95% of its numbers, and takes more than a tenth of chance.
LEVEL, MARGIN = 0.999, math.log(1.1)
# To call two shares alike, their ratio must be known to lie within this.
ALIKE = math.log(1.25)

VERDICTS = {
    "tangent": "tangent: they prefer the tangent plane of their own place",
    "normal": "normal: they avoid the tangent plane of their place",
    "indifferent": "indifferent to the tangent plane of their place",
    "variance": "along directions of high variance, but no more along the tangent plane of their place than of others",
    "unknown": "not judged: too few tokens, or gradients in too few directions, to tell",
}


def in_tangent_planes(on: AuditData) -> Check:
    """Gradients of single tokens in the tangent plane of their own place, beside planes of other places."""
    planes, gradients = on.planes, normalize(on.test.gradients[on.anchors].double(), dim=1, eps=1e-300)
    own = torch.einsum("ad,adm->am", gradients, planes).square().sum(dim=1)
    others, overlaps = [], []
    for turn in range(1, N_SWAPS + 1):
        other = planes.roll(turn * len(planes) // (N_SWAPS + 1), dims=0)
        others.append(torch.einsum("ad,adm->am", gradients, other).square().sum(dim=1))
        overlaps.append((planes.transpose(1, 2) @ other).square().sum(dim=(1, 2)) / planes.shape[2])
    swapped, alike = torch.stack(others).mean(dim=0), float(torch.stack(overlaps).mean())
    means, n = on.anchor_means(torch.stack([own, swapped], dim=1))
    turned = _random_planes(planes, gradients)
    share = bootstrap_interval(log_odds(means[:, 0]), n).from_log_odds()
    ratios = log_share(means[:, 0]) - math.log(turned.mean), log_share(means[:, 0]) - log_share(means[:, 1])
    to_chance, to_swapped = (bootstrap_interval(ratio, n) for ratio in ratios)
    p_value = turned.p_value(share.value)
    sure, sure_of_place = (bootstrap_interval(ratio, n, LEVEL) for ratio in ratios)
    says = _judge(sure, sure_of_place, to_chance, p_value, alike)
    return Check(
        "local tangents",
        f"{share} of a gradient's energy lies in the tangent plane of its place (dimension {planes.shape[2]}, chance "
        f"{turned.mean:.3g}): {to_chance.exp()} times chance (p = {p_value:.2g} for planes turned at random), "
        f"{to_swapped.exp()} times the planes of other places, which overlap with it by {alike:.2f} ({len(planes)} "
        "anchors)",
        f"the gradients are {VERDICTS[says]}",
        {"share": share, "log_ratio to chance": to_chance, "log_ratio to other places": to_swapped},
        says,
    )


def _random_planes(planes: Float[Tensor, "a d m"], gradients: Float[Tensor, "a d"]) -> Chance:
    """The mean share if all planes were turned together by one random rotation: docs/concepts.md, 'Audit'."""
    a, d, m = planes.shape
    stacked = planes.transpose(0, 1).reshape(d, a * m)
    of_planes, of_gradients = stacked @ stacked.T / a, gradients.T @ gradients / a
    spread = (float(of_planes.square().sum()) - m**2 / d) * (float(of_gradients.square().sum()) - 1 / d)
    return Chance(mean=m / d, std=math.sqrt(max(2 * spread / ((d - 1) * (d + 2)), 0.0)), total=1.0)


def _judge(sure: Interval, sure_of_place: Interval, likely: Interval, p_value: float, alike: float) -> str:
    """The word: from the ratio to chance and to other places at `LEVEL`, that to chance at 95%, and random planes."""
    if sure.ci_high < -MARGIN and p_value > LEVEL:
        return "normal"
    if sure.ci_low > MARGIN and p_value < 1 - LEVEL:
        if sure_of_place.ci_low > 0 or alike > SAME_PLANE:
            return "tangent"
        return "variance" if sure_of_place.ci_high < ALIKE else "unknown"
    return "indifferent" if likely.ci_low > -ALIKE and likely.ci_high < ALIKE else "unknown"


def proxy_and_tangents(on: AuditData) -> Check:
    """How much of the tangent planes, and of the normals, the proxy holds."""
    rank, (d, m) = on.proxy.rank, on.planes.shape[1:]
    if m == d:
        raise InputError(f"tangent planes must leave room for normals, but the dimension is {m}, that of the space")
    inside = torch.einsum("dr,adm->arm", on.proxy.basis, on.planes)
    taken = inside.square().sum(dim=(1, 2))
    angles = torch.linalg.svdvals(inside).clamp(0, 1).acos().rad2deg()
    means, n = on.anchor_means(torch.stack([taken / m, (rank - taken) / (d - m)], dim=1))
    tangent, normal = (bootstrap_interval(log_odds(means[:, column]), n).from_log_odds() for column in (0, 1))
    ratio = bootstrap_interval(log_share(means[:, 0]) - log_share(means[:, 1]), n)
    closer = (
        "tangents than to normals" if ratio.ci_low > 0 else "normals than to tangents" if ratio.ci_high < 0 else None
    )
    return Check(
        "proxy and tangents",
        f"the proxy holds {tangent} of the tangent planes and {normal} of the normals (chance {rank / d:.3g}); median "
        f"principal angles {float(angles[:, 0].median()):.0f} to {float(angles[:, -1].median()):.0f} degrees",
        f"the proxy is closer to {closer}" if closer else "the proxy is as close to normals as to tangents",
        {"tangents in the proxy": tangent, "normals in the proxy": normal, "log_ratio": ratio},
    )


def curvature_along_the_proxy(on: AuditData) -> Check:
    """How much the activations bend along the proxy, beside directions of high and of low variance, and random ones."""
    rank = on.proxy.rank
    found = local_geometry(on.fit.activations, N_CURVED, dimension=on.dimension, seed=on.seed)
    controls = {
        "random": random(on.proxy.dim, rank, on.seed),
        "pca": pca(on.principal, rank),
        "tail": tail(on.principal, rank),
    }
    ratios = {name: found.along_ratio(on.proxy, control) for name, control in controls.items()}
    to_random = ratios["random"]
    word = "less than" if to_random.ci_high < 1 else "more than" if to_random.ci_low > 1 else "no less and no more than"
    if math.isnan(to_random.value):
        word = "too little to be compared with"
    return Check(
        "curvature",
        f"along what is tangent of the proxy the activations bend by {found.along(on.proxy)} (all directions "
        f"{found.rms_curvature}, dimension {found.dimension}, patches of {found.k} tokens, radius {found.radius:.3g}): "
        + "; ".join(f"{ratio} times {name}" for name, ratio in ratios.items()),
        f"along the proxy the activations bend {word} along random directions"
        + (
            "" if found.resolved else "; but tangent planes do not stand out here, so this is about patches as they are"
        ),
        {"curvature along the proxy": found.along(on.proxy), "curvature": found.rms_curvature}
        | {f"ratio to {name}": ratio for name, ratio in ratios.items()},
    )


def own_and_swapped_charts(on: AuditData) -> Check:
    """Own chart against other charts, and the same after gradients were dealt to other tokens."""
    found = charts(on.principal, N_CHARTS, max(on.rank // 2, 1), on.seed)
    dealt = torch.randperm(len(on.test.sequences), generator=on.generator()).to(on.test.sequences.device)
    chart = found.assign(on.test.activations)
    real, null = (
        chart_test(found, chart, gradients, on.test.sequences)
        for gradients in (on.test.gradients, on.test.gradients[dealt])
    )
    energy, anisotropy, of_dealt = real.log_ratio(1.0), real.log_ratio(2.0), null.log_ratio(1.0)
    beyond = energy.ci_low > max(of_dealt.ci_high, 0.0)
    prefers = "its own plane" if beyond else "other charts' planes" if energy.ci_high < 0 else "no plane"
    return Check(
        "charts",
        f"own planes (rank {real.rank}, chance {real.rank / real.dim:.3g}) take {real.share()} of the energy and other "
        f"charts' planes {real.share('swapped')}: {energy.exp()} times, {anisotropy.exp()} times at order 2; own wins "
        f"in {real.wins} of {real.n_charts} charts. With gradients dealt to other tokens: {of_dealt.exp()} times",
        f"a chart's gradient prefers {prefers}" + (", which one global subspace cannot explain" if beyond else ""),
        {"log_ratio": energy, "log_ratio at order 2": anisotropy, "log_ratio of dealt gradients": of_dealt},
    )


def against_controls(on: AuditData) -> Check:
    """The tangent test against every control."""
    test = on.tangent_test
    ratios = {control: test.log_ratio(control) for control in test.variants[1:]}
    p_values = {name: test.p_values.get(Cell(name, 1.0, "all")) for name in ratios}
    beaten = [name for name, ratio in ratios.items() if ratio.ci_low > 0 and (p_values[name] or 0.0) < 0.05]
    rest = [name for name in ratios if name not in beaten]
    return Check(
        "controls",
        f"the proxy takes {test.share()} of the energy: "
        + "; ".join(compare(name, ratio, p_values[name]) for name, ratio in ratios.items()),
        f"it takes more than {', '.join(beaten) or 'none'}, and not more than {', '.join(rest) or 'none'}",
        {f"log_ratio to {name}": ratio for name, ratio in ratios.items()},
    )


def stability(on: AuditData) -> Check:
    """The proxy of other seeds and of resampled sequences."""
    refits = {
        "seeds": [on.fitted(on.principal, seed=on.seed + number) for number in range(1, N_REFITS + 1)],
        "resampled sequences": [on.fitted(_resampled(on, number)) for number in range(N_REFITS)],
    }
    estimates = {}
    for over, subspaces in refits.items():
        named = {str(number): subspace for number, subspace in enumerate(subspaces)}
        shares = [float(share[0, 0]) for share in replicate_shares(on.totals[:1], named, (1.0,)).values()]
        estimates[f"overlap over {over}"] = _range([subspace.overlap(on.proxy) for subspace in subspaces], over)
        estimates[f"energy share over {over}"] = _range(shares, over)
    least = min(value.ci_low for name, value in estimates.items() if name.startswith("overlap"))
    return Check(
        "stability",
        "; ".join(f"{name} {value}" for name, value in estimates.items()) + " (mean, least and most)",
        f"refits have at least {least:.0%} of the proxy in common with it",
        estimates,
    )


def _resampled(on: AuditData, number: int) -> Float[Tensor, "n d"]:
    """The activations of as many sequences as there are, drawn with replacement."""
    names, index = on.fit.sequences.unique(return_inverse=True)
    drawn = torch.randint(0, len(names), (len(names),), generator=on.generator(number)).tolist()
    return torch.cat([on.fit.activations[index == sequence] for sequence in drawn])


def _range(values: list[float], over: str) -> Interval:
    return Interval(sum(values) / len(values), min(values), max(values), over)


def rank_sweep(on: AuditData) -> Check:
    """Share over chance at ranks from 2 to half the width, and over pca."""
    d = on.proxy.dim
    ranks = [2**power for power in range(1, 13) if 2**power <= min(d // 2, len(on.fit.sequences))]
    enrichment, to_pca = {}, {}
    for rank in ranks:
        proxy = on.fitted(on.principal, rank)
        shares = replicate_shares(on.totals, {"proxy": proxy, "pca": pca(on.principal, proxy.rank)}, (1.0,))
        enrichment[rank] = jackknife(log_share(shares["proxy"][:, 0]) - math.log(proxy.rank / d)).exp()
        to_pca[rank] = _ratio(*shares.values())
    above = [str(rank) for rank in ranks if enrichment[rank].ci_low > 1]
    beaten = [str(rank) for rank in ranks if to_pca[rank].ci_low > 0]
    return Check(
        "rank",
        "; ".join(f"{rank}: {enrichment[rank]} times chance, {to_pca[rank].exp()} times pca" for rank in ranks),
        f"above chance at ranks {', '.join(above) or 'none'}; above pca at ranks {', '.join(beaten) or 'none'}",
        {f"enrichment at {rank}": value for rank, value in enrichment.items()}
        | {f"log_ratio to pca at {rank}": value for rank, value in to_pca.items()},
    )


def centred_or_raw(on: AuditData) -> Check:
    """The proxy of rows around their mean, beside that of rows as they are."""
    raw = SemiNMF(on.rank, center=False, seed=on.seed).fit(on.fit.activations).subspace()
    shares = replicate_shares(on.totals, {"proxy": on.proxy, "raw": raw}, (1.0,))
    ratio, share = _ratio(*shares.values()), share_jackknife(shares["raw"][:, 0])
    word = "more" if ratio.ci_low > 0 else "less" if ratio.ci_high < 0 else "as much, as far as can be told,"
    return Check(
        "centred or raw",
        f"the raw proxy takes {share} of the energy, the centred one {ratio.exp()} times as much; they overlap by "
        f"{on.proxy.overlap(raw):.2f}",
        f"the centred proxy takes {word} of the gradient",
        {"share of the raw proxy": share, "log_ratio": ratio},
    )


def random_signs(on: AuditData) -> Check:
    """Signs per token leave every second moment as it is, and so every share."""
    signs = torch.randint(0, 2, (len(on.test.sequences), 1), generator=on.generator()).mul(2).sub(1)
    flipped = replace(on.test, gradients=on.test.gradients * signs.to(on.test.gradients))
    before, after = (
        float(replicate_shares(totals[:1], {"proxy": on.proxy}, (1.0,))["proxy"][0, 0])
        for totals in (on.totals, flipped.second_moments())
    )
    return Check(
        "random signs",
        f"with a random sign for each token's gradient the energy share is {after:.4g}, without {before:.4g}",
        "shares see second moments, which have no sign: this null cannot differ, and says nothing",
    )


def against(on: AuditData, name: str, rows: TokenRows) -> Check:
    """The same site elsewhere: what its proxy takes there, and what each proxy takes of the other's gradients."""
    fit, test = rows.halves()
    if fit.activations.shape[1] != on.proxy.dim:
        raise InputError(f"rows of {name} must have width {on.proxy.dim}, but have {fit.activations.shape[1]}")
    theirs = on.fitted(fit.activations)
    pair = {"this proxy": on.proxy, f"that of {name}": theirs}
    here, there = (replicate_shares(totals, pair, (1.0,)) for totals in (on.totals, test.second_moments()))
    estimates = {
        f"{whose} on {gradients}": share_jackknife(shares[whose][:, 0])
        for gradients, shares in (("these gradients", here), (f"those of {name}", there))
        for whose in pair
    }
    (ours, *_, their_own), ratio = estimates.values(), _ratio(*here.values())
    more = (
        "more"
        if ours.ci_low > their_own.ci_high
        else "less"
        if ours.ci_high < their_own.ci_low
        else "no more and no less"
    )
    better = "better" if ratio.ci_low > 0 else "worse" if ratio.ci_high < 0 else "no better"
    return Check(
        f"against {name}",
        "; ".join(f"{what} {value}" for what, value in estimates.items())
        + f" (chance {on.proxy.rank / on.proxy.dim:.3g}); the proxies overlap by {on.proxy.overlap(theirs):.2f}",
        f"this proxy takes {more} of these gradients than that of {name} does of its own; on these gradients it does "
        f"{better} than that of {name}",
        estimates | {"log_ratio of the proxies on these gradients": ratio},
    )


def fitted_elsewhere(on: AuditData, proxies: Mapping[str, Subspace]) -> Check:
    """What proxies of other steps take of these gradients."""
    shares = replicate_shares(on.totals, {**proxies, "proxy": on.proxy}, (1.0,))
    estimates = {f"share of {name}": share_jackknife(shares[name][:, 0]) for name in proxies}
    chance = {name: proxy.rank / proxy.dim for name, proxy in proxies.items()}
    ahead = [name for name in proxies if estimates[f"share of {name}"].ci_low > chance[name]]
    return Check(
        "fitted elsewhere",
        "; ".join(f"{name} takes {estimates[f'share of {name}']}" for name in proxies)
        + f"; its own {share_jackknife(shares['proxy'][:, 0])} (chance {on.proxy.rank / on.proxy.dim:.3g})",
        f"above chance already: {', '.join(ahead)}" if ahead else "none of them is above chance on these gradients",
        estimates,
    )


def _ratio(one: Float[Tensor, "replicates orders"], other: Float[Tensor, "replicates orders"]) -> Interval:
    """The log-ratio of two energy shares over sequences."""
    return jackknife(log_share(one[:, 0]) - log_share(other[:, 0]))


# A new check is a function above and a line here.
CHECKS: dict[str, Callable[[AuditData], Check]] = {
    "local tangents": in_tangent_planes,
    "proxy and tangents": proxy_and_tangents,
    "curvature": curvature_along_the_proxy,
    "charts": own_and_swapped_charts,
    "controls": against_controls,
    "stability": stability,
    "rank": rank_sweep,
    "centred or raw": centred_or_raw,
    "random signs": random_signs,
}
