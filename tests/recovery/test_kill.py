"""Nothing is lost: a process is killed at every fault point, and its successor goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cq_engine import faults
from cq_engine.engine import Engine
from tests.recovery.checks import check_all
from tests.recovery.story import connect_story, finish, tell

FIRST = tuple(faults.POINTS)
LATER = (
    "commit.staged:6",  # the bulk insert, its files written
    "commit.before_catalog:3",  # three commits of apply_changes
    "refresh.before_catalog:6",
    "refresh.after_catalog:6",
    "deliver.begin:13",
    "deliver.before_cursor:14",  # the first part of a large commit, taken by the callback
    "deliver.after_cursor:12",
    "publish.file:4",
    "publish.committed:17",
    "compact.after_catalog:3",
)
"""The n-th time, where the process stands at another kind of work."""


def check_successor(connect: Callable[..., Engine], warehouse: Path, calls: Path, look_at: int) -> None:
    engine = connect(scheduler=False)
    connect_story(engine, calls)
    tell(engine)
    finish(engine)
    check_all(engine, warehouse, calls, look_at=look_at)


@pytest.mark.parametrize("fault", [*FIRST, *LATER])
def test_killed_at_a_fault_point(
    fault: str, worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls.jsonl"
    died = worker(warehouse, calls, fault)
    assert died.returncode == -signal.SIGKILL, f"{fault} was not reached: {died.stderr[-2000:]}"
    check_successor(connect, warehouse, calls, look_at=sum(map(ord, fault)))
