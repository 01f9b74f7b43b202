"""What CONTRIBUTING says of each addition, done with toys in a copy of the source, and seen everywhere it should be."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tangentlens

SOURCE = Path(tangentlens.__file__).parent

# What each row adds: a new file, and where and how it is registered (the line before, the line, the import).
FILES = {
    "geometry/spectrum/toy_measure.py": '''
"""A toy: the length of the mean."""


def toy_measure(moments):
    """Return the length of the mean."""
    return float(moments.mean.norm())
''',
    "proxies/toy_control.py": '''
"""A toy: the first coordinates."""

import torch

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal


def toy_control(x, rank, seed=0):
    """Return the first `rank` coordinate axes."""
    return Subspace(torch.eye(Principal.of(x).dim, dtype=torch.float64)[:, :rank])
''',
    "report/sections/toy_section.py": '''
"""A toy: says how many records there are."""

from tangentlens.report.contents import Section

TOY = Section(
    "What is a toy?", "any command", findings=(lambda rows: [f"The toy section counts {rows.height} records."],)
)
''',
    "studies/toy_job.py": '''
"""A toy: writes one number."""

from dataclasses import asdict, dataclass
from pathlib import Path

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.runs.progress import Progress
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run
from tangentlens.studies.job import Job


@dataclass(frozen=True)
class ToyPlan:
    """What to write."""

    value: float = 0.5


def run_toy(plan, out, watch):
    """Write the value."""
    run = create_run(out, asdict(plan), "toy")
    model = f"toy {plan.value}"
    run.claim_model(model, {"kind": "toy", "weights_sha256": str(plan.value)})
    run.complete("toy", lambda: [Record(model=model, metric="loss", variant="toy", value=plan.value)])
    watch(Progress("toy", 1, 1))
    return run


def mine(records):
    """Return the records of the job."""
    return records.filter(pl.col("variant") == "toy")


def figure(records):
    """Draw the value."""
    rows = mine(records)
    plot = go.Figure(go.Scatter(y=rows["value"].to_list()))
    return Figure("The toy figure", "No interval.", plot) if rows.height else None


TOY = Job(
    "toy",
    ToyPlan,
    run_toy,
    folder=lambda plan: Path("runs/toy"),
    section=Section(
        "What is a toy job?",
        "a toy job",
        figures=(figure,),
        tables=(lambda records: [Table("The toy table", mine(records).select("run", "value"))],),
        findings=(lambda rows: [f"The toy value is {value}." for value in mine(rows)["value"]],),
    ),
)
''',
    "studies/toy_study.py": '''
"""A toy: the toy job twice."""

from tangentlens.studies.study import Part, Study
from tangentlens.studies.toy_job import TOY, ToyPlan

TOY_STUDY = Study(
    name="toys",
    about="Writes two numbers.",
    claims=("toy",),
    costs={"smoke": "nothing"},
    parts=lambda scale, inputs: [Part(folder, TOY, ToyPlan(value)) for folder, value in (("a", 0.25), ("b", 0.5))],
)
''',
    "integrations/toy_framework.py": '''
"""A toy: a framework that calls back after each step."""

from tangentlens.lens.lens import Lens


class ToyCallback:
    """Watches a model in the toy framework."""

    def __init__(self, model, **settings):
        self.lens = Lens(model, **settings)

    def begin(self):
        """Put the lens on."""
        self.lens.__enter__()

    def after_step(self, loss):
        """Measure if the step is due."""
        self.lens.step(loss)

    def end(self):
        """Take the lens off."""
        self.lens.__exit__(None, None, None)
''',
}
LINES = {
    "geometry/measures.py": (
        "MEASURES = (",
        '    Measure("toy_measure", lambda one: toy_measure(one.moments), "toy measure", shown="table", in_lens=True),',
        "from tangentlens.geometry.spectrum.toy_measure import toy_measure",
    ),
    "proxies/__init__.py": (
        "PROXIES = {",
        '    "toy_control": Proxy(toy_control, "first coordinates"),',
        "from tangentlens.proxies.toy_control import toy_control",
    ),
    "alignment/checks.py": ("CHECKS: dict[str, Callable[[AuditData], Check]] = {", '    "toy": toy_check,', None),
    "report/sections/__init__.py": (
        "SECTIONS = (",
        "TOY, ",
        "from tangentlens.report.sections.toy_section import TOY",
    ),
    "studies/__init__.py": (
        "for job in (",
        "TOY, ",
        "from tangentlens.studies.toy_job import TOY",
    ),
    "studies/__init__.py (study)": (
        "for study in (",
        "TOY_STUDY, ",
        "from tangentlens.studies.toy_study import TOY_STUDY",
    ),
    "studies/claims/__init__.py": (
        "CLAIMS: tuple[Claim, ...] = (",
        """    Claim(
        id="toy",
        statement="Losses are positive.",
        source=OURS,
        effect="the loss",
        of=last(Select("loss", "toy", quantity="", site="")),
        needs=Needs("a loss", "tangentlens study toys"),
        margin=0.0,
        unit="difference",
    ),""",
        "from tangentlens.errors import InputError  # any import",
    ),
    "studies/sweep/presets.py": (
        "FAMILIES: dict[str, tuple[SweepModel, ...]] = {",
        '    "toys": (SweepModel("a/toy", 0.001, "step*"),),',
        None,
    ),
    "models/variations.py": (
        "VARIATIONS: dict[str, Design] = {",
        '    "toy variation": Design(positions="none", tied=False),',
        None,
    ),
    "training/regularisers.py": (
        "TERMS: dict[str, Callable[[], Term]] = {",
        '    "toy_term": lambda: lambda rows: rows.square().sum(dim=1).mean(),',
        None,
    ),
    "studies/profile/presets.py": (
        "for preset in (",
        '        Preset("toys", "Toys.", (PresetModel("Toy", "a/toy", "main", 10, 8, 2, 1),)),',
        None,
    ),
}
# A check of the audit is a function, here in the file that registers it.
TOY_CHECK = '''
def toy_check(on: AuditData) -> Check:
    """Count the test rows."""
    n = float(len(on.test.sequences))
    return Check("toy", f"{n:.0f} rows", "nothing", {"rows": Interval(n, n, n)})


'''


def extended(folder):
    """A copy of the source with every toy added."""
    source = folder / "tangentlens"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        (source / name).write_text(text.lstrip())
    for place, (before, line, imported) in LINES.items():
        name = place.partition(" ")[0]
        text = (source / name).read_text()
        assert text.count(before) == 1, name
        between = "\n" if line.startswith(" ") else ""
        text = text.replace(before, f"{before}{between}{line}")
        if imported is not None:
            text = re.sub(r"^(from tangentlens)", rf"{imported}\n\1", text, count=1, flags=re.MULTILINE)
        else:
            text = text.replace("# A new check is", f"{TOY_CHECK.strip()}\n\n\n# A new check is")
        (source / name).write_text(text)
    return folder


PROGRAM = """
import json, sys
import torch
import tangentlens as tl
from tangentlens.integrations.toy_framework import ToyCallback
from tangentlens.report.page import write_report
from tangentlens.runs.vocabulary import METRICS, VARIANTS
from tangentlens.report.reading import read_runs
from tangentlens.runs.run import runs_in
from tangentlens.studies import SECTIONS, JOBS, STUDIES
from tangentlens.studies.claims import CLAIMS
from tangentlens.studies.claims.ledger import ledger
from tangentlens.studies.study import Inputs
from tangentlens.studies.profile import Profile
from tangentlens.studies.sweep.presets import family
from tangentlens.studies.audit import AuditPlan
from tiny import save_tiny, tiny_batch, tiny_model
from pathlib import Path

torch.set_num_threads(1)
folder, told = Path(sys.argv[1]), {}


def report(*runs):
    page = write_report(runs, folder / "page.html", SECTIONS)
    tables = {table.title: table.frame.columns for table in page.tables}
    return {"findings": [one.text for one in page.findings], "tables": tables, "page": page.path.read_text()}


def own_proxy(rows, rank, seed):
    return tl.Subspace.span(rows[:rank].double(), rank=rank)


def trained(name, sites="resid.1", **settings):
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ToyCallback(model, sites=sites, rank=4, every=1, run=folder / name, **settings)
    watch.begin()
    for step in range(2):
        loss = model(**tiny_batch(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.after_step(loss)
    watch.end()
    return tl.open_run(folder / name)


run = trained("integration", sites="resid")
records = run.records
told["integration"] = records.filter(metric="share")["step"].unique().to_list()
told["measure in lens"] = records.filter(metric="toy_measure")["site"].unique().sort().to_list()
page = report(run)
told["measure in report of a lens"] = "toy measure" in page["page"]
told["section"] = [text for text in page["findings"] if "toy section" in text]

own = trained("own", proxy=own_proxy)
told["own proxy"] = own.records.filter(metric="share", detail="proxy")["variant"].unique().to_list()
told["own proxy in report"] = "tangent proxy (own_proxy)" in report(own)["page"]
named = trained("named", proxy="toy_control")
told["named proxy"] = named.records.filter(metric="share", detail="proxy")["variant"].unique().to_list()
told["named proxy in report"] = "tangent proxy (first coordinates)" in report(named)["page"]

model = str(save_tiny(folder / "model"))
profiled = JOBS["profile"].run(Profile((model,), batches=2, batch_tokens=128, length=16), folder / "profile")
told["measure in profile"] = profiled.records.filter(metric="toy_measure")["site"].to_list()
told["measure in table"] = [columns for columns in report(profiled)["tables"].values()][0]

audited = JOBS["audit"].run(AuditPlan(model, rank=4, tokens=640, length=16), folder / "audit")
told["control in records"] = audited.records.filter(metric="log_ratio", variant="toy_control").height
told["control in table"] = [columns for columns in report(audited)["tables"].values()][0]
told["check"] = audited.records.filter(metric="audit/toy", variant="rows")["value"].to_list()

rows, grads = torch.randn(400, 12, generator=torch.Generator().manual_seed(0)), torch.randn(400, 12)
test = tl.tangent_test(rows, grads, torch.arange(400) // 20, rank=3)
told["control in test"] = "toy_control" in test.variants
told["own proxy in test"] = tl.tangent_test(rows, grads, torch.arange(400) // 20, rank=3, proxy=own_proxy).proxy
told["own proxy in audit"] = tl.audit(rows, grads, torch.arange(400) // 20, rank=3, proxy=own_proxy).test.proxy
told["vocabulary"] = [METRICS["toy_measure"].label, VARIANTS["toy_control"].label]

job = JOBS["toy"]
made = job.run(job.plan(0.25), folder / "toy", lambda progress: told.__setitem__("progress", list(progress)))
page = report(made)
told["job"] = {"made_by": made.manifest["made_by"], "findings": page["findings"], "tables": list(page["tables"])}
told["job figure"] = "The toy figure" in page["page"]

told["study"] = [str(run.path.relative_to(folder)) for run in STUDIES["toys"].run("smoke", Inputs(folder / "toys"))]
(entry,) = ledger(read_runs(runs_in(folder / "toys")), [claim for claim in CLAIMS if claim.id == "toy"])
told["claim"] = [entry.verdict, entry.effects["effect"].to_list()]
told["family"] = [model.hub_id for model in family("toys")]
told["preset"] = [model.spec for model in Profile(preset="toys").preset_models]

parts = {name: STUDIES[name].parts("small", Inputs(folder)) for name in ("architectures", "regularisers")}
told["variation in study"] = "toy variation" in parts["architectures"][0].plan.models
told["regulariser in study"] = [part.plan.treatment for part in parts["regularisers"] if "toy" in part.folder]
varied = tiny_model("toy variation")
with tl.Penalty(varied, "toy_term", 1.0, sites="resid.0") as penalty:
    varied(**tiny_batch())
    value = float(penalty().detach())
embedded = varied.embed_tokens(tiny_batch()["input_ids"]).square().sum(dim=2).mean()
told["variation and regulariser"] = [round(value, 6), round(float(embedded.detach()), 6)]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    source = extended(tmp_path_factory.mktemp("extended"))
    path = os.pathsep.join([str(source), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path_factory.mktemp("toys"))],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_measure_is_in_lens_records_profile_figures_and_tables(told):
    assert told["measure in lens"] == ["resid.0", "resid.1", "resid.2"]
    assert told["measure in profile"] == [f"resid.{i}" for i in range(4)]
    assert told["measure in report of a lens"]
    assert "toy measure ± sd" in told["measure in table"]
    assert told["vocabulary"][0] == "toy measure"


def test_a_control_is_in_the_test_the_audit_and_the_tables(told):
    assert told["control in test"]
    assert told["control in records"] > 0
    assert "toy_control" in told["control in table"]
    assert told["vocabulary"][1] == "toy_control: first coordinates"


def test_a_proxy_is_exchanged_by_its_name_or_by_a_function(told):
    assert told["named proxy"] == ["toy_control"]
    assert told["own proxy"] == ["own_proxy"]
    assert told["own proxy in test"] == told["own proxy in audit"] == "own_proxy"
    assert told["own proxy in report"]
    assert told["named proxy in report"]


def test_a_check_is_on_the_page_of_the_audit(told):
    assert len(told["check"]) == 1
    assert told["check"][0] > 100


def test_a_section_speaks_in_every_report(told):
    assert len(told["section"]) == 1


def test_a_job_brings_its_run_its_figure_its_table_and_its_finding(told):
    assert told["job"]["made_by"] == "toy"
    assert "The toy value is 0.25." in told["job"]["findings"]
    assert "The toy table" in told["job"]["tables"]
    assert told["job figure"]
    assert told["progress"][:4] == ["toy", 1, 1, ""]


def test_a_study_is_a_list_of_jobs_and_a_claim_is_judged_by_their_records(told):
    assert told["study"] == ["toys/a", "toys/b"]
    assert told["claim"] == ["inconclusive", [0.25, 0.5]]


def test_a_preset_is_known_to_profiles(told):
    assert told["preset"] == ["a/toy@main"]


def test_a_preset_of_checkpoints_is_known_to_sweeps(told):
    assert told["family"] == ["a/toy"]


def test_a_variation_and_a_regulariser_are_in_studies_and_on_models(told):
    assert told["variation in study"]
    assert told["regulariser in study"] == ["toy_term 0.03", "toy_term 0.3", "toy_term 3"]
    assert told["variation and regulariser"][0] == told["variation and regulariser"][1] > 0


def test_an_integration_is_a_file_that_opens_a_lens(told):
    assert told["integration"] == [0, 1]


def test_every_row_of_contributing_is_tried_here():
    table = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text().split("## Adding something")[1].split("\n## ")[0]
    rows = re.findall(r"^\| \*\*(.+?)\*\*", table, flags=re.MULTILINE)
    assert rows == [
        "measure",
        "proxy or control",
        "proxy of your own",
        "check of the audit",
        "subject of the report",
        "job",
        "study",
        "claim",
        "preset",
        "preset of checkpoints",
        "variation",
        "regulariser",
        "integration",
    ]
