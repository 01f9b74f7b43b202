import os
import signal
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

from runtime_types import check_anew

# Tests run side by side, one to a core; and the same examples every time.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start
os.environ["HF_HUB_OFFLINE"] = "1"
# Some virtual machines announce AMX and do not have it: a product in bf16 then ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# A shell that starts the tests in the background has Ctrl-C ignored, also by the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("repeatable")
# A program that needs a package which only `make mutants` installs.
collect_ignore = ["mutants.py"]

# Files that take longest are begun first, so that none is left alone at the end.
LONGEST = (
    "studies/test_study.py",
    "test_cli.py",
    "report/test_page.py",
    "test_tutorials.py",
    "studies/sweep",
    "integrations",
    "capture/test_device.py",
    "test_site.py",
    "test_package.py",
    "test_docs.py",
    "studies",
    "report",
    "test_supply_chain.py",
    "test_extending.py",
)
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    def place(item):
        return next((i for i, name in enumerate(LONGEST) if item.path.is_relative_to(HERE / name)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture
def unchecked():
    """For tests that give what the types forbid, to see what a user is told."""
    jaxtyping.config.update("jaxtyping_disable", True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before any fixture."""
    check_anew()


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
