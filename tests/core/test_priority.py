"""Work in the background that leaves the cores to others."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from cq_engine.core.calls import call, current
from cq_engine.core.priority import yielding


def _nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_the_work_has_low_priority_and_nobody_else() -> None:
    before = _nice()
    assert yielding(_nice) == min(19, max(before, 10))
    assert _nice() == before


def test_it_is_part_of_the_call_and_gives_what_the_work_gives() -> None:
    with call() as mine:
        assert yielding(current) is mine


def test_what_fails_there_fails_here() -> None:
    def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        yielding(work)
