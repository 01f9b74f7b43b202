"""A server of live pages, in a thread of the test."""

import threading
from contextlib import contextmanager

from tangentlens.report.live import LiveServer
from tangentlens.report.sections.shares import SHARES
from tangentlens.report.sections.training import TRAINING

# Few of them, so that a page is made fast.
SECTIONS = (SHARES, TRAINING)


@contextmanager
def serving(*places, sections=SECTIONS):
    server = LiveServer(places, sections)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
