"""Queries over tables WITHOUT SNAPSHOT: the delta log, a merged destination and the history are right at every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.errors import AnalysisError, CatalogError
from cq_engine.core.limits import Limits
from tests.delta.partial.histories import QUERIES, TABLES, Writer
from tests.delta.partial.world import Change, Row, apply
from tests.oracle.generate import TableSpec

ON_CLUSTER = Limits(refresh_changes=-1)
KINDS = {
    "I": "insert",
    "U": "update",
    "D": "delete",
    "P": "partial_update",
    "S": "upsert",
    "K": "partial_delete",
}


@pytest.fixture
def opened(once: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines = []

    def connect(limits: Limits | None = None) -> Engine:
        more = {} if limits is None else {"limits": limits}
        engines.append(cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, **more))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.close()


def create(engine: Engine, partial: Sequence[str]) -> None:
    for spec in TABLES:
        columns = ", ".join(f"{name} {kind}" for name, kind in spec.columns)
        without = " WITHOUT SNAPSHOT" if spec.name in partial else ""
        engine.execute(f"CREATE TABLE {spec.name} ({columns}, PRIMARY KEY ({', '.join(spec.key)})){without}")


def arrow(spec: TableSpec, changes: Sequence[Change]) -> pa.Table:
    """What `apply_changes` takes."""
    names = [name for name, _ in spec.columns]
    nothing = (None,) * len(names)

    def row(change: Change) -> Row:
        keyed = (*change.key, *nothing[len(change.key) :])
        return change.new or change.old or keyed

    columns: dict[str, Any] = {}
    for n, name in enumerate(names):
        columns[name] = pa.array([row(each)[n] for each in changes], pa.int32())
        columns[f"old_{name}"] = pa.array([(each.old or nothing)[n] for each in changes], pa.int32())
    return pa.table({**columns, "op": pa.array([each.kind for each in changes], pa.string())})


def commit(engine: Engine, changes: dict[str, list[Change]]) -> None:
    by_name = {spec.name: spec for spec in TABLES}
    given = {name: arrow(by_name[name], some) for name, some in changes.items() if some}
    if given:
        engine.apply_changes(given)


def expected(writer: Writer, query: str, key: Sequence[int]) -> dict[Row, Row]:
    base = duckdb.connect()
    for spec in TABLES:
        base.execute(
            f"CREATE TABLE {spec.name} ({', '.join(f'{name} {kind}' for name, kind in spec.columns)})"
        )
        rows = list(writer.rows[spec.name].values())
        if rows:
            base.executemany(f"INSERT INTO {spec.name} VALUES ({', '.join('?' * len(spec.columns))})", rows)
    return {tuple(row[n] for n in key): row for row in base.execute(query).fetchall()}


@pytest.mark.parametrize(
    ("mode", "limits", "number"),
    [
        ("TRANSACTIONAL", None, 4),
        ("COMPRESSED", None, 7),
        pytest.param("TRANSACTIONAL", ON_CLUSTER, 7, marks=pytest.mark.long),
        ("COMPRESSED", ON_CLUSTER, 1),
    ],
    ids=["each-driver-join", "net-driver-joins", "each-cluster-joins", "net-cluster-selection"],
)
def test_views_over_what_is_left(
    opened: Callable[..., Engine], mode: str, limits: Limits | None, number: int
) -> None:
    partial = frozenset({"s", "t"} if number % 2 else {"t", "s", "u"})
    engine, writer = opened(limits), Writer(number + 7 * len(mode), partial)
    create(engine, sorted(partial))
    engine.execute("CREATE DESTINATION there TYPE table WITH (mode = 'merge')")
    engine.execute(
        f"CREATE CONTINUOUS QUERY v COMPUTE {mode} DELTA ON DEMAND DESTINATION there, TABLE history AS {QUERIES[number]}"
    )
    query = engine.catalog.state.queries["v"]
    assert query.verdict == "PARTIAL"
    names = [c.name for c in query.result.columns]
    key = [names.index(name) for name in query.key or ()]
    view: dict[Row, Row] = {}
    position = engine.catalog.newest_version
    seen = 0
    for step in range(10):
        commit(engine, writer.transaction())
        if step % 4 in (0, 2):
            continue
        engine.refresh("v")
        engine.drain()
        for delta in engine.deltas("v", position):
            gone = delta.marker in ("D", "K")
            assert delta.key is not None
            apply(view, Change(KINDS[delta.marker], delta.key, delta.old, None if gone else delta.new))
            seen += 1
        position = engine.catalog.newest_version
        wanted = expected(writer, QUERIES[number], key)
        assert view == wanted
        assert {tuple(row[n] for n in key): row for row in rows(engine, "SELECT * FROM there")} == wanted
        assert rows(engine, "SELECT * FROM v CHANGES FROM VERSION 1") or not seen
    assert seen > 2
    assert len(rows(engine, "SELECT * FROM history")) == seen


def rows(engine: Engine, query: str) -> list[Row]:
    return [tuple(row.values()) for row in engine.execute(query).to_arrow().to_pylist()]


def test_what_is_refused_and_why(opened: Callable[..., Engine]) -> None:
    engine = opened()
    create(engine, ["s", "t"])
    engine.execute("CREATE TABLE plain (id INT, PRIMARY KEY (id))")

    def refused(sql: str, *words: str, kind: type[Exception] = AnalysisError) -> None:
        with pytest.raises(kind) as error:
            engine.execute(sql)
        assert all(word in str(error.value) for word in words), str(error.value)

    create_query = "CREATE CONTINUOUS QUERY q COMPUTE DELTA ON DEMAND AS "
    refused(create_query + "SELECT a, count(*) AS n FROM s GROUP BY a", "GROUP BY a", "snapshot")
    refused(create_query + "SELECT x FROM s", "(sk), the key of s", "select sk")
    refused(create_query + "SELECT s.sk, t.z FROM s LEFT JOIN t ON s.a = t.tk", "LEFT JOIN")
    refused(create_query + "SELECT s.sk, t.tk FROM s JOIN t ON s.a = t.b", "primary keys of the others")
    refused(
        create_query + "SELECT DISTINCT sk FROM s UNION ALL SELECT tk FROM t",
        "projections, selections and joins",
    )
    refused(
        "CREATE CONTINUOUS QUERY q PRIMARY KEY (x) COMPUTE DELTA ON DEMAND AS SELECT sk, x FROM s", "(sk)"
    )
    refused("CREATE CONTINUOUS QUERY q START FROM SNAPSHOT AS SELECT sk, x FROM s", "SNAPSHOT")
    refused("CREATE CONTINUOUS QUERY q WITH (complete = 'lookup') AS SELECT sk, x FROM s", "completed")
    engine.execute("CREATE CONTINUOUS QUERY looked_up WITH (complete = 'lookup') AS SELECT id FROM plain")
    for sql in ("SELECT * FROM s", "INSERT INTO s VALUES (1, 1, 1, 1, 1)", "UPDATE s SET x = 1", "DELETE FROM s",
                "TRUNCATE TABLE s", "COMPACT TABLE s", "SELECT * FROM s VERSION AS OF 1"):  # fmt: skip
        refused(sql, "WITHOUT SNAPSHOT")
    engine.execute("CREATE CONTINUOUS QUERY v COMPUTE DELTA ON DEMAND AS SELECT sk, x FROM s")
    refused("SELECT * FROM v", "not kept")
    refused("CREATE CONTINUOUS QUERY w AS SELECT sk FROM v", "cannot read v")
    refused("CREATE TABLE n (a INT) WITHOUT SNAPSHOT", "PRIMARY KEY", kind=CatalogError)
    refused(
        "CREATE TABLE n (a INT PRIMARY KEY REFERENCES plain ENFORCED) WITHOUT SNAPSHOT",
        "NOT ENFORCED",
        kind=CatalogError,
    )
    refused("CREATE TABLE n (a INT REFERENCES s ENFORCED)", "NOT ENFORCED", kind=CatalogError)
    with pytest.raises(AnalysisError, match="partial_update"):
        engine.apply_changes(
            {"s": pa.table({"sk": [1], "a": [1], "c": [1], "x": [1], "y": [1], "op": ["U"]})}
        )


def test_what_a_person_is_shown(opened: Callable[..., Engine]) -> None:
    engine = opened()
    create(engine, ["s", "t", "u"])
    said = engine.execute(f"CREATE CONTINUOUS QUERY v COMPUTE DELTA ON DEMAND AS {QUERIES[4]}")
    assert "PARTIAL" in str(said)
    plan = engine.execute("EXPLAIN CONTINUOUS QUERY v").to_arrow().column(0).to_pylist()
    assert "partial_changes_of_s" in "\n".join(plan)
    engine.apply_changes(
        {
            "s": pa.table(
                {"sk": [1, 2], "a": [1, 1], "c": [1, None], "x": [5, 5], "y": [1, 1], "op": ["I", "S"]}
            )
        }
    )
    engine.apply_changes({"t": pa.table({"tk": [1, 9], "b": [1, 1], "z": [3, 3], "op": ["S", "K"]})})
    assert rows(engine, "SELECT * FROM t CHANGES FROM VERSION 1")[-1][:4] == (9, None, None, "partial_delete")
    engine.refresh("v")
    shown = rows(
        engine, "SELECT sk, z, _change_type FROM v CHANGES FROM VERSION 1 ORDER BY _commit_version, sk"
    )
    # Row 2 may have been in the view before it came with the first commit, when it had no partner.
    assert shown == [(2, None, "partial_delete"), (1, 3, "upsert"), (2, 3, "upsert")]
    (done,) = rows(engine, "SHOW REFRESHES")
    assert done[3:7] == (0, 1, 2, "PARTIAL")


def test_a_table_with_a_snapshot_completes_what_comes(opened: Callable[..., Engine]) -> None:
    engine = opened()
    create(engine, [])
    table = {"tk": [1, 2], "b": [1, 1], "z": [3, 3]}
    engine.apply_changes({"t": pa.table({**table, "op": ["S", "I"]})})
    engine.apply_changes(
        {"t": pa.table({"tk": [1, 2, 7], "b": [1, None, None], "z": [4, None, None], "op": ["P", "K", "K"]})}
    )
    kinds = [
        row[3]
        for row in rows(
            engine, "SELECT * FROM t CHANGES FROM VERSION 1 ORDER BY _commit_version, tk, _change_type DESC"
        )
    ]
    assert kinds == ["insert", "insert", "update_preimage", "update_postimage", "delete"]


def test_a_restart_and_a_merged_database(opened: Callable[..., Engine], tmp_path: Path) -> None:
    import sqlite3

    engine = opened()
    create(engine, ["t"])
    url = f"sqlite:///{tmp_path / 'there.db'}"
    engine.execute(
        f"CREATE DESTINATION there TYPE database WITH (url = '{url}', table = 'v', mode = 'merge')"
    )
    engine.execute(
        "CREATE CONTINUOUS QUERY v COMPUTE DELTA ON DEMAND DESTINATION there AS SELECT tk, z FROM t WHERE z > 0"
    )
    changes = [
        {"tk": [1, 2], "b": [1, 1], "z": [3, 3], "op": ["S", "I"]},
        {"tk": [1, 2], "b": [1, None], "z": [4, None], "op": ["P", "K"]},
    ]
    for each in changes:
        engine.apply_changes({"t": pa.table(each)})
        engine.refresh("v")
        engine.drain()
    engine.close()
    engine = opened()
    engine.apply_changes({"t": pa.table({"tk": [5, 1], "b": [1, 1], "z": [9, 0], "op": ["S", "S"]})})
    engine.refresh("v")
    engine.drain()
    with sqlite3.connect(tmp_path / "there.db") as base:
        assert base.execute("SELECT tk, z FROM v ORDER BY tk").fetchall() == [(5, 9)]
    assert rows(engine, "SELECT * FROM v") == [(5, 9)]


def test_what_cannot_be_compared_starts_anew(opened: Callable[..., Engine]) -> None:
    engine = opened()
    create(engine, ["t"])
    engine.execute("CREATE DESTINATION there TYPE table WITH (mode = 'merge')")
    engine.execute(
        "CREATE CONTINUOUS QUERY v COMPUTE DELTA ON DEMAND DESTINATION there AS SELECT tk, z FROM t"
    )
    engine.apply_changes({"t": pa.table({"tk": [1], "b": [1], "z": [3], "op": ["S"]})})
    with pytest.raises(AnalysisError, match="another kind of result"):
        engine.execute("ALTER CONTINUOUS QUERY v AS SELECT tk, b FROM t")
    engine.execute("ALTER CONTINUOUS QUERY v PAUSE")
    engine.apply_changes({"t": pa.table({"tk": [2], "b": [1], "z": [4], "op": ["S"]})})
    with pytest.raises(AnalysisError, match="cannot skip"):
        engine.execute("ALTER CONTINUOUS QUERY v RESUME FROM NOW")
    engine.execute("ALTER CONTINUOUS QUERY v RESUME")
    engine.refresh("v")
    assert rows(engine, "SELECT * FROM there ORDER BY tk") == [(1, 3), (2, 4)]
    said = engine.execute(
        "CREATE OR REPLACE CONTINUOUS QUERY v COMPUTE DELTA ON DEMAND AS SELECT tk, b FROM t"
    )
    assert "new delta log" in str(said)
    engine.apply_changes({"t": pa.table({"tk": [1], "b": [2], "z": [3], "op": ["P"]})})
    engine.refresh("v")
    assert [(d.marker, d.new) for d in engine.deltas("v", engine.catalog.newest_version - 1)] == [
        ("P", (1, 2))
    ]


def test_expressions_are_not_asked_of_what_is_not_known(opened: Callable[..., Engine]) -> None:
    engine = opened()
    engine.execute("CREATE TABLE t (k INT, q INT, PRIMARY KEY (k)) WITHOUT SNAPSHOT")
    engine.execute(
        "CREATE CONTINUOUS QUERY v COMPUTE DELTA ON DEMAND AS SELECT k, 100 / coalesce(q, 0) AS z,"
        " IF(q IS NULL, raise_error('no q'), q) AS q FROM t WHERE 10 / coalesce(q, 0) > 1"
    )
    engine.apply_changes(
        {"t": pa.table({"k": [1, 2, 3], "q": pa.array([5, None, 2], pa.int32()), "op": ["I", "K", "P"]})}
    )
    engine.refresh("v")
    assert [(d.marker, d.key, d.new) for d in engine.deltas("v", 0)] == [
        ("I", (1,), (1, 20.0, 5)), ("K", (2,), None), ("S", (3,), (3, 50.0, 2))
    ]  # fmt: skip


def test_what_tells_of_old_rows(opened: Callable[..., Engine]) -> None:
    """A column of the table may be called old_..., and a deletion has its row in the table's own columns."""
    engine = opened()
    engine.execute("CREATE TABLE o (id INT, old_id INT, PRIMARY KEY (id)) WITHOUT SNAPSHOT")
    engine.apply_changes({"o": pa.table({"id": [5], "old_id": pa.array([None], pa.int32()), "op": ["I"]})})
    engine.apply_changes({"o": pa.table({"id": [1], "old_id": [5], "op": ["S"]})})
    assert [row[:3] for row in rows(engine, "SELECT * FROM o CHANGES FROM VERSION 1")] == [
        (5, None, "insert"),
        (1, 5, "upsert"),
    ]
    engine.execute("CREATE TABLE p (id INT, old_id INT, PRIMARY KEY (id))")
    engine.apply_changes({"p": pa.table({"id": [5, 1], "old_id": [1, 5], "op": ["I", "I"]})})
    engine.apply_changes({"p": pa.table({"id": [1], "old_id": [5], "op": ["D"]})})
    assert rows(engine, "SELECT * FROM p") == [(5, 1)]
    engine.execute("CREATE TABLE d (id INT, v INT, PRIMARY KEY (id)) WITHOUT SNAPSHOT")
    nothing = pa.array([None], pa.int32())
    first = engine.catalog.newest_version + 1
    for row, old in (((1, 7), (1,)), ((None, None), (2,))):
        columns = {
            "id": pa.array(row[:1], pa.int32()),
            "v": pa.array(row[1:], pa.int32()),
            "old_id": pa.array(old, pa.int32()),
        }
        engine.apply_changes({"d": pa.table({**columns, "op": ["D"]})})
    whole = {"id": nothing, "v": nothing, "old_id": [3], "old_v": [9], "op": ["D"]}
    engine.apply_changes({"d": pa.table(whole)})
    found = [row[:3] for row in rows(engine, f"SELECT * FROM d CHANGES FROM VERSION {first}")]
    assert found == [(1, 7, "delete"), (2, None, "partial_delete"), (3, 9, "delete")]
