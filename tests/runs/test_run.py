import contextlib
import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch

from tangentlens import InputError, open_run
from tangentlens.runs.records import KEY, SCHEMA, Record
from tangentlens.runs.run import create_run


def record(**about):
    return Record(**{"model": "m", "metric": "anisotropy", "value": 0.5, **about})


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "run", {"rank": 16, "sites": ("resid",)})


def test_what_was_written_is_read_back_in_the_schema(run):
    run.write("a", [record(step=1, order=float("inf"), ci_over="sequences"), record(step=2, value=float("nan"))])
    run.write("b", [record(step=3, depth=0.5, n=7)])
    records = open_run(run.path).records
    assert records.schema == SCHEMA
    assert records["run"].unique().to_list() == ["run"]
    assert records["step"].to_list() == [1, 2, 3]
    assert records["order"][0] == float("inf")


def test_writing_a_part_again_replaces_it_so_nothing_is_doubled(run):
    for _ in range(3):
        run.write("EleutherAI/pythia@step1 ../../x", [record(step=1), record(step=2)])
    assert run.has("EleutherAI/pythia@step1 ../../x")
    assert not run.has("EleutherAI/pythia@step2")
    assert run.records.height == 2
    assert not run.records.select(KEY).is_duplicated().any()
    assert {path.parent for path in run.path.rglob("*.parquet")} == {run.path / "records"}


def test_an_empty_run_has_an_empty_table(run):
    assert run.records.schema == SCHEMA
    assert run.records.height == 0


def test_tensors_come_back_with_what_was_said_of_them(run):
    assert run.load_tensors("x") is None
    run.save_tensors("x", {"w": torch.arange(6.0).reshape(2, 3).T}, {"step": "5"})
    tensors, about = run.load_tensors("x")
    assert torch.equal(tensors["w"], torch.arange(6.0).reshape(2, 3).T)
    assert about == {"step": "5"}


def test_a_run_goes_on_with_the_same_configuration_only(run):
    run.write("a", [record()])
    assert create_run(run.path, {"rank": 16, "sites": ["resid"]}).records.height == 1
    with pytest.raises(InputError, match="rank was 16 and is now 8"):
        create_run(run.path, {"rank": 8, "sites": ["resid"]})
    assert run.manifest["config"]["rank"] == 16


def test_the_manifest_says_versions_and_keeps_what_is_described(run):
    run.describe("data", {"sha256": "ab"})
    run.describe("data", {"sequences": 3})
    assert run.manifest["data"] == {"sha256": "ab", "sequences": 3}
    assert run.manifest["versions"]["torch"] == torch.__version__


def test_a_notebook_is_told_when_a_run_was_created_if_that_is_known(run):
    created = run.manifest["created"]
    assert created in run._repr_html_()
    assert "not known" not in run._repr_html_()
    path = run.path / "manifest.json"
    path.write_text(path.read_text().replace('"created"', '"another word"'))
    assert created not in run._repr_html_()
    assert "not known" in run._repr_html_()


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="must be a run directory, but has no readable manifest"):
        open_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="must be JSON"):
        open_run(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(InputError, match="manifest of format 1"):
        open_run(tmp_path)


def test_a_folder_with_other_files_is_not_written_into(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="holds other files"):
        create_run(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("left", [0, 10, 200])
def test_a_truncated_part_is_named_and_the_others_are_readable_once_it_is_gone(run, left):
    run.write("good", [record(step=1)])
    run.write("torn", [record(step=2)])
    torn = run.path / "records" / "torn.parquet"
    torn.write_bytes(torn.read_bytes()[:left])
    with pytest.raises(InputError, match=r"torn\.parquet must be a Parquet part.*the other 1 parts are untouched"):
        run.records  # noqa: B018
    torn.unlink()
    with pytest.warns(UserWarning, match="gone from its records: torn"):
        assert run.records["step"].to_list() == [1]


def test_a_foreign_table_among_the_parts_is_named(run):
    pl.DataFrame({"a": [1]}).write_parquet(run.path / "records" / "foreign.parquet")
    with pytest.raises(InputError, match=r"foreign\.parquet"):
        run.records  # noqa: B018


def test_truncated_tensors_are_named(run):
    run.save_tensors("w", {"w": torch.zeros(100)})
    path = run.path / "tensors" / "w.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match=r"w\.safetensors must be a safetensors file"):
        run.load_tensors("w")


def test_a_file_size_limit_leaves_the_old_part_and_no_litter(run):
    """Past the limit a write fails half-way, as on a full disk."""
    run.write("a", [record(step=1)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
        with pytest.raises(InputError, match=r"could not write .*a\.parquet: File too large; what was there before"):
            run.write("a", [record(step=step) for step in range(5000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.records["step"].to_list() == [1]
    assert [path.name for path in (run.path / "records").iterdir()] == ["a.parquet"]


FILL = """
import sys
from tangentlens.errors import InputError
from tangentlens.runs.run import create_run, open_run
from tangentlens.runs.records import Record
run = create_run(sys.argv[1], {})
try:
    for part in range(10_000):
        run.write(str(part), [Record(model="m", metric="loss", step=part, value=float(i), seed=i) for i in range(500)])
except InputError as error:
    assert "No space left on device" in str(error), error
    assert open_run(sys.argv[1]).records.height == 500 * part > 0
    print("kept", part)
"""


def test_a_full_disk_leaves_every_part_written_before(tmp_path):
    """A real one: a file system of half a megabyte, mounted in a name space of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=512k none {disk} && exec {sys.executable} -c '{FILL}' {disk}/run"
    done = subprocess.run(["unshare", "--map-root-user", "--mount", "sh", "-c", mount], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount name space here: {done.stderr.strip()}")
    assert "kept" in done.stdout, done.stderr


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="must be a folder that can be written to, but: Not a directory"):
        create_run(tmp_path / "file" / "run", {})


@pytest.mark.skipif(os.getuid() != 0, reason="drops root's rights, which only root has")
def test_a_folder_without_write_permission_is_a_clear_error(tmp_path):
    create_run(tmp_path / "run", {})
    for path in [*tmp_path.rglob("*"), tmp_path]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    script = """
import os, sys
from pathlib import Path
from tangentlens.runs.files import make_directory, write_whole
from tangentlens.errors import InputError
path = Path(sys.argv[1])
os.setuid(65534)
for action in (lambda: make_directory(path / "new"), lambda: write_whole(path / "manifest.json", b"")):
    try:
        action()
    except InputError as error:
        print(error)
"""
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and parent != Path("/") and parent.name != "tmp":
            parent.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.stdout.count("Permission denied") == 2, done.stdout + done.stderr
    assert open_run(tmp_path / "run").manifest["format"] == 3


def test_a_lock_that_cannot_be_opened_is_a_clear_error(run):
    (run.path / ".lock").unlink()
    (run.path / ".lock").mkdir()
    with pytest.raises(InputError, match=r"could not write .*run/\.lock: Is a directory; what was there before"):
        run.describe("data", {"sha256": "ab"})


def test_names_that_start_with_a_dot_are_read_back(run):
    run.write("../models/x", [record(step=4)])
    assert run.records["step"].to_list() == [4]


@pytest.mark.parametrize("name", ["llama[7b]", "what?", "all*", "one, two (three)"])
def test_a_folder_may_have_a_name_that_looks_like_a_pattern(tmp_path, name):
    run = create_run(tmp_path / name, {})
    run.write(name, [Record(model=name, quantity="activation", metric="anisotropy", value=0.25)])
    assert open_run(run.path).records["model"].to_list() == [name]


def test_a_moved_run_has_the_name_of_its_folder(run):
    run.write("a", [record()])
    moved = run.path.rename(run.path.with_name("moved"))
    assert open_run(moved).records["run"].to_list() == ["moved"]


def test_a_manifest_without_a_configuration_is_refused(run):
    for broken in ({"format": 1}, {"format": 1, "config": None}):
        (run.path / "manifest.json").write_text(json.dumps(broken))
        with pytest.raises(InputError, match="must be a run's manifest"):
            open_run(run.path)


@pytest.mark.parametrize(
    ("name", "says"), [("x" * 300, "File name too long"), ("r\udcff", "must have a printable name")]
)
def test_names_that_no_file_can_have_are_refused(name, says, tmp_path):
    with pytest.raises(InputError, match=says):
        create_run(tmp_path / name, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("where", "most", "draws"), [("anywhere", 20, 300), ("footer", 4, 600)])
def test_damaged_parts_never_end_in_a_traceback(run, where, most, draws):
    """Some damage to the footer makes polars panic, which is no ordinary exception; these draws hold such cases."""
    run.write("a", [record(step=step) for step in range(50)])
    part = run.path / "records" / "a.parquet"
    sound = part.read_bytes()
    room = (0, len(sound)) if where == "anywhere" else (len(sound) - 3000, len(sound) - 8)
    dice = random.Random(0)
    for _ in range(draws):
        damaged = bytearray(sound)
        for place in [dice.randrange(*room) for _ in range(dice.randint(1, most))]:
            damaged[place] = dice.randrange(256)
        part.write_bytes(damaged)
        with contextlib.suppress(InputError):
            run.records  # noqa: B018


def test_a_run_in_which_nothing_was_measured_takes_other_settings(tmp_path):
    create_run(tmp_path / "run", {"rank": 4})
    run = create_run(tmp_path / "run", {"rank": 8})
    assert run.manifest["config"] == {"rank": 8}
    run.save_tensors("a", {"x": torch.zeros(1)})
    with pytest.raises(InputError, match="rank was 8 and is now 4"):
        create_run(tmp_path / "run", {"rank": 4})


def test_a_manifest_that_is_not_a_runs_is_left_alone(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "my web page"}')
    with pytest.raises(InputError, match="must be a run's manifest"):
        create_run(tmp_path, {})
    assert (tmp_path / "manifest.json").read_text() == '{"name": "my web page"}'
