"""Nothing is lost: a process is killed at every fault point, and its successor goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cq_engine.api.engine import Engine
from cq_engine.core import faults
from tests.recovery.checks import check_all
from tests.recovery.story import connect_story, finish, tell

FIRST = {
    work: tuple(point for point in faults.POINTS if point.startswith(f"{work}."))
    for work in dict.fromkeys(point.partition(".")[0] for point in faults.POINTS)
    if work not in ("vacuum", "cache", "archive")
}
"""All fault points by the work that they interrupt, that this story comes to. Those of vacuum are in test_upkeep.py,
since this story is checked from its beginning on; those of caches in tests/faults."""
TAKEN = "deliver.before_cursor:15"
"""The callback has taken the second part of a large commit, and nobody knows."""
LATER = (
    "commit.staged:6",  # the bulk insert, its files written
    "commit.before_catalog:3",  # three commits of apply_changes
    "catalog.after_commit:9",  # not while the warehouse is opened
    "refresh.before_catalog:6",  # several commits, one of them large
    TAKEN,
    "deliver.after_cursor:13",  # the cursor stands in the middle of a commit
    "deliver.before_cursor:18",  # a table takes a large commit in files
    "publish.file:4",  # copies of insert-only files
    "compact.staged:3",  # only the touched files
    "compact.after_catalog:3",
    "create.computed:3",  # a query over another one
    "create.after_catalog:2",
)
"""The n-th time, where the process stands at another kind of work."""


def check_successor(connect: Callable[..., Engine], warehouse: Path, calls: Path, look_at: int) -> int:
    engine = connect(scheduler=False)
    connect_story(engine, calls)
    tell(engine)
    finish(engine)
    return check_all(engine, warehouse, calls, look_at=look_at)


def kill(worker: Any, warehouse: Path, calls: Path, fault: str) -> None:
    died = worker(warehouse, calls, fault)
    assert died.returncode == -signal.SIGKILL, f"{fault} was not reached: {died.stderr[-2000:]}"


@pytest.mark.parametrize("work", FIRST)
def test_killed_at_every_fault_point(
    work: str, worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    """Each successor dies, too, at the next point; the last one goes on to the end.

    What they recover and repeat counts no more than the rest.
    """
    calls = tmp_path / "calls.jsonl"
    for fault in FIRST[work]:
        kill(worker, warehouse, calls, fault)
    repeated = check_successor(connect, warehouse, calls, look_at=sum(map(ord, work)))
    assert repeated <= (1 if work == "deliver" else 0), (
        "only a batch whose cursor was not durable comes again"
    )


@pytest.mark.parametrize("fault", LATER)
def test_killed_later(
    fault: str, worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls.jsonl"
    kill(worker, warehouse, calls, fault)
    repeated = check_successor(connect, warehouse, calls, look_at=sum(map(ord, fault)))
    assert repeated == (1 if fault == TAKEN else 0), "only a batch whose cursor was not durable comes again"


def test_a_process_with_its_own_spark(
    worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    """As in real life: Spark dies with the process."""
    calls = tmp_path / "calls.jsonl"
    died = worker(warehouse, calls, "refresh.before_catalog:3", own_spark=True)
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    check_successor(connect, warehouse, calls, look_at=0)
