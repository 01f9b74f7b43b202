import os
import signal
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

# Tests run side by side, one to a core; and the same examples every time.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start
os.environ["HF_HUB_OFFLINE"] = "1"
# A shell that starts the tests in the background has Ctrl-C ignored, also by the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("repeatable")


# Tests of whole programs. Their parts are called with types checked in tests of their own, and so is the whole demo.
WHOLE = (
    "integrations",
    "lens/test_loops.py",
    "on_simulated_device.py",
    "report/test_live.py",
    "report/test_live_in_browser.py",
    "report/test_concepts.py",
    "report/test_page.py",
    "report/test_page_in_browser.py",
    "report/test_scale.py",
    "studies/sweep",
    "studies/test_audit.py",
    "studies/test_massive.py",
    "studies/test_presets.py",
    "studies/test_profile.py",
    "studies/test_study.py",
    "studies/test_tangent.py",
    "test_bad_input.py",
    "test_cli.py",
    "test_docs.py",
    "test_notebook.py",
)
HERE = Path(__file__).parent
# A program that needs a package which only `make mutants` installs.
collect_ignore = ["mutants.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before any fixture: whether types are checked in this test."""
    whole = any(item.path.is_relative_to(HERE / place) for place in WHOLE)
    jaxtyping.config.update("jaxtyping_disable", whole)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory):
    """The run of the plain loop, with which other loops are compared."""
    # Types are checked from here on only.
    from loops import plain

    path = tmp_path_factory.mktemp("plain") / "run"
    plain(path)
    return path


@pytest.fixture(scope="session")
def bucket():
    """The URL of a bucket on an S3 server of this machine."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    from object_store import s3_server

    with s3_server() as url:
        yield url
