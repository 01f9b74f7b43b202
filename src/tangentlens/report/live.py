"""A server for this machine alone, whose pages follow runs while they train.

It listens on the loopback address and answers only to whoever knows the token in its address. A request names a run
by its number in the server's own list and nothing else, so that no request leads out of the runs.
"""

from __future__ import annotations

import json
import secrets
import socketserver
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tangentlens.errors import InputError
from tangentlens.report.contents import Section
from tangentlens.report.gallery import Gallery
from tangentlens.report.page import plotly_js
from tangentlens.report.views import View
from tangentlens.runs.files import Place

LOOPBACK = "127.0.0.1"
_HTML, _JSON, _SCRIPT = "text/html; charset=utf-8", "application/json", "text/javascript; charset=utf-8"


class LiveServer(ThreadingHTTPServer):
    """The server of some runs, each request in a thread of its own. `serve_forever` serves, `shutdown` ends that.

    Args:
        places: Runs, and folders of runs, in which more may appear.
        sections: What a report may say.
        port: The port; 0 for any that is free.

    Attributes:
        gallery: The runs and their pages.
        token: What every address begins with.
    """

    daemon_threads = True

    def __init__(self, places: Sequence[Place], sections: Iterable[Section], port: int = 0) -> None:
        self.token, self.nonce = secrets.token_urlsafe(24), secrets.token_urlsafe(16)
        self.gallery = Gallery(places, sections, self.nonce)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise InputError(
                f"the port must be free, but {port} is not ({error.strerror}); choose another, or 0 for any"
            ) from error

    def server_bind(self) -> None:
        """Bind to the address, without asking for the name of this machine, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, int(self.server_address[1])

    @property
    def address(self) -> str:
        """The address of the first page: that of the run if there is one, else a list of runs."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/{'runs/0/' if self.gallery.is_one_run else ''}"

    @property
    def hosts(self) -> tuple[str, str]:
        """The names under which a browser may ask. Under any other, a page from elsewhere asks in disguise."""
        return f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}"

    def answer(self, path: str) -> tuple[str, str] | None:
        """Return the type and the text at a path; None if there is nothing."""
        token, *words = path.removeprefix("/").split("/")
        if not secrets.compare_digest(token.encode(), self.token.encode()) or not words:
            return None
        *where, what = words
        if (where, what) == ([], "plotly.js"):
            return _SCRIPT, plotly_js()
        view = self._view(where)
        if view is None or what not in ("", "version"):
            return None
        return (_HTML, view.page()) if what == "" else (_JSON, json.dumps(asdict(view.state())))

    def _view(self, where: Sequence[str]) -> View | None:
        match where:
            case []:
                return self.gallery.list
            case ["all"]:
                return self.gallery.comparison
            # A number is digits of ASCII, and short: `int` would read more than that.
            case ["runs", number] if number.isascii() and number.isdigit() and len(number) < 8:
                return self.gallery.view(int(number))
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore viewers that leave in the middle of an answer; tell of anything else, and go on."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: LiveServer
    server_version, sys_version = "tangentlens", ""
    # A connection on which nothing comes is closed.
    timeout = 30

    def do_GET(self) -> None:
        """Send what is asked for."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Send what is asked for, without its body."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        found = self.server.answer(self.path.partition("?")[0])
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, text = found
        data = text.encode(errors="replace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def end_headers(self) -> None:
        """Add what every answer has: it is not kept, not guessed at, and its page asks nobody but this server."""
        policy = (
            f"default-src 'none'; script-src 'nonce-{self.server.nonce}'; style-src 'unsafe-inline'; "
            "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: every viewer asks every other second."""
