"""Merging beside commits, refreshes and definitions; threads meet at events, not by waiting a while."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.api.engine import Engine
from cq_engine.core.errors import CatalogError
from cq_engine.core.limits import Limits
from cq_engine.maintenance import compaction, maintenance
from cq_engine.maintenance import copy_on_write as merging
from tests.limits import limit
from tests.maintenance.oracle import check_law, image

LONG = 120
"""Seconds that nothing here should take."""
TOTALS = "SELECT g, sum(x) AS s, count(*) AS n FROM t t GROUP BY g"


@pytest.fixture
def limits() -> Limits:
    return Limits(small_rows=-1, snapshot_file_rows=16)


def fill(engine: Engine) -> None:
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY, g INT, x INT)")
    engine.execute("INSERT INTO t SELECT id, id % 5, 1 FROM range(64)")
    engine.execute(f"CREATE CONTINUOUS QUERY totals AS {TOTALS}")


@pytest.fixture
def halted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Merges the table `t` in a thread of its own, and holds that where the files are written and nobody knows."""

    @contextmanager
    def merge(engine: Engine, call: Callable[[], Any]) -> Iterator[Any]:
        written, go = threading.Event(), threading.Event()

        def write(*args: Any) -> Any:
            files = merging.write_merge(*args)
            written.set()
            assert go.wait(LONG)
            return files

        monkeypatch.setattr(compaction, "write_merge", write)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(call)
            try:
                assert written.wait(LONG)
                yield running
            finally:
                go.set()

    return merge


def test_commits_and_refreshes_go_on_while_changes_are_merged(engine: Engine, halted: Any) -> None:
    fill(engine)
    table = engine.catalog.state.tables["t"].storage
    engine.execute("UPDATE t SET x = 7 WHERE k < 20")
    merged_at = engine.catalog.newest_version
    with ThreadPoolExecutor(1) as pool, halted(engine, lambda: engine.compactor.merge(table)) as merging_now:

        def work() -> None:
            engine.execute("DELETE FROM t WHERE k = 3")
            engine.refresh("totals")
            engine.execute("INSERT INTO t VALUES (3, 0, 100)")
            engine.execute("UPDATE t SET g = 9 WHERE k = 5")
            engine.refresh("totals")

        pool.submit(work).result(LONG)
        images = {v: image(engine, TOTALS, v) for v in range(1, merged_at + 4)}
        assert not merging_now.done()
    assert merging_now.result() is True
    assert engine.catalog.layout(table.id, engine.catalog.newest_version).base == merged_at
    assert {v: image(engine, TOTALS, v) for v in images} == images
    engine.execute("UPDATE t SET x = 0 WHERE k IN (3, 5)")
    engine.refresh("totals")
    check_law(engine, "totals", TOTALS, 1)


def test_a_table_that_is_dropped_while_it_is_merged(engine: Engine, halted: Any) -> None:
    fill(engine)
    table = engine.catalog.state.tables["t"].storage
    engine.execute("DELETE FROM t WHERE k = 0")
    with halted(engine, lambda: engine.compactor.merge(table)) as running:
        engine.execute("DROP TABLE t CASCADE")
    with pytest.raises(CatalogError, match="dropped"):
        running.result()
    assert not [p for p in Path(engine.catalog.warehouse).rglob("*.parquet") if "compact-" in str(p)]
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY)")
    assert engine.maintain() == []


def test_two_merges_of_one_table_follow_each_other(engine: Engine, halted: Any) -> None:
    fill(engine)
    table = engine.catalog.state.tables["t"].storage
    engine.execute("DELETE FROM t WHERE k = 50")
    with ThreadPoolExecutor(1) as pool:
        with halted(engine, lambda: engine.compactor.merge(table)):
            engine.execute("DELETE FROM t WHERE k > 40")
            second = pool.submit(engine.compactor.merge, table)
            assert not second.done()
        assert second.result(LONG) is True
    newest = engine.catalog.newest_version
    assert engine.catalog.layout(table.id, newest).base == newest
    assert image(engine, "SELECT count(*) FROM t t", newest) == {(41,): 1}


def test_a_merge_that_fails_is_tried_again_later(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an error to anybody; here in this thread."""
    monkeypatch.setattr(maintenance.Maintenance, "start", lambda self: None)
    limit(engine, compact_rows=4)
    fill(engine)
    tries = []

    def fails(*args: Any) -> Any:
        tries.append(args)
        raise OSError("no space")

    monkeypatch.setattr(compaction, "write_merge", fails)
    engine.execute("UPDATE t SET x = 2 WHERE k < 10")
    engine.refresh("totals")
    assert engine.maintain() == []
    assert len(tries) >= 1
    before = len(tries)
    engine.execute("UPDATE t SET x = 3 WHERE k < 2")
    engine.refresh("totals")
    assert engine.maintain() == []
    assert len(tries) == before, "not before there is twice as much"
    assert not [p for p in Path(engine.catalog.warehouse).rglob("*.parquet") if "compact-" in str(p)]
    monkeypatch.undo()
    check_law(engine, "totals", TOTALS, 1)


@pytest.mark.parametrize("scheduler", [True, False])
def test_a_thread_does_it(
    scheduler: bool,
    spark: SparkSession,
    warehouse: Path,
    limits: Limits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a scheduler and without one, nobody who commits or refreshes waits for it."""
    limits = replace(limits, compact_rows=4)
    done = threading.Event()
    threads = set()
    plain = compaction.Compactor.merge

    def merge(self: Any, table: Any, version: int | None = None, **more: Any) -> bool:
        threads.add(threading.current_thread().name)
        try:
            return plain(self, table, version, **more)
        finally:
            if table.name == "t":
                done.set()

    def write(*args: Any) -> Any:
        writers.add(threading.current_thread().name)
        return plain_write(*args)

    writers, plain_write = set(), compaction.write_merge
    monkeypatch.setattr(compaction, "write_merge", write)
    monkeypatch.setattr(compaction.Compactor, "merge", merge)
    with cq_engine.connect(warehouse, spark=spark, scheduler=scheduler, limits=limits) as engine:
        fill(engine)
        engine.refresh("totals")
        assert done.wait(LONG)
        done.clear()
        engine.execute("UPDATE t SET x = 2 WHERE k < 30")
        engine.drain(LONG)
        assert done.wait(LONG)
        table = engine.catalog.state.tables["t"].storage
        assert engine.catalog.layout(table.id, engine.catalog.newest_version).base == 2
        check_law(engine, "totals", TOTALS, 1)
    assert threads == {"cq-maintenance"}
    assert writers == {"cq-yielding" if sys.platform == "linux" else "cq-maintenance"}


def test_a_merge_lets_refreshes_go_first(
    spark: SparkSession, warehouse: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(limits, compact_rows=4, merge_wait_seconds=LONG)
    order: list[str] = []
    asked, done = threading.Event(), threading.Event()
    plain_merge, plain_due = compaction.Compactor.merge, compaction.Compactor.is_due

    def merge(self: Any, *args: Any, **more: Any) -> bool:
        order.append("merge")
        done.set()
        return plain_merge(self, *args, **more)

    def is_due(self: Any, *args: Any) -> bool:
        found = plain_due(self, *args)
        if found and threading.current_thread().name == "cq-maintenance":
            asked.set()
        return found

    with cq_engine.connect(warehouse, spark=spark, scheduler=False, limits=limits) as engine:
        fill(engine)
        monkeypatch.setattr(compaction.Compactor, "merge", merge)
        monkeypatch.setattr(compaction.Compactor, "is_due", is_due)
        with engine.services.foreground.busy():
            engine.refresh("totals")
            assert asked.wait(LONG)
            engine.execute("UPDATE t SET x = 2 WHERE k < 30")
            engine.refresh("totals")
            order.append("refresh")
        assert done.wait(LONG)
        assert order[:2] == ["refresh", "merge"]


def test_nothing_is_merged_unasked_for(spark: SparkSession, warehouse: Path, limits: Limits) -> None:
    limits = replace(limits, compact_rows=4)
    others = set(threading.enumerate())

    def works() -> bool:
        return "cq-maintenance" in {thread.name for thread in set(threading.enumerate()) - others}

    with cq_engine.connect(warehouse, spark=spark, conf={"maintenance": "manual"}, limits=limits) as engine:
        fill(engine)
        engine.execute("UPDATE t SET x = 2 WHERE k < 30")
        engine.drain(LONG)
        assert not works()
        assert "t" in engine.maintain()
        assert engine.maintain() == []
        engine.execute("UPDATE t SET x = 3 WHERE k < 30")
        engine.execute("SET maintenance = 'background'")
        engine.refresh("totals")
        assert works()
        check_law(engine, "totals", TOTALS, 1)
