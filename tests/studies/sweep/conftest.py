import pytest

from checkpoints import sweep_plan, train_with_lens
from tangentlens.studies.sweep import run_sweep


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Checkpoints of a training, at each of which a lens has measured."""
    folder = tmp_path_factory.mktemp("trained")
    return train_with_lens(folder / "model", folder / "lens")


@pytest.fixture(scope="session")
def swept(trained):
    """The sweep over them, which nothing has disturbed."""
    return run_sweep(sweep_plan(trained), trained.parent / "sweep")
