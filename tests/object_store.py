"""A real S3 server on this machine, moto's, for tests of runs at URLs."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import pytest

BUCKET = "tangentlens-tests"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def environment(port):
    """What tells s3fs, in this process and in others, where the server is; and that nothing is tried for long."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def s3_server():
    """Yield the URL of an empty bucket, which this process and those that it starts can reach."""
    import s3fs

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(port).items():
                patch.setenv(name, value)
            _await(server, port)
            s3fs.S3FileSystem().mkdir(BUCKET)
            yield f"s3://{BUCKET}"
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.terminate()
        server.wait(timeout=30)


def _await(server, port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"moto's server did not start on port {port}, pid {os.getpid()}")
