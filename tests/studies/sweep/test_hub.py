"""Sweeps over a hub: revisions are listed, the next one is downloaded ahead, and downloads are removed if asked."""

import json

import pytest

import tangentlens as tl
from hub import MODEL, hub_of, on_hub
from tangentlens.corpora.text import builtin_text
from tiny import save_tiny

SMALL = ["--sites=resid.1", "--measures=anisotropy", "--controls=random", "--rank=4", "--tokens=256", "--length=16"]


@pytest.fixture(scope="module")
def revisions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    places = {f"step{step}": save_tiny(folder / f"step{step}", seed=step) for step in (0, 10, 20)}
    return {**places, "main": places["step20"]}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(builtin_text()[:20_000], encoding="utf-8")
    return path


def test_all_revisions_are_listed_measured_and_removed(revisions, text, tmp_path):
    home, out, small = tmp_path / "home", tmp_path / "run", [*SMALL, "--text", text]
    with hub_of(revisions) as hub:
        planned = on_hub(hub.address, home, "sweep", MODEL, "--revisions=all", "--dry-run", "--json", *small)
        assert planned.returncode == 0, planned.stderr
        (told,) = json.loads(planned.stdout)
        assert told["checkpoints"] == ["step0", "step10", "step20"]
        # One of them was looked at, and is here.
        assert told["to_download"] == 2
        size = (revisions["step0"] / "model.safetensors").stat().st_size
        assert told["download_bytes"] == 2 * size
        options = ["--revisions=step*", "--remove-downloads", "--quiet", "--out", out]
        done = on_hub(hub.address, home, "sweep", MODEL, *options, *small)
        assert done.returncode == 0, done.stderr
    records = tl.open_run(out).records
    assert sorted(records["step"].unique()) == [0, 10, 20]
    assert set(records["revision"]) == {"step0", "step10", "step20"}
    assert records.filter(metric="unmeasured").is_empty()
    kept = {path.parent.name for path in (home / "hub").glob("models--*/snapshots/*/model.safetensors")}
    assert len(kept) == 1, "only what was there before is left"


@pytest.mark.calibration
def test_a_hub_that_is_away_is_said_at_once_and_what_was_downloaded_is_swept(revisions, text, tmp_path):
    home, small = tmp_path / "home", [*SMALL, "--text", text]
    with hub_of(revisions) as hub:
        first = on_hub(hub.address, home, "sweep", MODEL, "--revisions=step0,step10", "--dry-run", *small)
        assert first.returncode == 0, first.stderr
    away = on_hub(
        hub.address, home, "sweep", MODEL, "--revisions=all,step20", "--quiet", "--out", tmp_path / "run", *small
    )
    assert away.returncode == 0, away.stderr
    records = tl.open_run(tmp_path / "run").records
    # Of what is asked for by name, what was not downloaded is missing.
    assert records.filter(metric="loss")["revision"].to_list() == ["step0"]
    assert records.filter(metric="unmeasured")["revision"].to_list() == ["step20"]
    never = on_hub(hub.address, tmp_path / "empty", "sweep", MODEL, "--revisions=all", *small)
    assert never.returncode == 1
    assert "cannot be reached, and none was downloaded before" in never.stderr
