"""CREATE CONTINUOUS QUERY computes what it starts from while others commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cq_engine.api.engine import Engine
from cq_engine.core.errors import ResultKeyError
from cq_engine.definition import start as creation
from cq_engine.lifecycle import create as lifecycle
from tests.limits import limit
from tests.maintenance.oracle import check_law

LONG = 120
"""Seconds that nothing here should take."""
TOTALS = "SELECT g, sum(x) AS s, count(*) AS n FROM t t GROUP BY g"


@pytest.fixture(autouse=True)
def _table(engine: Engine) -> None:
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY, g INT, x INT)")


@pytest.fixture
def halted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a statement in a thread of its own and holds it between computing and installing a query."""

    @contextmanager
    def statement(engine: Engine, text: str) -> Iterator[Any]:
        computed, go = threading.Event(), threading.Event()

        def prepare(*args: Any, **keywords: Any) -> Any:
            start = creation.prepare_start(*args, **keywords)
            computed.set()
            assert go.wait(LONG)
            return start

        monkeypatch.setattr(lifecycle, "prepare_start", prepare)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(engine.execute, text)
            try:
                assert computed.wait(LONG)
                yield running
            finally:
                go.set()
            running.result(LONG)

    return statement


def in_thread(call: Callable[[], Any]) -> Any:
    """In another thread, so that a lock that is held makes the test fail and not stand still."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(LONG)
    assert found, "it waits for the creation of the query"
    return found[0]


@pytest.mark.parametrize("start", ["NOW", "SNAPSHOT"])
def test_commits_go_on_while_a_query_is_created(engine: Engine, halted: Any, start: str) -> None:
    engine.execute("INSERT INTO t VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30)")
    create = f"CREATE CONTINUOUS QUERY totals START FROM {start} AS {TOTALS}"
    with halted(engine, create) as running:
        for text in (
            "UPDATE t SET x = x + 1 WHERE k = 1",
            "DELETE FROM t WHERE k = 3",
            "INSERT INTO t VALUES (4, 3, 5)",
        ):
            in_thread(lambda text=text: engine.execute(text))
        assert engine.catalog.newest_version == 4
        assert not running.done()
        assert "totals" not in engine.catalog.state.queries
    assert engine.describe("totals").position == 1
    engine.drain(LONG)
    assert engine.describe("totals").position == 4
    deltas = list(engine.deltas("totals"))
    assert [d.commit_version for d in deltas] == ([1, 1] if start == "SNAPSHOT" else []) + [2, 3, 4]
    check_law(engine, "totals", TOTALS, 1)


def test_commits_go_on_while_a_query_is_replaced(engine: Engine, halted: Any) -> None:
    engine.execute("INSERT INTO t VALUES (1, 1, 10), (2, 2, 20)")
    engine.execute(f"CREATE CONTINUOUS QUERY totals AS {TOTALS}")
    other = TOTALS.replace("sum(x)", "max(x)")
    with halted(engine, f"CREATE OR REPLACE CONTINUOUS QUERY totals START FROM NOW AS {other}"):
        in_thread(lambda: engine.execute("UPDATE t SET x = 99 WHERE k = 2"))
        in_thread(lambda: engine.execute("INSERT INTO t VALUES (3, 2, 100)"))
    engine.drain(LONG)
    assert check_law(engine, "totals", other, 1) == 2


def test_definitions_wait(engine: Engine, halted: Any) -> None:
    """A table cannot be dropped from under a query that is being created; it is refused afterwards."""
    engine.execute("INSERT INTO t VALUES (1, 1, 10)")
    with ThreadPoolExecutor(1) as pool, halted(engine, f"CREATE CONTINUOUS QUERY totals AS {TOTALS}"):
        dropping = pool.submit(engine.execute, "ALTER TABLE t ADD COLUMNS (y INT)")
        in_thread(lambda: engine.execute("INSERT INTO t VALUES (2, 1, 1)"))
        assert not dropping.done()
    dropping.result(LONG)
    assert [c.name for c in engine.catalog.state.tables["t"].columns] == ["k", "g", "x", "y"]
    assert "totals" in engine.catalog.state.queries
    engine.drain(LONG)
    check_law(engine, "totals", TOTALS, 1)


def test_a_creation_that_fails_leaves_no_files(engine: Engine) -> None:
    """The state of the aggregate is in files when the declared key turns out not to be unique."""
    engine.execute("INSERT INTO t SELECT id, id % 7, 1 FROM range(20)")
    limit(engine, start_rows=3)
    with pytest.raises(ResultKeyError):
        engine.execute(
            "CREATE CONTINUOUS QUERY bad PRIMARY KEY (n) AS SELECT n, s FROM"
            " (SELECT g, count(*) AS n, sum(x) AS s FROM t t GROUP BY g)"
        )
    root = Path(engine.catalog.warehouse)
    assert not [path for path in root.rglob("*.parquet") if "create-" in str(path)]
    assert "bad" not in engine.catalog.state.queries
