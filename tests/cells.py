"""Records as a run has them, for what reads them."""

from tangentlens.runs.records import Record


def cell(metric, value, low=None, high=None, **about):
    defaults = {"model": "m", "site": "mean", "quantity": "gradient", "rank": 4}
    return Record(**{**defaults, **about}, metric=metric, value=value, ci_low=low, ci_high=high)


def shares(step, proxy, ratio, low, p_values=(0.9,)):
    return [
        cell("share", proxy, proxy - 0.05, proxy + 0.05, variant="semi_nmf", detail="proxy", order=1.0, step=step),
        cell("share", 0.125, 0.125, 0.125, variant="random", order=1.0, step=step),
        cell("log_ratio", ratio, low, ratio + 0.1, variant="normal", order=1.0, step=step),
        cell("log_ratio", 0.0, -0.1, 0.1, variant="pca", order=1.0, step=step),
        *(
            cell("p_value", p, variant="random", order=1.0, step=step, site=f"resid.{i}")
            for i, p in enumerate(p_values)
        ),
    ]


def profile_cells(metric, values, variant="", half=0.01):
    about = {"quantity": "activation", "rank": None, "ci_over": "batches", "variant": variant}
    return [
        cell(metric, value, value - half, value + half, site=f"resid.{i}", depth=i / (len(values) - 1), **about)
        for i, value in enumerate(values)
    ] + [
        cell(f"sd/{metric}", half / 2, site=f"resid.{i}", depth=i / (len(values) - 1), **about)
        for i in range(len(values))
    ]
