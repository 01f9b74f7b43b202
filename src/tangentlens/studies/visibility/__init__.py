"""Does frequency bias hide curvature? On manifolds with a known answer, and in a model's own representations."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

from tangentlens.capture.sites import Site, find_sites
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.windows import Text
from tangentlens.errors import InputError
from tangentlens.models.load import load_model
from tangentlens.models.loaded import LoadedModel
from tangentlens.models.loading import Loading
from tangentlens.models.small import weight_hash
from tangentlens.runs.files import Place
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run
from tangentlens.runs.vocabulary import ACTIVATION
from tangentlens.studies.job import Job
from tangentlens.studies.visibility.model import one_per_type, visibility_records
from tangentlens.studies.visibility.plan import VisibilityPlan
from tangentlens.studies.visibility.section import SECTION
from tangentlens.studies.visibility.synthetic import SYNTHETIC, synthetic_records

NAME = "visibility"


def run_visibility(plan: VisibilityPlan, out: str | Place, watch: Watch = unwatched) -> Run:
    """Measure visible curvature over alpha into the run directory `out`; an interrupted run is continued."""
    return _of_manifolds(plan, out, watch) if plan.model is None else _of_model(plan, plan.model, out, watch)


def _of_manifolds(plan: VisibilityPlan, out: str | Place, watch: Watch) -> Run:
    defaults = {field.name: field.default for field in fields(plan) if field.name not in ("anchors", "seed")}
    unused = [name for name, default in defaults.items() if getattr(plan, name) != default]
    if unused:
        raise InputError(f"{', '.join(unused)} must come with a model, but there is none; name it, or leave that out")
    run = create_run(out, asdict(plan), NAME)
    for done, name in enumerate(SYNTHETIC):
        watch(Progress("manifolds", done, len(SYNTHETIC), name))
        run.complete(name, partial(synthetic_records, name, plan.anchors, plan.seed))
    watch(Progress("manifolds", len(SYNTHETIC), len(SYNTHETIC)))
    return run


def _of_model(plan: VisibilityPlan, model: str, out: str | Place, watch: Watch) -> Run:
    loaded = load_model(model, Loading.of(plan))
    text = Text(None if plan.text is None else Path(plan.text))
    sites = find_sites(loaded.model, plan.sites)
    if plan.dimension is not None and plan.dimension >= loaded.width:
        raise InputError(f"dimension must be below the width {loaded.width} of {loaded.name}, but is {plan.dimension}")
    run = create_run(out, asdict(plan), NAME)
    run.claim_model(loaded.name, {**loaded.facts, "weights_sha256": weight_hash(loaded.model, loaded.not_loaded)})
    run.claim_data(plan.text, text.identity)
    if all(run.has(_part(loaded, site)) for site in sites):
        return run
    watch(Progress(loaded.name, 0, len(sites), "counting tokens"))
    counts = TokenCounts.of_text(text, loaded.encode, loaded.vocabulary)
    watch(Progress(loaded.name, 0, len(sites), f"activations on {loaded.where}"))
    types, rows = one_per_type(plan, loaded, sites, text, counts)
    counts.save(run)
    frequency = counts.counts[types].double()
    about = Record(model=loaded.name, revision=loaded.revision, quantity=ACTIVATION, seed=plan.seed)
    for done, site in enumerate(sites):
        watch(Progress(loaded.name, done, len(sites), site.name))
        here = replace(about, site=site.name, depth=site.depth)

        def records(here: Record = here, site: Site = site) -> list[Record]:
            try:
                return list(visibility_records(here, rows[site.name], frequency, plan))
            except InputError as error:
                return [here.unmeasured(str(error))]

        run.complete(_part(loaded, site), records)
    watch(Progress(loaded.name, len(sites), len(sites)))
    return run


def _part(loaded: LoadedModel, site: Site) -> str:
    return f"{loaded.name}-{site.name}"


def _folder(plan: VisibilityPlan) -> Path:
    return Path("runs") / (NAME if plan.model is None else f"{NAME}-{Path(plan.model).name}")


VISIBILITY = Job(
    NAME,
    VisibilityPlan,
    run_visibility,
    _folder,
    SECTION,
    smaller="types=1024, anchors=64, sites=resid:8 or dimension=8",
)
