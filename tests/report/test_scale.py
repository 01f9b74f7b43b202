"""Long sweeps: what a page holds for each site and step, and what it does not read."""

import zlib

import polars as pl
import pytest

from cells import cell
from tangentlens.report import reading
from tangentlens.report.contents import draw, find, tabulate
from tangentlens.report.page import write_report
from tangentlens.report.reading import read_runs
from tangentlens.runs.run import create_run
from tangentlens.runs.vocabulary import VARIANTS
from tangentlens.studies import SECTIONS

CONTROLS = [name for name in VARIANTS if name != "semi_nmf"]
BINS = ["all", *(f"{kind}.{number}" for kind in ("input", "target") for number in range(4))]


def of_site(step, **place):
    """What a sweep measures of gradients and activations at one site, with numbers of many digits."""
    number = 0.1 + (zlib.crc32(f"{step} {place['site']}".encode()) % 9973) / 29919
    ends = (number, number * 0.9, number * 1.1)
    gradient, activation = {"quantity": "gradient", "step": step, **place}, {"quantity": "activation", "step": step}
    for order in (1.0, 2.0):
        # As in an encoder whose last site has gradients at few tokens, the mean over sites lacks some of the bins.
        for name in (name for name in BINS if place["site"] != "mean" or not name.startswith("input")):
            about = {"order": order, "freq_bin": name, **gradient}
            yield cell("share", *ends, variant="semi_nmf", detail="proxy", **about)
            for control in CONTROLS:
                yield cell("share", *ends, variant=control, **about)
                yield cell("log_ratio", *ends, variant=control, **about)
    for metric, variant in (("anisotropy", ""), ("intrinsic_dimension", ""), ("intrinsic_dimension", "one_per_type")):
        yield cell(metric, *ends, variant=variant, **activation, **place)


def sweep(folder, sites, steps):
    run = create_run(folder / f"{sites}-{steps}", {}, "sweep")
    places = [{"site": f"resid.{i}", "depth": i / (sites - 1)} for i in range(sites)]
    for step in range(steps):
        records = [one for place in (*places, {"site": "mean"}) for one in of_site(1000 * step, **place)]
        run.write(f"step-{step}", [*records, cell("loss", 3.0, quantity="loss", site="", step=1000 * step)])
    return run


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """The bytes of pages of sweeps, by the number of sites and of steps."""
    folder = tmp_path_factory.mktemp("scale")
    return {
        (sites, steps): len(write_report([sweep(folder, sites, steps)], folder / "a.html", SECTIONS).path.read_bytes())
        for sites, steps in ((3, 4), (7, 4), (3, 8), (7, 8))
    }


def test_a_site_of_a_step_takes_few_bytes(sizes):
    """What 4 more sites take more of 4 more steps: the maps, but no line for each site."""
    both = sizes[7, 8] - sizes[7, 4] - sizes[3, 8] + sizes[3, 4]
    assert both / (4 * 4) < 250


def test_a_long_sweep_stays_below_fifteen_megabytes(sizes):
    """Extrapolated to 48 sites and 154 checkpoints from what a site, a step and both together take."""
    site, step = (sizes[7, 4] - sizes[3, 4]) / 4, (sizes[3, 8] - sizes[3, 4]) / 4
    both = (sizes[7, 8] - sizes[7, 4] - sizes[3, 8] + sizes[3, 4]) / (4 * 4)
    assert sizes[3, 4] + 45 * site + 150 * step + 45 * 150 * both < 15e6


def test_bins_of_sites_are_read_at_the_last_step_alone_and_nothing_is_said_or_drawn_otherwise(tmp_path, monkeypatch):
    run = sweep(tmp_path, 3, 3)
    few = read_runs([run])
    monkeypatch.setattr(reading, "_shown", lambda records: records)
    everything = read_runs([run])
    binned = everything.filter(pl.col("freq_bin") != "all", pl.col("site").str.starts_with("resid"))
    assert everything.height - few.height == binned.height * 2 / 3
    assert few.filter(site="mean").height == everything.filter(site="mean").height
    assert find(SECTIONS, few) == find(SECTIONS, everything)
    for one, other in zip(draw(SECTIONS, few), draw(SECTIONS, everything), strict=True):
        assert (one.title, one.plot.to_json()) == (other.title, other.plot.to_json())
    for one, other in zip(tabulate(SECTIONS, few), tabulate(SECTIONS, everything), strict=True):
        assert one.frame.equals(other.frame)
