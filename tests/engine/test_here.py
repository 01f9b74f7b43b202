"""Tasks in this process: one that fails is named and keeps no other from being done; a full disk ends all."""

import pytest

from tangentlens.engine import Here, Task
from tangentlens.errors import InputError, StorageError


def raises(error):
    def work():
        raise error

    return work


def outcomes(tasks):
    ended = {}
    Here().run(tasks, lambda task, failure: ended.update({task.key: failure}))
    return ended


def test_a_failure_is_named_and_others_are_done():
    done = []
    ended = outcomes(
        [
            Task("first", raises(InputError("weights must\nbe finite"))),
            Task("second", raises(KeyError("layer"))),
            Task("third", lambda: done.append("third")),
        ]
    )
    assert done == ["third"]
    assert ended["first"] == "weights must be finite"
    assert ended["second"].startswith("KeyError: 'layer' (test_here.py, line ")
    assert ended["third"] == ""


def test_a_full_disk_ends_everything():
    done = []
    with pytest.raises(StorageError, match="no space"):
        outcomes([Task("first", raises(StorageError("no space"))), Task("second", lambda: done.append("second"))])
    assert not done


def test_an_interrupt_is_no_failure():
    with pytest.raises(KeyboardInterrupt):
        outcomes([Task("first", raises(KeyboardInterrupt()))])
