import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tangentlens import InputError
from tangentlens.corpora.download import download

ZIP = bytes(range(256)) * 3_000
FACTS = {"size": len(ZIP), "sha256": hashlib.sha256(ZIP).hexdigest()}


class Home(BaseHTTPRequestHandler):
    """Serves the file whole, cut off in the middle, or one that is too long or another."""

    def do_GET(self):
        bodies = {"/whole": ZIP, "/cut": ZIP[: len(ZIP) // 2], "/other": ZIP[::-1], "/endless": ZIP * 9}
        self.server.asked.append(self.path)
        if self.path not in bodies:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(ZIP) if self.path == "/cut" else len(bodies[self.path])))
        self.end_headers()
        # A client that has enough hangs up.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(bodies[self.path])

    def log_message(self, *_):
        pass


@pytest.fixture
def home():
    server = HTTPServer(("127.0.0.1", 0), Home)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(server, path):
    return f"http://127.0.0.1:{server.server_port}/{path}"


def test_the_file_comes_whole_and_the_progress_is_told(home, tmp_path):
    path, told = tmp_path / "data" / "enwik8.zip", []
    download(path, address(home, "whole"), **FACTS, watch=told.append)
    assert path.read_bytes() == ZIP
    done = [progress.done for progress in told]
    assert done == sorted(done)
    assert len(done) > 1
    assert told[-1][:4] == ("enwik8.zip", len(ZIP), len(ZIP), "")
    assert [file.name for file in path.parent.iterdir()] == ["enwik8.zip"]


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ("cut", f"must give 768,000 bytes.*but gave 384,000 with {hashlib.sha256(ZIP[:384_000]).hexdigest()}"),
        ("other", f"but gave 768,000 with {hashlib.sha256(ZIP[::-1]).hexdigest()}; nothing was written"),
        ("endless", "but gave 7.* with"),
        ("none", "failed after 0 .*404"),
    ],
)
def test_what_is_not_the_file_is_refused_and_leaves_nothing(served, says, home, tmp_path):
    with pytest.raises(InputError, match=says):
        download(tmp_path / "enwik8.zip", address(home, served), **FACTS)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_is_killed_leaves_no_file(home, tmp_path):
    def kill(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(tmp_path / "enwik8.zip", address(home, "whole"), **FACTS, watch=kill)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_error_says_so(home, tmp_path):
    gone = address(home, "whole")
    home.shutdown()
    home.server_close()
    with pytest.raises(InputError, match=r"failed after 0 \(.*refused.*\); check the network"):
        download(tmp_path / "enwik8.zip", gone, **FACTS)
    with pytest.raises(InputError, match="url must begin with http"):
        download(tmp_path / "enwik8.zip", "file:///etc/hosts", **FACTS)


def test_what_is_there_is_kept(home, tmp_path):
    path = tmp_path / "enwik8.zip"
    path.write_bytes(ZIP)
    download(path, address(home, "whole"), **FACTS)
    assert home.asked == []
    path.write_bytes(b"my own file")
    with pytest.raises(InputError, match="must be free for the download, but is a file with the SHA-256"):
        download(path, address(home, "whole"), **FACTS)
    assert path.read_bytes() == b"my own file"
    with pytest.raises(InputError, match="must be a file, but: Is a directory"):
        download(tmp_path, address(home, "whole"), **FACTS)
