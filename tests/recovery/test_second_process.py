"""One process has the duties: a second one is told who has them, commits and reads besides, and follows a dead one at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cq_engine
from cq_engine.api.engine import Engine
from tests.recovery.conftest import LONG, ROOT, environment

HOLDER = """
import sys
import cq_engine
engine = cq_engine.connect(sys.argv[1], scheduler=False, duties=True)
engine.execute("CREATE TABLE t (id INT PRIMARY KEY)")
with engine.transaction() as tx:
    tx.insert("t", [{"id": 1}])
print("open", flush=True)
sys.stdin.readline()
"""
"""Small transactions need no Spark, so this process starts none."""


@pytest.fixture
def holder(warehouse: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the warehouse, with one table of one row."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(warehouse)],
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "open\n":
        pytest.fail(process.communicate(timeout=LONG)[1])
    yield process
    process.kill()
    process.communicate(timeout=LONG)


def test_it_is_told_who_holds_the_warehouse(
    holder: subprocess.Popen[str], connect: Callable[..., Engine]
) -> None:
    with pytest.raises(cq_engine.LeaseError) as refused:
        connect(scheduler=False, duties=True)
    assert f"in use by process {holder.pid} on " in refused.value.message
    assert "duties=False" in refused.value.hint
    beside = connect(scheduler=False)
    with beside.transaction() as tx:
        tx.insert("t", [{"id": 2}])
    beside.execute("DELETE FROM t WHERE id = 2")
    reader = connect(read_only=True)
    assert reader.execute("SELECT id FROM t").fetchall() == [(1,)]
    with pytest.raises(cq_engine.TransactionError, match="reading only"), reader.transaction():
        pass
    with pytest.raises(cq_engine.CQError, match="reading only"):
        reader.execute("CREATE TABLE u (id INT)")


def test_a_killed_holder_is_followed_at_once(
    holder: subprocess.Popen[str], connect: Callable[..., Engine]
) -> None:
    reader = connect(read_only=True)
    holder.kill()
    holder.wait(timeout=LONG)
    started = time.monotonic()
    engine = connect(scheduler=False, duties=True)
    assert time.monotonic() - started < 5, "it waited for the lease to time out"
    with engine.transaction() as tx:
        tx.insert("t", [{"id": 2}])
    assert reader.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,)]
