"""What holds for a run holds in a folder, in memory and on an S3 server; and what cannot be reached is said."""

import multiprocessing
import os
import random
import shutil
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

import crash_writer
from object_store import environment, free_port
from tangentlens import InputError, open_run
from tangentlens.errors import StorageError
from tangentlens.runs.failed import leaving_no_empty_run
from tangentlens.runs.files import as_place, check_reachable
from tangentlens.runs.journal import parts_written
from tangentlens.runs.records import KEY, SCHEMA, Record
from tangentlens.runs.remote import Remote
from tangentlens.runs.run import create_run, is_run, runs_in


def record(step):
    return Record(model="m", metric="loss", step=step, value=step / 7)


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request, tmp_path):
    """A place for a run of any name; the pattern in its name matches others."""
    name = f"{tmp_path.name}/llama[7b] run"
    if request.param == "folder":
        return tmp_path / name
    return as_place(f"{request.getfixturevalue('bucket') if request.param == 's3' else 'memory://'}/{name}")


@pytest.fixture
def run(place):
    made = create_run(place, {"rank": 16, "sites": ("resid",)})
    for step in (0, 1, 2):
        made.write(f"Eleuther/m@{step} .x", [record(step)])
    return made


def steps(run):
    """The steps in the records; a warning is an error."""
    return open_run(str(run.path)).records["step"].to_list()


def keys(place):
    """Every file of a run, under its path in it."""
    if isinstance(place, Path):
        return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    store, key = url_to_fs(place.url)
    return sorted(path[len(key) + 1 :] for path in store.find(key))


def test_what_was_written_is_read_back_and_writing_again_replaces_it(run):
    run.write("Eleuther/m@1 .x", [record(1)])
    again = open_run(str(run.path))
    assert again.records.schema == SCHEMA
    assert again.records["step"].to_list() == [0, 1, 2]
    assert again.records["run"].unique().to_list() == ["llama[7b] run"]
    assert again.has("Eleuther/m@1 .x")
    assert not again.has("Eleuther/m@3 .x")
    assert again.parts == set(again.names) == {f"Eleuther/m@{step} .x" for step in range(3)}


def test_tensors_come_back_with_what_was_said_of_them(run):
    assert run.load_tensors("w") is None
    assert run.about_tensors("w") is None
    matrix = torch.arange(6.0).reshape(2, 3).T
    run.save_tensors("w", {"w": matrix}, {"step": "5"})
    tensors, about = run.load_tensors("w")
    assert torch.equal(tensors["w"], matrix)
    assert about == run.about_tensors("w") == {"step": "5"}
    run.save_tensors("w", {"w": matrix})
    assert run.about_tensors("w") == {}
    long = {"facts": "x" * 100_000}
    run.save_tensors("w", {"w": matrix}, long)
    assert run.about_tensors("w") == long


def test_facts_are_added_to_the_manifest(run):
    run.describe("data", {"sha256": "ab"})
    run.describe("data", {"sequences": 3})
    run.redescribe("models", {"m": 1})
    manifest = open_run(str(run.path)).manifest
    assert manifest["data"] == {"sha256": "ab", "sequences": 3}
    assert manifest["models"] == {"m": 1}


def test_it_goes_on_with_the_same_configuration_only(run):
    assert create_run(run.path, {"rank": 16, "sites": ["resid"]}).records.height == 3
    with pytest.raises(InputError, match="rank was 16 and is now 8"):
        create_run(run.path, {"rank": 8, "sites": ["resid"]})
    assert steps(run) == [0, 1, 2]


def test_a_run_without_results_takes_other_settings_and_misses_nothing(run):
    run.abandon(sorted(run.parts)[1:])
    (last,) = run.parts
    remove(run, last)
    assert create_run(run.path, {"rank": 8}).manifest["config"] == {"rank": 8}
    assert parts_written(run.path) == []
    assert steps(run) == []


def remove(run, part):
    """Remove the records of a part, as a careless hand does."""
    path = run._part(part)
    path.unlink() if isinstance(path, Path) else path.remove()


def test_a_part_that_is_gone_is_noticed_until_it_is_written_again(run):
    remove(run, "Eleuther/m@1 .x")
    with pytest.warns(UserWarning, match=r"these are gone from its records: Eleuther/m@1 \.x; restore them"):
        assert steps(run) == [0, 2]
    run.write("Eleuther/m@1 .x", [record(1)])
    assert steps(run) == [0, 1, 2]


def test_what_is_abandoned_is_kept_beside_the_run_and_not_missed(run):
    parts = sorted(run.parts)
    run.save_tensors(parts[1], {"w": torch.ones(2)})
    folders = [run.abandon(parts[1:2]), run.abandon(parts[2:])]
    assert [folder.name for folder in folders] == ["001", "002"]
    assert steps(run) == [0]
    assert run.load_tensors(parts[1]) is None
    assert [key.partition("/")[2] for key in keys(run.path) if key.startswith("abandoned")] == [
        "001/records/Eleuther%2Fm@1%20.x.parquet",
        "001/tensors/Eleuther%2Fm@1%20.x.safetensors",
        "002/records/Eleuther%2Fm@2%20.x.parquet",
    ]


def test_runs_in_a_folder_are_found_and_a_folder_of_other_files_is_left_alone(run):
    other = create_run(run.path.with_name("other"), {})
    assert [one.name for one in runs_in(str(run.path.parent))] == ["llama[7b] run", "other"]
    assert [one.name for one in runs_in(str(other.path))] == ["other"]
    with pytest.raises(InputError, match="holds other files"):
        create_run(run.path.parent, {})
    with pytest.raises(InputError, match=r"has no readable manifest\.json \(No such file or directory\)"):
        open_run(str(run.path / "nothing"))


def test_a_damaged_part_is_named(run):
    part, tensors = run._part("torn"), run._tensors("torn")
    for path in (part, tensors):
        path.parent.mkdir(exist_ok=True) if isinstance(path, Path) else None
        (path.write_bytes if isinstance(path, Path) else path.put)(b"torn")
    with pytest.raises(InputError, match=r"torn\.parquet must be a Parquet part.*the other 3 parts are untouched"):
        run.records  # noqa: B018
    with pytest.raises(InputError, match=r"torn\.safetensors must be a safetensors file"):
        run.load_tensors("torn")
    assert run.about_tensors("torn") is None


def fail_after(place, make):
    def block():
        with leaving_no_empty_run(place):
            make(create_run(place, {}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        block()


def test_a_run_in_which_nothing_was_measured_is_removed_after_a_failure(place):
    fail_after(place, lambda run: run.describe("data", {}))
    assert not is_run(place)
    assert keys(place) == []
    fail_after(place, lambda run: run.write("a", [record(1)]))
    assert is_run(place)
    fail_after(place, lambda run: None)
    assert is_run(place), "it was there before"


def test_a_run_may_be_copied_between_folders_and_stores(run, place, tmp_path):
    """As with `aws s3 sync`. What the copy has lost is noticed, and what it abandons is not missed."""
    parts = sorted(run.parts)
    copied = as_place(f"memory://{tmp_path.name}/copy") if isinstance(place, Path) else tmp_path / "copy"
    for key in keys(place):
        if key != ".lock" and not ("records" in key and "m@2" in key):
            data = (place / key).read_bytes()
            if isinstance(copied, Remote):
                (copied / key).put(data)
            else:
                (copied / key).parent.mkdir(parents=True, exist_ok=True)
                (copied / key).write_bytes(data)
    copy = open_run(str(copied))
    with pytest.warns(UserWarning, match="gone from its records: Eleuther/m@2"):
        assert copy.records["step"].to_list() == [0, 1]
    copy.abandon(parts[1:])
    assert steps(copy) == [0]


def test_nothing_is_left_by_the_look_whether_a_store_can_be_written_to(place):
    check_reachable(place)
    assert keys(place) == []


def test_what_another_process_writes_is_seen_at_once(bucket, tmp_path):
    run = create_run(f"{bucket}/{tmp_path.name}", {})
    run.write("m@1", [record(1)])
    # A driver remembers lists, unless it is told not to.
    assert run.parts == {"m@1"}
    assert not run.has("m@0")
    store, key = url_to_fs(run.path.url, skip_instance_cache=True)
    # As another process does, of which this one's driver knows nothing.
    other = create_run(f"memory://{tmp_path.name}/twin", {})
    other.write("m@0", [record(0)])
    store.pipe_file(f"{key}/records/m@0.parquet", other._part("m@0").read_bytes())
    assert run.has("m@0")
    assert run.parts == {"m@0", "m@1"}
    assert run.records["step"].to_list() == [0, 1]


def test_many_parts_are_read_at_once_and_in_order(tmp_path, monkeypatch):
    run, fetch = create_run(f"memory://{tmp_path.name}", {}), Remote.read_bytes
    for step in range(16):
        run.write(f"{step:03d}", [record(step)])
    # Each waits for seven others: one after the other, none would ever come.
    together = threading.Barrier(8)

    def far_away(place):
        if place.suffix == ".parquet":
            together.wait(timeout=20)
        return fetch(place)

    monkeypatch.setattr(Remote, "read_bytes", far_away)
    assert run.records["step"].to_list() == list(range(16))


def test_a_process_that_is_killed_leaves_whole_parts(bucket, tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tangentlens.runs.run", "s3fs"])
    url, chance, acknowledged, kills = f"{bucket}/{tmp_path.name}", random.Random(0), set(), 0
    for _ in range(3):
        ours, theirs = context.Pipe(duplex=False)
        writer = context.Process(target=crash_writer.write_with, args=(dict(os.environ), url, theirs))
        writer.start()
        theirs.close()
        assert ours.recv() == "ready"
        # However slow the machine is, it is killed after its first part.
        acknowledged.add(ours.recv())
        time.sleep(chance.uniform(0.0, 0.15))
        writer.kill()
        writer.join()
        kills += writer.exitcode < 0
        while ours.poll():
            try:
                acknowledged.add(ours.recv())
            except EOFError:
                break
        ours.close()
    records = open_run(url).records
    assert kills == 3
    assert acknowledged
    assert acknowledged <= set(records["step"])
    assert not records.select(KEY).is_duplicated().any()
    for (_,), rows in records.group_by("step"):
        assert rows.height == crash_writer.ROWS


@pytest.fixture
def no_server(monkeypatch):
    import s3fs

    for name, value in environment(free_port()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_store_that_does_not_answer_is_told(no_server):
    for ask in (lambda: open_run("s3://bucket/run"), lambda: create_run("s3://bucket/run", {})):
        with pytest.raises(StorageError, match=r"could not .* s3://bucket/run.*: EndpointConnectionError: .*; check"):
            ask()


def test_a_driver_that_fails_is_no_answer(monkeypatch):
    """Some drivers say of whatever they cannot reach that it is not there."""

    def away(*args, **options):
        raise RuntimeError("the store\n is away")

    monkeypatch.setattr(MemoryFileSystem, "info", away)
    with pytest.raises(StorageError, match=r"^could not read memory://run/manifest\.json: RuntimeError: the store is"):
        is_run("memory://run")


def test_missing_credentials_are_told(no_server, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"NoCredentialsError: Unable to locate credentials; check .* credentials"):
        is_run("s3://bucket/run")


def test_a_missing_bucket_is_told(bucket):
    with pytest.raises(StorageError, match=r"could not write s3://no-such-bucket/run/.*bucket does not exist; check"):
        check_reachable(as_place("s3://no-such-bucket/run"))
    with pytest.raises(StorageError, match="bucket does not exist"):
        create_run("s3://no-such-bucket/run", {})
    with pytest.raises(InputError, match="has no readable manifest"):
        open_run("s3://no-such-bucket/run")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s4://bucket/run", r"must begin with a protocol that fsspec knows.*s4://bucket/run.* begins with s4://"),
        ("simplecache::s3://bucket/run", "must begin with a protocol that fsspec knows"),
        ("s3://", "must name a bucket or folder, but s3:// names none"),
        ("https://host/run", "https://host/run is a web page"),
        ("sftp://host/run", "sftp, where a file can be seen half-written; mount it"),
        (Path("s3://bucket/run"), "must be given as text, but s3:/bucket/run came as a Path; write 's3://bucket/run'"),
    ],
)
def test_urls_that_cannot_hold_a_run_are_refused(url, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says):
        check_reachable(as_place(url))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("url", "package"), [("s3://bucket/run", "s3fs"), ("gs://bucket/run", "gcsfs")])
def test_a_missing_driver_is_named(url, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    # Drivers that were loaded before are remembered here.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, url.partition("://")[0], raising=False)
    says = f"^{url.partition('bucket')[0]} must have its driver.*; pip install {package}, on every machine"
    for ask in (is_run, open_run, lambda place: create_run(place, {})):
        with pytest.raises(StorageError, match=says):
            ask(url)


def test_a_file_url_is_a_folder(tmp_path):
    run = create_run(f"file://{tmp_path}/run", {})
    assert run.path == tmp_path / "run"
    run.write("a", [record(1)])
    assert (tmp_path / "run" / "parts.jsonl").exists()
    shutil.rmtree(tmp_path / "run" / "records")
    with pytest.warns(UserWarning, match="gone"):
        run.records  # noqa: B018


def test_a_run_with_few_requests(bucket, tmp_path, monkeypatch):
    """However many parts there are, it takes one list to know them all."""
    run = create_run(f"{bucket}/{tmp_path.name}", {})
    for step in range(5):
        run.write(f"m@{step}", [record(step)])
    asked = []
    for name in ("exists", "children", "read_bytes"):
        do = getattr(Remote, name)
        monkeypatch.setattr(
            Remote, name, lambda *args, _do=do, _name=name: (asked.append(_name), _do(*args))[1], raising=True
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.records.height == 5
    # The journal and its marks, the parts twice (against marks, and to read them), and each part.
    assert sorted(asked) == ["children"] * 3 + ["read_bytes"] * 6
