"""The server of live pages, asked as a browser or an intruder would ask it."""

import http.client
import json
import re
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import polars as pl
import pytest

from cells import shares
from serving import SECTIONS, serving
from tangentlens import InputError
from tangentlens.report import gallery, views
from tangentlens.report.live import LiveServer
from tangentlens.report.page import write_report
from tangentlens.runs.formats import FORMAT
from tangentlens.runs.glance import glance
from tangentlens.runs.records import Record
from tangentlens.runs.remote import Remote
from tangentlens.runs.run import create_run

# Columns that format 1 did not have.
NEW = ("detail", "alpha", "rows")


@pytest.fixture(autouse=True)
def restless(monkeypatch):
    """Every glance is a new one, and no page rests."""
    monkeypatch.setattr(views, "_GLANCE", 0.0)
    monkeypatch.setattr(views, "_GLANCES", 0.0)
    monkeypatch.setattr(views, "_REST", 0.0)


def ask(server, path, method="GET", host=None):
    """What the server answers to a request for exactly this path, whatever is in it."""
    with closing(socket.create_connection(("127.0.0.1", server.server_port), timeout=30)) as connection:
        line = f"{method} {path} HTTP/1.0\r\nHost: {host or f'127.0.0.1:{server.server_port}'}\r\n\r\n"
        connection.sendall(line.encode("latin-1"))
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        return response.status, response.headers, response.read().decode()


def page(server, where="runs/0/"):
    status, _, text = ask(server, f"/{server.token}/{where}")
    assert status == 200
    return text


def state(server, where="runs/0/"):
    return json.loads(page(server, f"{where}version"))


def version_of(text):
    return re.search(r'<main data-version="([^"]+)"', text)[1]


def losses(*steps, model="m"):
    return [Record(model=model, quantity="loss", metric="loss", step=step, value=6.0 - step) for step in steps]


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path / "a-run", {})
    run.write("step-0", [*losses(0), *shares(0, 0.3, 0.5, 0.4)])
    run.write("step-1", [*losses(1), *shares(1, 0.4, 0.5, 0.4)])
    return run


def test_a_page_is_the_report_and_says_what_a_browser_may_do_with_it(run):
    with serving(run.path) as server:
        assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/runs/0/"
        status, headers, text = ask(server, f"/{server.token}/runs/0/")
        assert status == 200
        assert "Training loss: m from 6.00 to 5.00" in text
        assert 'id="figure-loss_over_training"' in text
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert f"script-src 'nonce-{server.nonce}';" in policy
        assert "http" not in policy
        assert "Plotly" in page(server, "plotly.js")
        # Every script that runs carries the nonce; the others are data.
        scripts = re.findall(r"<script[^>]*>", text)
        assert all(f'nonce="{server.nonce}"' in one or "application/json" in one for one in scripts)


def test_the_server_listens_on_this_machine_alone(run):
    with serving(run.path) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_without_its_token_the_server_has_nothing(run):
    with serving(run.path) as server:
        wrong = (
            "/",
            "/runs/0/",
            "/x/runs/0/",
            f"/{server.token[:-1]}/runs/0/",
            f"/{server.token}x/runs/0/",
            "//runs/0/",
        )
        for path in (
            *wrong,
            f"/{server.token}",
            "/\xe9/runs/0/",
        ):
            status, _, text = ask(server, path)
            assert (status, "a-run" in text) == (404, False), path


def test_a_name_that_is_not_of_this_machine_is_refused(run):
    with serving(run.path) as server:
        path = f"/{server.token}/runs/0/"
        for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", "127.0.0.1:1"):
            assert ask(server, path, host=host)[0] == 403, host
        assert ask(server, path, host=f"localhost:{server.server_port}")[0] == 200


def test_no_path_leads_out_of_the_runs(run, tmp_path):
    (tmp_path / "secret").write_text("a secret")
    with serving(run.path) as server:
        outside = (
            *("../secret", "..%2fsecret", "runs/../secret", "runs/../../secret", "runs/%2e%2e/secret", "runs//secret"),
            *(
                "runs/0/../../secret",
                "runs/0/manifest.json",
                "runs/0/records/step-0.parquet",
                "runs/a-run/",
                "plotly.js/",
            ),
            *("runs/-1/", "runs/1/", "runs/00000000000000000000/", "runs/²/", "runs/0x0/", "runs/", "all"),
            *(f"runs/{tmp_path}/secret", f"{tmp_path}/secret", "runs/0/\\..\\secret", "runs/0/version/", "static/x"),
        )
        for path in outside:
            status, _, text = ask(server, f"/{server.token}/{path}")
            assert (status, "secret" in text) == (404, False), path


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_can_be_done_but_look(run, method):
    with serving(run.path) as server:
        assert ask(server, f"/{server.token}/runs/0/", method)[0] == 501


def test_a_head_is_a_page_without_its_body(run):
    with serving(run.path) as server:
        status, headers, text = ask(server, f"/{server.token}/runs/0/", "HEAD")
        assert (status, text) == (200, "")
        assert int(headers["Content-Length"]) > 1000


def test_a_new_part_makes_a_new_version(run):
    with serving(run.path) as server:
        first = version_of(page(server))
        assert state(server)["version"] == first
        assert 0 <= state(server)["seconds"] < 60
        run.write("step-2", losses(2))
        second = state(server)["version"]
        assert second != first
        text = page(server)
        assert version_of(text) == second == state(server)["version"]
        assert "from 6.00 to 4.00" in text
        assert 'data-step="2"' in text


def test_a_page_of_unchanged_runs_is_made_once_however_many_look(run, monkeypatch):
    made = []

    def slowly(*given, **named):
        made.append(given)
        time.sleep(0.2)
        return real(*given, **named)

    real = gallery.page_of
    monkeypatch.setattr(gallery, "page_of", slowly)
    with serving(run.path) as server, ThreadPoolExecutor(16) as viewers:
        assert len(set(viewers.map(lambda _: page(server), range(16)))) == 1
        assert len(made) == 1


def test_a_page_that_takes_long_keeps_nobody_from_asking(run, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def stuck(*given, **named):
        begun.set()
        assert go_on.wait(30)
        return real(*given, **named)

    real = gallery.page_of
    monkeypatch.setattr(gallery, "page_of", stuck)
    with serving(run.path) as server, ThreadPoolExecutor(1) as viewer:
        waiting = viewer.submit(page, server)
        assert begun.wait(30)
        assert state(server)["version"]
        assert "Plotly" in page(server, "plotly.js")
        go_on.set()
        assert "Training loss" in waiting.result()


def test_pages_rest_between_two_versions(run, monkeypatch):
    monkeypatch.setattr(views, "_REST", 1000.0)
    with serving(run.path) as server:
        first = version_of(page(server))
        run.write("step-2", losses(2))
        assert state(server)["version"] == first
        assert version_of(page(server)) == first


def test_a_page_is_labelled_with_what_was_there_when_it_was_made(run, monkeypatch):
    monkeypatch.setattr(views, "_GLANCE", 1000.0)
    with serving(run.path) as server:
        state(server)
        run.write("step-2", losses(2))
        # Otherwise the same page would be made again when the last glance is old.
        assert version_of(page(server)).startswith(glance(run.path).version)


def test_an_empty_run_waits_and_becomes_the_report(tmp_path):
    run = create_run(tmp_path / "run", {})
    with serving(run.path) as server:
        text = page(server)
        assert "nothing measured yet; waiting for the first measured step" in text
        assert 'data-message="waiting"' in text
        run.write("a", losses(0, 1))
        assert state(server)["version"] != version_of(text)
        assert "Training loss" in page(server)


def test_a_damaged_run_is_a_message_and_a_restored_one_is_a_report(run):
    part = run.path / "records" / "step-1.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:100])
    with serving(run.path) as server:
        text = page(server)
        assert "must be a Parquet part of the records" in text
        assert 'data-message="failed"' in text
        part.write_bytes(whole)
        assert "Training loss" in page(server)
        manifest = (run.path / "manifest.json").read_bytes()
        (run.path / "manifest.json").write_bytes(b"{")
        assert "must be JSON, but is not" in page(server)
        (run.path / "manifest.json").write_bytes(manifest)
        shutil.move(run.path, run.path.with_name("elsewhere"))
        assert "must be a run directory, but has no readable manifest.json" in page(server)
        shutil.move(run.path.with_name("elsewhere"), run.path)
        assert "Training loss" in page(server)


def test_what_failed_is_tried_again_even_if_nothing_changes(run, monkeypatch):
    monkeypatch.setattr(views, "_RETRY", 0.0)
    real = gallery.page_of
    monkeypatch.setattr(gallery, "page_of", lambda *given, **named: 1 / 0)
    with serving(run.path) as server:
        failed = page(server)
        assert "ZeroDivisionError: division by zero" in failed
        assert "Traceback" not in failed
        monkeypatch.setattr(gallery, "page_of", real)
        assert state(server)["version"] != version_of(failed)
        assert "Training loss" in page(server)


def test_a_run_of_an_older_format_is_shown_and_one_of_a_newer_is_a_message(run):
    manifest = json.loads((run.path / "manifest.json").read_text())
    for part in (run.path / "records").iterdir():
        pl.read_parquet(part).drop(NEW).write_parquet(part)
    with serving(run.path) as server:
        (run.path / "manifest.json").write_text(json.dumps(manifest | {"format": 1}))
        assert "Training loss" in page(server)
        (run.path / "manifest.json").write_text(json.dumps(manifest | {"format": FORMAT + 1}))
        assert f"must be a run&#39;s manifest of format 1 to {FORMAT}" in page(server)


def test_a_part_that_is_gone_is_told_above_the_report(run):
    (run.path / "records" / "step-1.parquet").unlink()
    with serving(run.path) as server:
        text = page(server)
        assert "these are gone from its records: step-1" in text
        assert 'data-step="0"' in text


def test_a_folder_of_runs_is_a_list_in_which_runs_appear(run, tmp_path):
    with serving(tmp_path) as server:
        assert server.address.endswith(f"/{server.token}/")
        text = page(server, "")
        assert re.search(r'<a href="runs/0/">a-run</a></td><td>m</td><td>lens</td><td>1</td>', text)
        assert "compared" not in text
        create_run(tmp_path / "study" / "b-run", {}, made_by="train").write("x", losses(0, 7, model="n"))
        create_run(tmp_path / "0-first", {})
        (tmp_path / "damaged").mkdir()
        (tmp_path / "damaged" / "manifest.json").write_text("no JSON")
        assert state(server, "")["version"] != version_of(text)
        text = page(server, "")
        # Numbers stay, whatever the order of names.
        assert re.search(r'<a href="runs/0/">a-run</a>', text)
        assert re.search(r'<a href="runs/\d/">study/b-run</a></td><td>n</td><td>train</td><td>7</td>', text)
        assert re.search(r'<a href="runs/\d/">0-first</a></td><td></td><td>lens</td><td>–</td>', text)
        assert re.search(r'<a href="runs/\d/">damaged</a></td><td colspan="3">[^<]*must be JSON', text)
        assert '<a href="../../">all runs</a>' in page(server)


def test_runs_are_compared_on_one_page(run, tmp_path):
    other = create_run(tmp_path / "b-run", {})
    other.write("x", losses(0, 1, model="other"))
    with serving(run.path, other.path) as server:
        assert '<a href="all/">' in page(server, "")
        text = page(server, "all/")
        assert "a-run / m" in text
        assert "b-run / other" in text
        other.write("y", losses(2, model="other"))
        assert state(server, "all/")["version"] != version_of(text)
        assert 'data-step="2"' in page(server, "all/")


def test_an_empty_folder_waits_for_a_run_and_none_is_an_error(tmp_path):
    with serving(tmp_path) as server:
        assert "waiting for the first one" in page(server, "")
        create_run(tmp_path, {}).write("x", losses(0, 1))
        assert "Training loss" not in page(server, "")
        assert "Training loss" in page(server)
    with pytest.raises(InputError, match="there is no such folder"):
        LiveServer([tmp_path / "none"], SECTIONS)


def test_names_from_outside_are_text_never_markup(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    run = create_run(tmp_path / f"r{evil}", {"text": evil}, made_by=evil)
    run.write("x", losses(0, 1, model=f"</script>{evil}"))
    shutil.copytree(run.path, tmp_path / "b-run")
    with serving(tmp_path) as server:
        for where in ("", "runs/0/", "runs/1/", "all/"):
            text = page(server, where)
            assert "&lt;img" in text
            assert "<img" not in text
        # A name need not be text at all.
        shutil.copytree(run.path, tmp_path / b"z\xff".decode(errors="surrogateescape"))
        assert "a run&#39;s folder must have a printable name" in page(server, "")
        assert "a run&#39;s folder must have a printable name" in page(server, "runs/2/")
        (run.path / "manifest.json").write_text("{")
        assert "&lt;img" in page(server)
        assert "<img" not in page(server)


def test_a_port_that_is_taken_is_an_error(run):
    with serving(run.path) as server, pytest.raises(InputError, match="the port must be free"):
        LiveServer([run.path], SECTIONS, server.server_port)


def test_a_run_at_a_url_is_followed():
    run = create_run(Remote("memory://live/a-run"), {})
    with serving(Remote("memory://live")) as server:
        assert "a-run" in page(server, "")
        text = page(server)
        assert "nothing measured yet" in text
        run.write("x", losses(0, 1))
        assert state(server)["version"] != version_of(text)
        assert "Training loss" in page(server)
        assert state(server)["seconds"] < 60


def test_the_file_of_a_report_follows_nothing(run, tmp_path):
    text = write_report([run], tmp_path / "report.html", SECTIONS).path.read_text()
    assert "data-version" not in text
    assert "fetch(location" not in text
    assert "nonce=" not in text.split("<script>")[0]
