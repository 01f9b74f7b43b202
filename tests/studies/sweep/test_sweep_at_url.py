"""Sweeps whose run is on an S3 server: the numbers of a folder, here and on a cluster; what cannot work is said."""

import json
import shutil

import pytest

import tangentlens as tl
from checkpoints import SETTINGS, STEPS, assert_same, sweep_plan
from tangentlens.cli import app
from tangentlens.engine import Machines, OnRay
from tangentlens.errors import InputError, StorageError
from tangentlens.runs.files import as_place
from tangentlens.runs.remote import Remote
from tangentlens.runs.run import is_run, runs_in
from tangentlens.studies import JOBS, STUDIES
from tangentlens.studies.study import Inputs
from tangentlens.studies.sweep import measuring, run_sweep, sweeping
from tangentlens.studies.train_plan import TrainPlan


@pytest.fixture
def url(bucket, tmp_path):
    return f"{bucket}/{tmp_path.name}/sweep"


def command(trained, *words):
    """Sweep as the command line does, in this process."""
    plan = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in SETTINGS.items()}
    options = [f"--{name}={value}" for name, value in plan.items()]
    text = f"--text={trained.parent / 'text.txt'}"
    app(["sweep", str(trained), *options, text, *words], standalone_mode=False)


def test_it_gives_the_numbers_of_a_folder_and_its_report_is_beside_it(trained, swept, url, tmp_path, capsys):
    command(trained, "--out", url, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["report"]) == ([url], f"{url}/report.html")
    run = tl.open_run(url)
    assert_same(run.records, swept.records)
    assert b"plotly" in as_place(told["report"]).read_bytes()
    app(["report", url, "--out", str(tmp_path / "sweep.html"), "--quiet"], standalone_mode=False)
    assert (tmp_path / "sweep.html").stat().st_size > 10**6
    app(["claims", url, "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["runs"] == [url]
    command(trained, "--out", url, "--json", "--dry-run")
    assert json.loads(capsys.readouterr().out)[0]["done"] == len(STEPS)


def test_it_continues_and_only_the_command_writes_the_manifest(trained, swept, url, monkeypatch):
    """Whoever measures a checkpoint puts each of its parts once, and nothing else."""
    puts, inside, put = [], [], Remote.put

    def noted(place, data):
        puts.append((bool(inside), place.url.removeprefix(f"{url}/")))
        put(place, data)

    def interrupted(look, earlier):
        if look.checkpoint.step == 8 and not resumed:
            raise KeyboardInterrupt
        inside.append(look)
        measuring.measure_checkpoint(look, earlier)
        inside.clear()

    monkeypatch.setattr(Remote, "put", noted)
    monkeypatch.setattr(sweeping, "measure_checkpoint", interrupted)
    resumed = False
    with pytest.raises(KeyboardInterrupt):
        JOBS["sweep"].run(sweep_plan(trained), url)
    assert sorted(tl.open_run(url).records["step"].unique()) == [0, 4]
    resumed = True
    run = JOBS["sweep"].run(sweep_plan(trained), url)
    assert_same(run.records, swept.records)
    by_workers = [key for is_worker, key in puts if is_worker]
    assert "manifest.json" in {key for is_worker, key in puts if not is_worker}
    assert {key.partition("/")[0] for key in by_workers} == {"records", "tensors", "parts"}
    # Records, tensors and a mark of each checkpoint, and what is kept of its two sites until it is written; records and
    # a mark of each comparison.
    assert len(by_workers) == len(set(by_workers)) == 4 * (3 + 2) + 3 * 2


@pytest.mark.calibration
# Ray leaves sockets and files open in a process that it was started from.
@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_cluster_write_there_themselves(trained, swept, url):
    pytest.importorskip("ray")
    run = run_sweep(sweep_plan(trained), url, machines=Machines(OnRay()))
    assert_same(run.records, swept.records)


def test_audits_are_runs_beside_it(trained, url, tmp_path, monkeypatch):
    shutil.copy(trained.parent / "text.txt", tmp_path / "text.txt")
    shutil.copytree(trained / "checkpoint-12", tmp_path / "model" / "checkpoint-12")
    plan = sweep_plan(tmp_path / "model", audit=True)
    run_sweep(plan, url)
    (audit,) = runs_in(f"{url}/audits")
    assert audit.name == "model checkpoint-12"
    assert audit.records.filter(metric="audit/verdict").height == 1
    monkeypatch.setattr(sweeping, "audit_checkpoint", lambda look: pytest.fail("it was audited before"))
    run_sweep(plan, url)


@pytest.mark.parametrize("out", ["s3://no-such-bucket/run", "s4://bucket/run", "sftp://host/run"])
def test_a_place_that_cannot_be_written_to_is_told_before_a_model_is_loaded(trained, bucket, out, monkeypatch):
    monkeypatch.setattr(sweeping, "try_out", lambda *_: pytest.fail("it began to work"))
    with pytest.raises(StorageError):
        JOBS["sweep"].run(sweep_plan(trained), out)


def test_what_cannot_be_measured_leaves_nothing_there(trained, url):
    with pytest.raises(InputError, match="rank"):
        JOBS["sweep"].run(sweep_plan(trained, rank=17), url)
    assert not as_place(url).exists()


def test_what_needs_a_folder_is_refused_first():
    with pytest.raises(InputError, match="must be written to a folder that all of them see"):
        STUDIES["demo"].run("smoke", Inputs(as_place("memory://demo")), machines=Machines())
    with pytest.raises(InputError, match="leave out keep"):
        JOBS["train"].run(TrainPlan(keep=True), "memory://kept")
    assert not is_run("memory://kept")
