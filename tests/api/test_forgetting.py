"""Nothing of a query that is gone stays in the memory of a process: everything that an engine can reach is looked at."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.catalog.apply import drop_query
from cq_engine.catalog.differences import tables_of
from cq_engine.core.errors import CatalogError
from cq_engine.core.limits import Limits
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.refresh.mesh import QueryMesh
from tests.waiting import until

FIRST = 7_000_000
"""The numbers of queries and tables, so that they are no others'."""
LIMITS = Limits(small_rows=-1, row_group_rows=20, snapshot_file_rows=100)
JOIN = "SELECT s.id, r.note FROM s JOIN r ON s.k = r.k"
CONTAINERS = (dict, list, tuple, set, frozenset, deque)


@pytest.fixture
def engine(warehouse: Path, spark: SparkSession) -> Iterator[Engine]:
    with cq_engine.connect(
        warehouse, spark=spark, scheduler=False, conf={"maintenance": "manual"}, limits=LIMITS
    ) as opened:
        with opened.catalog.write() as unit:
            unit.set_state(replace(opened.catalog.state, next_id=FIRST))
        opened.execute("CREATE TABLE s (id INT PRIMARY KEY, k BIGINT)")
        opened.execute("CREATE TABLE r (k BIGINT PRIMARY KEY, note STRING)")
        opened.execute("INSERT INTO r SELECT id, concat('n', id % 7) FROM range(300)")
        opened.compact("r")
        yield opened


def reached(engine: Engine) -> Iterator[tuple[str, Any]]:
    """What hangs on an engine, by its path; the catalog itself is left out, which has its history."""
    seen = {id(engine.catalog), id(engine._spark_session)}
    todo: deque[tuple[str, Any]] = deque([("engine", engine)])
    while todo:
        path, found = todo.popleft()
        if id(found) in seen or isinstance(found, (type, str, bytes, int, float)):
            continue
        seen.add(id(found))
        yield path, found
        if isinstance(found, Mapping):
            todo += ((f"{path}[{key!r}]", value) for key, value in list(found.items()))
        elif isinstance(found, CONTAINERS):
            todo += ((f"{path}[]", value) for value in list(found))
        elif isinstance(found, functools.partial):
            todo += ((f"{path}()", value) for value in (found.func, *found.args))
        elif hasattr(found, "__self__"):
            todo.append((path, found.__self__))
        if type(found).__module__.partition(".")[0] in ("cq_engine", "concurrent", "threading"):
            values = getattr(found, "__dict__", {})
            todo += ((f"{path}.{name}", value) for name, value in list(values.items()))


def remembered(engine: Engine, wanted: set[object]) -> list[str]:
    """Where a name or a number is a key, or a part of one."""

    def is_wanted(key: object) -> bool:
        if isinstance(key, (tuple, frozenset)):
            return any(map(is_wanted, key))
        if isinstance(key, str):
            return any(isinstance(each, str) and each in key.lower() for each in wanted)
        return isinstance(key, int) and key in wanted

    found = []
    for path, each in reached(engine):
        keys = each if isinstance(each, (Mapping, set, frozenset)) else ()
        found += [f"{path}: {key!r}" for key in list(keys) if is_wanted(key)]
    return found


def facts(engine: Engine, names: tuple[str, ...]) -> set[object]:
    """The names, and the numbers of the queries and of their tables."""
    state = engine.catalog.state
    known: set[object] = set(names)
    for name in names:
        definition = state.groups[name] if name in state.groups else state.queries[name]
        query = getattr(definition, "query", definition)
        number = query.id if name in state.groups else definition.id
        known |= {number, *(table.id for table in tables_of(definition))}
    return known


def test_the_search_finds_what_is_there(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY gone_q ON DEMAND WITH (join = 'mesh') AS {JOIN}")
    engine.execute("INSERT INTO s VALUES (1, 1)")
    engine.refresh("gone_q")
    found = "\n".join(remembered(engine, facts(engine, ("gone_q",))))
    for part in ("refresher.meshes.kept", "refresher.reports", "refresher._prefetches", "registry._compiled",
                 "registry._locks", "scheduler._schedules"):  # fmt: skip
        assert part in found, found


@pytest.mark.parametrize("how", ["DROP CONTINUOUS QUERY gone_q", "DROP TABLE s CASCADE"])
def test_a_dropped_query_is_forgotten(engine: Engine, how: str) -> None:
    engine.execute(
        "CREATE CONTINUOUS QUERY gone_q ON DEMAND START FROM SNAPSHOT DESTINATION log, CALLBACK tell, QUEUE line"
        f" WITH (join = 'mesh', memory = '64 KB') AS {JOIN}"
    )

    @engine.callback("tell")
    def tell(deltas: Any) -> None:
        raise OSError("nobody is there")

    for n in range(4):
        engine.execute(f"INSERT INTO s SELECT id, id % 300 FROM range({10 * n}, {10 * n + 10})")
        engine.refresh("gone_q")
        engine.compact("s")
    assert engine.execute("SELECT count(*) FROM gone_q").fetchall()[0][0] == 40
    assert engine.execute("DEQUEUE FROM line").fetchall()
    engine.execute("EXPLAIN ANALYZE CONTINUOUS QUERY gone_q")
    state = engine.catalog.state
    wanted = facts(engine, ("gone_q",))
    refresher, registry = engine.queries.refresher, engine.queries.registry
    kept = [
        refresher.reports["gone_q"],
        refresher.meshes.kept["gone_q"],
        registry.compiled(state.queries["gone_q"]),
        *refresher.plans._plans.values(),
    ]
    references = [weakref.ref(each) for each in kept]
    del kept, state
    engine.execute(how)
    assert remembered(engine, wanted) == []
    gc.collect()
    assert [each() for each in references] == [None] * len(references)


def test_a_failure_after_the_drop_is_forgotten(engine: Engine) -> None:
    """A destination is served while its query is dropped, and fails then."""
    engine.execute(f"CREATE CONTINUOUS QUERY gone_q ON DEMAND DESTINATION CALLBACK tell AS {JOIN}")
    wanted, told = facts(engine, ("gone_q",)), []

    @engine.callback("tell")
    def tell(deltas: Any) -> None:
        told.append(deltas)
        with engine.catalog.write() as unit:  # as another process does, which waits for nobody here
            unit.set_state(drop_query(engine.catalog.state, "gone_q"))
        engine.forget_gone()
        raise OSError("nobody is there")

    engine.execute("INSERT INTO s VALUES (1, 1)")
    engine.refresh("gone_q")
    assert told
    assert "gone_q" not in engine.catalog.state.queries
    assert [each for each in remembered(engine, wanted) if ".delivery." in each] == []


def test_a_dropped_group_is_forgotten(engine: Engine) -> None:
    engine.execute("INSERT INTO s SELECT id, id % 3 FROM range(20)")
    for n in range(3):
        engine.execute(
            f"CREATE CONTINUOUS QUERY gone_q{n} START FROM SNAPSHOT AS SELECT id FROM s WHERE k = {n}"
        )
    (group,) = engine.catalog.state.groups
    wanted = facts(engine, (group, "gone_q0", "gone_q1", "gone_q2"))
    engine.execute("INSERT INTO s SELECT id, id % 3 FROM range(20, 40)")
    engine.refresh("gone_q0")
    assert remembered(engine, wanted)
    for n in range(3):
        engine.execute(f"DROP CONTINUOUS QUERY gone_q{n}")
    assert engine.catalog.state.groups == {}
    assert remembered(engine, wanted) == []
    assert engine.queries.attacher._places == {}


def test_what_is_gathered_ahead_goes_with_the_query(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process drops the query while its refresh reads: the threads that wait in the same scan end."""
    drive = TableMesh._advance
    ahead: list[threading.Thread] = []
    still: list[threading.Thread] = []
    waiting: list[int] = []

    def advance(self: TableMesh) -> None:
        if threading.current_thread().name == "cq-mesh-prefetch":
            threading.Event().wait(0.01)
            return
        if not ahead:
            until(lambda: self.waiting > 1, seconds=20)
            ahead.extend(each for each in threading.enumerate() if each.name == "cq-mesh-prefetch")
            with engine.catalog.write() as unit:
                unit.set_state(drop_query(engine.catalog.state, "gone_q"))
            engine.forget_gone()
            for each in ahead:
                each.join(20)
            still.extend(each for each in ahead if each.is_alive())
            waiting.append(self.waiting)
        drive(self)

    engine.execute(
        f"CREATE CONTINUOUS QUERY gone_q ON DEMAND WITH (join = 'mesh', memory = '64 KB') AS {JOIN}"
    )
    for n in range(4):
        engine.execute(f"INSERT INTO s SELECT id, id % 300 FROM range({50 * n}, {50 * n + 50})")
    monkeypatch.setattr(QueryMesh, "changes", 60)
    monkeypatch.setattr(TableMesh, "_advance", advance)
    with pytest.raises(CatalogError, match="no continuous query gone_q"):
        engine.refresh("gone_q")
    assert ahead
    assert still == []
    assert waiting == [1], "the refresh itself"
    assert engine.queries.refresher._prefetches == {}
    assert engine.queries.refresher.meshes.kept == {}


def test_others_drops_are_followed(warehouse: Path, spark: SparkSession, engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY gone_q ON DEMAND WITH (join = 'mesh') AS {JOIN}")
    engine.execute("INSERT INTO s VALUES (1, 1)")
    engine.refresh("gone_q")
    wanted = facts(engine, ("gone_q",))
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as other:
        other.execute("DROP CONTINUOUS QUERY gone_q")
        until(lambda: not remembered(engine, wanted), seconds=20)


def test_a_query_that_wants_no_mesh_any_more_keeps_none(engine: Engine) -> None:
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND WITH (join = 'mesh') AS {JOIN}")
    engine.execute("INSERT INTO s VALUES (1, 1)")
    engine.refresh("q")
    engine.execute("ALTER CONTINUOUS QUERY q SET WITH (join = 'look_up')")
    engine.execute("INSERT INTO s VALUES (2, 2)")
    engine.refresh("q")
    assert engine.queries.refresher.meshes.kept == {}
    assert engine.queries.refresher._prefetches == {}
