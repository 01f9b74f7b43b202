import pytest

from tangentlens.models import memory
from tangentlens.models.memory import free_memory


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8 GiB available, whose container has no limit."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{2**30}\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    return tmp_path


def test_it_is_what_the_system_calls_available(machine):
    assert free_memory() == 8 * 2**30


def test_a_containers_limit_counts(machine):
    (machine / "memory.max").write_text(f"{4 * 2**30}\n")
    assert free_memory() == 3 * 2**30
    (machine / "memory.current").write_text(f"{5 * 2**30}\n")
    assert free_memory() == 0


def test_without_that_file_it_is_the_memory_of_the_machine(machine):
    (machine / "meminfo").unlink()
    assert free_memory() > 2**28


def test_nothing_is_said_where_nothing_can_be_known(machine, monkeypatch):
    (machine / "meminfo").write_text("no such fields\n")

    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr(memory.os, "sysconf", unknown)
    assert free_memory() is None
