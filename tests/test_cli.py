"""The command line as a person meets it: what it prints, its code, and twice in a process of its own."""

import _thread
import contextlib
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import huggingface_hub
import pytest
import torch

from tangentlens import open_run
from tangentlens.cli import app, main
from tangentlens.cli.console import progress_bars
from tangentlens.runs.progress import Progress
from tangentlens.studies import STUDIES, visibility
from tangentlens.studies.profile.presets import PRESETS
from tangentlens.studies.train import run_train
from tiny import TINY, save_albert, save_tiny

PAPER = PRESETS["shape-of-learning"]
COMMAND = [sys.executable, "-c", "from tangentlens.cli import main; main()"]
ENV = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


def tangentlens(*arguments):
    """A command in this process, which has imported everything already."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["tangentlens", *map(str, arguments)]),
        mock.patch.dict(os.environ, COLUMNS="200"),
        # What an option's own callback returns is handed on by typer, and `--version` has nothing to return.
        mock.patch.object(app.registered_callback, "callback", inspect.unwrap(app.registered_callback.callback)),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return SimpleNamespace(returncode=left.value.code or 0, stdout=stdout.getvalue(), stderr=stderr.getvalue())


def apart(*arguments):
    """A command in a process of its own."""
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, env=ENV)


def fails(code, *arguments, says, how=tangentlens):
    done = how(*arguments)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == code, done.stderr
    assert last.startswith("error: ")
    assert says in last
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_train(TINY, tmp_path_factory.mktemp("cli") / "run", lambda *_: None)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["demo"],
        ["profile"],
        ["audit"],
        ["visibility"],
        ["report"],
        ["view"],
        ["doctor"],
        ["study"],
        ["claims"],
        ["enwik8"],
    ],
)
def test_help_has_an_example(command):
    done = tangentlens(*command, "--help")
    assert done.returncode == 0
    assert " ".join(["Example: tangentlens", *command]) in done.stdout


def test_bad_input_is_one_line_and_a_code(tmp_path, run):
    fails(2, "demo", "--colour", says="No such option: --colour")
    fails(2, "sing", says="No such command 'sing'")
    fails(2, "demo", "--rank", "0", says="--rank")
    fails(1, "demo", "--sites", "resd.3", "--out", tmp_path / "x", says="the nearest are resid.3")
    fails(1, "demo", "--text", tmp_path / "none.txt", "--out", tmp_path / "x", says="must be a text file")
    fails(1, "report", tmp_path, says="must be a run directory")
    fails(1, "view", tmp_path / "none", says="there is no such folder")
    fails(1, "demo", "--out", run.path, says="holds a run with another configuration")
    assert not (tmp_path / "x").exists()


def test_a_command_that_fails_before_it_measures_leaves_no_folder(tmp_path):
    out = tmp_path / "new" / "x"
    fails(1, "profile", tmp_path / "none", "--out", out, says="there is no directory")
    fails(1, "test", tmp_path / "none", "--out", out, says="there is no directory")
    fails(1, "visibility", tmp_path / "none", "--out", out, says="there is no directory")
    model = save_tiny(tmp_path / "tiny")
    for command in ("audit", "test"):
        arguments = ["--rank", 17, "--tokens", 256, "--length", 16, "--out", out]
        fails(1, command, model, *arguments, says="half the width of every site, but is 17, and the stream of")
    arguments = ["--scale", "smoke", "--models", tmp_path / "none"]
    fails(1, "study", "finished-models", *arguments, "--out", out, says="there is no directory")
    assert not (tmp_path / "new").exists()


def test_a_truncated_part_is_one_line_and_nothing_is_lost(tmp_path, run):
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", run.path, copy], check=True)
    parts = sorted((copy / "records").iterdir())
    parts[0].write_bytes(parts[0].read_bytes()[:100])
    fails(1, "report", copy, says=f"{parts[0].name} must be a Parquet part")
    assert [path.name for path in sorted((copy / "records").iterdir())] == [path.name for path in parts]


@pytest.mark.calibration
def test_activations_that_are_not_finite_stop_the_demo_with_advice(tmp_path):
    options = ["--steps", 4, "--learning-rate", "1e15", "--sites", "resid.1", "--out", tmp_path / "run"]
    fails(1, "demo", *options, says="lower the learning rate", how=apart)
    assert open_run(tmp_path / "run").records.filter(metric="share").height > 0


def test_report_prints_findings_and_where_things_are(run):
    done = tangentlens("report", run.path)
    assert done.returncode == 0
    assert "of the gradient's energy (order 1), averaged over sites" in done.stdout
    assert f"Report: {run.path / 'report.html'}" in done.stdout
    assert tangentlens("report", run.path, "--quiet").stdout == ""


def test_several_runs_have_a_report_of_their_own(run, tmp_path):
    one, other = (shutil.copytree(run.path, tmp_path / name) for name in ("one", "other"))
    for path in (one, other):
        (path / "report.html").unlink(missing_ok=True)
    assert tangentlens("report", one, "--quiet").returncode == 0
    before = (one / "report.html").read_bytes()
    done = tangentlens("report", one, other)
    assert f"Report: {tmp_path / 'report-one-other.html'}" in done.stdout
    assert (one / "report.html").read_bytes() == before
    assert "How do the runs differ?" in (tmp_path / "report-one-other.html").read_text()
    # A folder of runs has one too.
    assert tangentlens("report", tmp_path, "--quiet").returncode == 0
    assert (tmp_path / "report.html").exists()


def test_figures_are_written_for_a_paper(run, tmp_path):
    pytest.importorskip("kaleido")
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no chromium on this machine")
    done = tangentlens("report", run.path, "--out", tmp_path / "r.html", "--figures", tmp_path / "figures", "--json")
    files = [Path(file) for file in json.loads(done.stdout)["files"]]
    assert {file.suffix for file in files} == {".pdf", ".tex"}
    assert all(file.read_bytes().startswith(b"%PDF") for file in files[:-1])
    assert len(files) == text_figures(tmp_path / "r.html") + 1
    assert r"semi\_nmf" in (tmp_path / "figures" / "shares.tex").read_text()
    says = "a format must be one of pdf, svg, png, but is 'gif'"
    fails(1, "report", run.path, "--figures", tmp_path / "figures", "--format", "gif", says=says)


def text_figures(page):
    return len(re.findall(r'id="figure-\w+-data"', page.read_text()))


def test_profile_prints_a_table_and_its_run_is_one_that_report_opens(tmp_path):
    model = save_tiny(tmp_path / "tiny")
    arguments = ["profile", model, "--out", tmp_path / "run", "--batches", 3, "--batch-tokens", 128, "--length", 16]
    done = tangentlens(*arguments)
    assert done.returncode == 0, done.stderr
    assert "GiB of memory" in done.stderr
    assert "GiB of memory" in done.stderr
    assert "tiny, site by site: mean ± standard deviation over batches" in done.stdout
    assert "Anisotropy over depth: " in done.stdout
    assert len(re.findall(r"^ ?resid\.\d", done.stdout, flags=re.MULTILINE)) == 4
    told = json.loads(tangentlens(*arguments, "--json").stdout)
    assert told["tables"][0]["rows"][0]["site"] == "resid.0"
    few = ["--sites", "resid.1", "--batches", 2, *arguments[6:]]
    silent = tangentlens(*arguments[:3], tmp_path / "again", *few, "--quiet")
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    assert tangentlens("report", tmp_path / "run").returncode == 0
    fails(1, *arguments, "--seed", 1, says="holds a run with another configuration")
    fails(1, "profile", tmp_path / "none", says="there is no directory")


def test_test_prints_every_control_and_its_run_is_one_that_report_opens(tmp_path):
    model = save_tiny(tmp_path / "tiny")
    options = ["--rank", 4, "--tokens", 256, "--length", 16, "--skip-first", 1, "--massive", 5]
    done = tangentlens("test", model, *options, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "tiny: energy share by site and control" in " ".join(done.stdout.split())
    assert open_run(tmp_path / "run").records.filter(metric="share", variant="permuted").height
    assert open_run(tmp_path / "run").records.filter(metric="massive_threshold")["value"].unique().to_list() == [5.0]
    fails(1, "test", model, "--massive", 0.5, "--out", tmp_path / "no", says="massive must be a number above 1")
    fails(1, "test", model, "--skip-first", 500, "--out", tmp_path / "no", says="skip_first must leave tokens")


def test_a_name_with_markup_is_printed_as_it_is(tmp_path):
    model = save_tiny(tmp_path / "[red]k[b]")
    options = ["--sites", "resid.1", "--batches", 2, "--batch-tokens", 128, "--length", 16, "--out", tmp_path / "run"]
    done = tangentlens("profile", model, *options)
    assert done.returncode == 0, done.stderr
    assert "[red]k[b], site by site" in done.stdout


def test_a_hub_id_with_a_revision_is_loaded_from_the_hubs_own_cache(tmp_path, monkeypatch):
    """A cache as the hub's client leaves it, and no network: the revision is a branch that names a commit."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--acme--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    save_tiny(folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "step5").write_text(commit)
    options = ["--sites", "resid.1", "--batches", 2, "--batch-tokens", 128, "--length", 16, "--quiet"]
    done = tangentlens("profile", "acme/tiny@step5", *options, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    records = open_run(tmp_path / "run").records
    assert records.select("model", "revision").unique().rows() == [("acme/tiny@step5", "step5")]
    fails(1, "profile", "acme/tiny@step6", *options, "--out", tmp_path / "x", says="'acme/tiny@step6' is not")


def test_a_preset_measures_what_can_be_had_and_names_the_rest(tmp_path, monkeypatch):
    """Without a network, from the hub's own cache: ALBERT is there, BERT is not."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    albert, bert = (next(one for one in PAPER.models if one.name == f"{name} base") for name in ("ALBERT", "BERT"))
    save_albert(tmp_path / "hub" / "models--albert--albert-base-v2" / "snapshots" / albert.revision)
    options = ["--batches", 2, "--batch-tokens", 128, "--length", 16, "--out", tmp_path / "run"]
    done = tangentlens("profile", "--preset", PAPER.name, "--up-to", 0.12, *options)
    assert done.returncode == 0, done.stderr
    assert "ALBERT base, site by site" in done.stdout
    assert f"This model could not be measured. First reason: {bert.hub_id} cannot be loaded: " in done.stdout
    assert "skipped: " in done.stderr
    run = open_run(tmp_path / "run")
    assert run.manifest["models"]["ALBERT base"]["commit"] == albert.revision
    assert run.manifest["models"]["ALBERT base"]["loaded_from"] == albert.spec
    unmeasured = run.records.filter(metric="unmeasured").select("model", "revision").rows()
    assert unmeasured == [("BERT base", bert.revision)]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    fails(1, "profile", "--preset", PAPER.name, "--up-to", 0.12, *options[:-1], tmp_path / "x", says="none of 2 can")


def test_presets_are_listed_with_sizes_revisions_and_times():
    done = tangentlens("profile", "--preset", "list")
    assert done.returncode == 0
    line = next(line for line in done.stdout.splitlines() if "Llama-2 7B (gated)" in line)
    assert re.search(r"01c7f73d77 .* 6,607 M .* 32 × 4096 .* GiB .* about .* about ", line)
    assert "estimates by a rule from size" in done.stdout
    told = json.loads(tangentlens("profile", "--preset", "list", "--json").stdout)
    assert [preset["name"] for preset in told] == ["shape-of-learning"]
    assert told[0]["models"][0]["expected_seconds_two_cores"] > 0
    fails(2, "profile", says="name a model or a preset; --preset list shows the presets")
    fails(1, "profile", "--preset", "shape", says="a preset must be one of shape-of-learning")


def test_json_is_for_programs(run, tmp_path):
    told = json.loads(tangentlens("report", run.path, "--json", "--out", tmp_path / "r.html").stdout)
    assert told["report"] == str(tmp_path / "r.html")
    assert {finding["model"] for finding in told["findings"]} == {"decoder", "encoder"}
    checks = json.loads(tangentlens("doctor", "--json").stdout)
    assert all(check["ok"] for check in checks)
    assert {"python", "torch", "disk", "threads", "device", "bfloat16"} <= {check["name"] for check in checks}


def test_doctor_says_what_would_not_work(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4096)
    # As if a product in bfloat16 ended the process.
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    done = tangentlens("doctor")
    assert done.returncode == 1
    assert "BAD threads" in done.stdout
    assert "more threads than cores" in done.stdout
    assert "BAD bfloat16" in done.stdout
    assert "ends the process with code 1; set ONEDNN_MAX_CPU_ISA" in " ".join(done.stdout.split())


def test_control_c_leaves_a_readable_run_and_the_same_command_goes_on(tmp_path):
    arguments = ["demo", "--steps", "4", "--sites", "resid.1", "--rank", "4", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run" / "records").glob("*-00000001.parquet")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error: interrupted; what was measured is kept, and the same command continues" in errors
    assert "Traceback" not in errors
    before = open_run(tmp_path / "run").records
    assert before.height > 0
    done = tangentlens(*arguments)
    assert done.returncode == 0, done.stderr
    after = open_run(tmp_path / "run").records
    kept = before.filter(step=0, model="decoder")
    assert after.filter(step=0, model="decoder").equals(kept)
    assert after["model"].unique().sort().to_list() == ["decoder", "encoder"]
    assert (tmp_path / "run" / "report.html").exists()


def test_a_seed_may_be_large_and_a_report_needs_a_file(run, tmp_path):
    fails(1, "report", run.path, "--out", tmp_path, says="must be a file")
    fails(2, "demo", "--seed", 2**70, says="--seed")
    done = tangentlens("--version")
    assert done.stdout.startswith("tangentlens 0.")


def test_an_audit_is_a_page_for_people_and_an_object_for_programs(tmp_path, run):
    done = tangentlens("audit", run.path, "--rank", 4, "--tokens", 640, "--out", tmp_path / "audit")
    assert done.returncode == 0, done.stderr
    assert "decoder at resid.1: the gradients are" in done.stdout
    for name in ("local tangents", "charts", "controls", "against untrained", "against shuffled labels"):
        assert f"\n{name}: " in done.stdout
    again = tangentlens("audit", run.path, "--rank", 4, "--tokens", 640, "--out", tmp_path / "audit", "--json")
    found = json.loads(again.stdout)
    assert set(found["audits"]) == {"decoder at resid.1", "encoder at resid.1"}
    assert tangentlens("report", tmp_path / "audit", "--quiet").returncode == 0
    fails(1, "audit", tmp_path / "none", says="there is no directory")
    fails(1, "audit", run.path, "--rank", 99, "--out", tmp_path / "x", says="half the width")


def test_visibility_is_a_run_with_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr(visibility, "SYNTHETIC", {"torus": visibility.SYNTHETIC["torus"]})
    done = tangentlens("visibility", "--anchors", 32, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "fell with every step of alpha in 20 of 20 further draws" in " ".join(done.stdout.split())
    assert "Curvature visible at the corpus" in (tmp_path / "run" / "report.html").read_text()
    found = json.loads(tangentlens("visibility", "--anchors", 32, "--out", tmp_path / "run", "--json").stdout)
    assert [finding["model"] for finding in found["findings"]] == ["torus"]
    fails(1, "visibility", tmp_path / "none", says="there is no directory")


def test_studies_are_listed_with_their_claims_and_costs():
    done = tangentlens("study", "--list")
    assert "learning-dynamics" in done.stdout
    assert "28b" in done.stdout
    assert "small  about" in done.stdout
    assert "9a. The proxy takes more than the top principal components" in done.stdout
    listed = json.loads(tangentlens("study", "--list", "--json").stdout)
    assert {one["name"] for one in listed} == set(STUDIES)


def test_a_misspelt_study_is_told_the_nearest_name(tmp_path):
    fails(1, "study", "lerning-dynamics", says="did you mean learning-dynamics?")
    fails(1, "study", "demo", "--scale", "smok", says="did you mean smoke?")
    fails(1, "claims", tmp_path / "nothing", says="must be a run directory")
    fails(2, "study", "demo", "--models", "a,b", says="--models is for finished-models")
    fails(2, "study", "demo", "--tokenizer", "a", says="--tokenizer is for finished-models")


def test_a_study_ends_with_its_ledger_and_claims_say_what_is_missing(tmp_path):
    done = tangentlens("study", "demo", "--scale", "smoke", "--out", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    assert f"Report: {tmp_path / 'demo' / 'report.html'}" in done.stdout
    assert "not judged" not in done.stdout, "it judges no claim"
    told = json.loads(tangentlens("claims", tmp_path / "demo", "--json").stdout)
    verdicts = {one["id"]: one for one in told["claims"]}
    assert {one["verdict"] for one in told["claims"]} == {"not judged"}
    assert "tangentlens study learning-dynamics" in verdicts["2"]["what_would_decide"]
    page = tmp_path / "ledger.md"
    assert tangentlens("claims", tmp_path / "demo", "--page", page, "--quiet").stdout == ""
    assert "not judged" in page.read_text()


def test_a_report_that_takes_long_is_seldom_written_before_the_end():
    written = []

    def write(run):
        written.append(run)
        time.sleep(0.02)

    with progress_bars(hidden=True, readable=write) as watch:
        start = time.monotonic()
        for done in range(1000):
            watch(Progress("sweep", done, 1000, readable=Path("run")))
        # Each takes a twentieth of the time until the next.
        assert 1 <= len(written) <= 2 + (time.monotonic() - start) / 0.4


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_is_viewed_at_an_address_until_ctrl_c(run, as_json):
    opened, seen = [], []

    def look(address):
        opened.append(address)
        try:
            with urllib.request.urlopen(address, timeout=60) as page:
                seen.append(page.read().decode())
        finally:
            _thread.interrupt_main()

    def browse(address):
        threading.Thread(target=look, args=(address,)).start()

    with mock.patch("webbrowser.open", browse):
        done = tangentlens("view", run.path, "--open", *["--json"] * as_json)
    assert done.returncode == 0, done.stderr
    assert "<h1>run</h1>" in seen[0]
    if as_json:
        assert json.loads(done.stdout) == {"address": opened[0], "runs": [str(run.path)]}
    else:
        assert opened[0] in done.stdout.split()
        assert done.stdout.endswith("Stopped. The runs are as they were.\n")


def test_no_browser_is_opened_where_nobody_looks(run):
    with (
        mock.patch("webbrowser.open") as opened,
        mock.patch("tangentlens.report.live.LiveServer.serve_forever", side_effect=KeyboardInterrupt),
    ):
        assert tangentlens("view", run.path).returncode == 0
    opened.assert_not_called()
