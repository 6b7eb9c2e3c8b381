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

WORKS = (("open", "catalog", "create", "commit", "file"), ("refresh", "deliver", "publish", "compact"))
"""The works whose fault points this story comes to, by warehouse. Those of vacuum are in test_upkeep.py, since this story
is checked from its beginning on; those of caches in tests/faults."""
TAKEN = "deliver.before_cursor:15"
"""The callback has taken the second part of a large commit, and nobody knows."""
LATER = ("refresh.before_catalog:6",)
"""Several commits, one of them large."""
LATER_STILL = (
    TAKEN,
    "commit.staged:6",  # the bulk insert, its files written
    "compact.staged:3",  # only the touched files
    "commit.before_catalog:3",  # three commits of apply_changes
    "catalog.after_commit:9",  # not while the warehouse is opened
    "deliver.after_cursor:13",  # the cursor stands in the middle of a commit
    "deliver.before_cursor:18",  # a table takes a large commit in files
    "publish.file:4",  # copies of insert-only files
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


def test_no_work_is_forgotten() -> None:
    elsewhere = {"vacuum", "cache", "archive", "sweep", "mesh"}
    assert {point.partition(".")[0] for point in faults.POINTS} - elsewhere == {
        w for some in WORKS for w in some
    }


@pytest.mark.parametrize("works", [pytest.param(WORKS[0], marks=pytest.mark.long), WORKS[1]], ids="_".join)
def test_killed_at_every_fault_point(
    works: tuple[str, ...], worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    """Each successor dies, too, at the next point; the last one goes on to the end.

    What they recover and repeat counts no more than the rest.
    """
    calls = tmp_path / "calls.jsonl"
    for work in works:
        for fault in (point for point in faults.POINTS if point.startswith(f"{work}.")):
            kill(worker, warehouse, calls, fault)
    repeated = check_successor(connect, warehouse, calls, look_at=len(works[0]))
    assert repeated <= (1 if "deliver" in works else 0), (
        "only a batch whose cursor was not durable comes again"
    )


@pytest.mark.parametrize(
    "fault", [*LATER, *(pytest.param(each, marks=pytest.mark.long) for each in LATER_STILL)]
)
def test_killed_later(
    fault: str, worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls.jsonl"
    kill(worker, warehouse, calls, fault)
    repeated = check_successor(connect, warehouse, calls, look_at=sum(map(ord, fault)))
    assert repeated == (1 if fault == TAKEN else 0), "only a batch whose cursor was not durable comes again"


@pytest.mark.long
def test_a_process_with_its_own_spark(
    worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    """As in real life: Spark dies with the process."""
    calls = tmp_path / "calls.jsonl"
    died = worker(warehouse, calls, "refresh.before_catalog:3", own_spark=True)
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    check_successor(connect, warehouse, calls, look_at=0)
