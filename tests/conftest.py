import os

import pytest
import torch
from hypothesis import settings

# Tests run side by side, one to a core; and the same examples every time.
torch.set_num_threads(1)
os.environ["HF_HUB_OFFLINE"] = "1"
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("repeatable")


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
