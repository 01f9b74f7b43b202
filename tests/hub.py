"""A hub on this machine: serves directories as the revisions of a model, as huggingface_hub asks for them."""

import hashlib
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

MODEL = "tiny/model"


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        refs = {name: _commit(name) for name in self.server.revisions}
        if path == f"/api/models/{MODEL}/refs":
            branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": at} for name, at in refs.items()]
            return self.send(json.dumps({"branches": branches, "tags": [], "converts": []}).encode(), body)
        about = re.fullmatch(rf"/api/models/{MODEL}(?:/revision/([^/]+))?", path)
        if about:
            return self.about(about.group(1) or "main", body)
        tree = re.fullmatch(rf"/api/models/{MODEL}/tree/([^/]+)", path)
        if tree and self.folder(tree.group(1)) is not None:
            files = [
                {"type": "file", "path": one["rfilename"], "size": one["size"], "oid": "0" * 40}
                for one in self.files(tree.group(1))
            ]
            return self.send(json.dumps(files).encode(), body)
        if path.startswith(f"/api/models/{MODEL}/tree/"):
            return self.missing("EntryNotFound")
        file = re.fullmatch(rf"/{MODEL}/resolve/([^/]+)/(.+)", path)
        if file:
            return self.file(*file.groups(), body)
        return self.send(b"{}", body) if path == "/" else self.missing()

    def folder(self, revision):
        names = {_commit(name): name for name in self.server.revisions}
        return self.server.revisions.get(names.get(revision, revision))

    def files(self, revision):
        places = sorted(self.folder(revision).iterdir())
        return [{"rfilename": path.name, "size": path.stat().st_size} for path in places]

    def about(self, revision, body):
        folder = self.folder(revision)
        if folder is None:
            return self.missing("RevisionNotFound")
        files = self.files(revision)
        sha = revision if len(revision) == 40 else _commit(revision)
        told = {"id": MODEL, "modelId": MODEL, "sha": sha, "siblings": files, "tags": [], "private": False}
        return self.send(json.dumps(told).encode(), body)

    def file(self, revision, name, body):
        folder = self.folder(revision)
        if folder is None:
            return self.missing("RevisionNotFound")
        if not (folder / name).is_file():
            return self.missing("EntryNotFound")
        data = (folder / name).read_bytes()
        commit = revision if len(revision) == 40 else _commit(revision)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        return self.send(data, body, **headers)

    def send(self, data, body, **headers):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def missing(self, code="RepoNotFound"):
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words):
        """Say nothing."""


def _commit(name):
    return hashlib.sha1(name.encode()).hexdigest()


@contextmanager
def hub_of(revisions):
    """Serve directories, by revision, as the model `MODEL`. Yields the server, which knows what it was asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.revisions, server.asked = dict(revisions), []
    server.address = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def on_hub(address, home, *words):
    """Run a command in a process of its own that knows this hub alone, and keeps its downloads in `home`."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = {**known, "HF_ENDPOINT": address, "HF_HOME": str(home)}
    command = [sys.executable, "-c", "from tangentlens.cli import main; main()", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
