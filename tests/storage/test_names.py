"""Columns of users never meet columns of the engine, whatever they are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.column_specs import RESERVED
from cq_engine.core.columns import INTERNAL, ROW_FROM, ROW_TO, ROW_VERSION, ROW_WEIGHT
from cq_engine.core.errors import CatalogError, ConstraintError
from tests.limits import limit

NAMES = (
    "_v", "_w", "_from", "_to", "_first", "_last", "_next", "_newest", "_n", "_k", "_k0", "_k1", "_key", "_other", "_r",
    "_s0", "_o0", "_n0", "_x0", "_x0_1", "_c0", "_g0", "_w0", "_e0", "_kind", "_sign", "_total", "_wanted", "_changed", "_hit",
    "_id", "_level", "_at", "_cq", "_member", "count", "n", "b", "e0", "c0", "p_1", "pk_1", "k_4", "from_1", "until_2", "h_1",
    "version", "marker", "sequence", "time", "new_0", "old_0", "row", "value", "rank", "v", "w",
)  # fmt: skip
QUERIES = {
    "keyed": "SELECT _k0 AS k, {shown} FROM t WHERE _w <> 3",
    "bag": "SELECT _v % 2 AS a, _w AS c FROM t",
    "grouped": "SELECT _w AS g, count(*) AS n, sum(_v) AS total, min(_from) AS low, avg(_to) AS mean FROM t GROUP BY _w",
    "scalar": "SELECT sum(_n) AS n, count(_k) AS k FROM t",
    "joined": "SELECT a._k0 AS k, a._v AS x, c._w AS y FROM t a JOIN t c ON a._w = c._k0",
    "used": "SELECT _w AS v, r._v AS x FROM t JOIN (SELECT _w, max(_v) AS _v FROM t GROUP BY _w) r USING (_w)",
    "outer_join": "SELECT a._k0 AS k, c._from AS f FROM t a LEFT JOIN t c ON a._to = c._k0",
    "semi": "SELECT _k0 AS k, _v AS x FROM t a WHERE EXISTS (SELECT 1 FROM t c WHERE c._w = a._k0)",
    "ranked": "SELECT _k0 AS k, row_number() OVER (PARTITION BY _w ORDER BY _v, _k0) AS r FROM t",
    "inside": "SELECT _w AS k, _from AS x FROM (SELECT _k0 AS _w, _v + 1 AS _from, 0 AS _to FROM t) AS _v",
    "distinct_rows": "SELECT DISTINCT _w AS w, count AS n FROM t",
}
USED = {
    *re.findall(r"\w+", QUERIES["grouped"] + QUERIES["joined"]),
    "_k",
    "_o0",
    "_x0",
    "_kind",
    "_sign",
    "_total",
}
SOME = tuple(name for n, name in enumerate(NAMES) if name in USED or n % 4 == 0)
"""Every fourth name, and those that statements below name."""
MERGE = """MERGE INTO t USING (SELECT DISTINCT * FROM bag) s ON t._k0 = s._k0
WHEN MATCHED THEN UPDATE SET _w = s._v, _kind = s._sign WHEN NOT MATCHED THEN INSERT *"""


BULK = {"pending_rows": 0, "inline_bytes": 0, "small_rows": -1, "refresh_changes": -1, "driver_changes": -1}


@pytest.fixture
def engine(spark: SparkSession, warehouse: Path) -> Iterator[cq_engine.Engine]:
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as opened:
        yield opened


def rows(engine: cq_engine.Engine, text: str) -> Counter[Any]:
    return Counter(tuple(map(repr, row)) for row in engine.execute(text).fetchall())


@pytest.mark.parametrize(
    ("limits", "queries", "names"),
    [
        ({}, tuple(QUERIES), NAMES),
        (BULK, ("joined",), SOME),
        pytest.param(BULK, ("grouped", "joined"), NAMES, marks=pytest.mark.long),
    ],
    ids=["driver", "executors", "executors, all names"],
)
def test_internal_names_as_columns(
    engine: cq_engine.Engine, limits: dict[str, int], queries: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """Rows stay on the driver, or executors do everything, to as many plans as read and write in another way there."""
    limit(engine, **limits)
    typed = ", ".join(f"`{name}` INT" for name in names)
    engine.execute(f"CREATE TABLE t ({typed}, PRIMARY KEY (_k0))")
    engine.execute(f"CREATE TABLE bag ({typed})")
    shown = ", ".join(f"`{name}` AS `u{n}`" for n, name in enumerate(names))
    texts = {name: text.format(shown=shown) for name, text in QUERIES.items() if name in queries}
    results: dict[str, Counter[Any]] = {}
    positions = dict.fromkeys(texts, 0)
    for name, text in texts.items():
        engine.execute(f"CREATE CONTINUOUS QUERY q_{name} ON DEMAND AS {text}")
        results[name] = rows(engine, text)

    def check(step: str) -> None:
        for name, text in texts.items():
            engine.refresh(f"q_{name}")
            for delta in engine.deltas(f"q_{name}", positions[name]):
                results[name] += Counter([tuple(map(repr, delta.new))] if delta.new else [])
                results[name] -= Counter([tuple(map(repr, delta.old))] if delta.old else [])
                positions[name] = delta.commit_version
            assert results[name] == rows(engine, text), (step, name)

    def insert(table: str, *keys: int) -> str:
        return f"INSERT INTO {table} VALUES " + ", ".join(
            "("
            + ", ".join(str(key if name == "_k0" else (key + n) % 5) for n, name in enumerate(names))
            + ")"
            for key in keys
        )

    for steps in (
        (insert("t", 1, 2, 3), insert("bag", 3, 3, 9)),
        ("UPDATE t SET _v = _v + _w, _o0 = _x0 + 1 WHERE _k0 IN (1, 2)", MERGE),
        ("DELETE FROM bag WHERE _k0 = 3", "DELETE FROM t WHERE _w = 1 OR _total = 2", insert("t", 11, 12)),
    ):
        for step in steps:
            engine.execute(step)
        if not limits or MERGE not in steps:  # over some commits at once the same names stand in the plans
            check(steps[-1])
    newest = engine.execute("UPDATE bag SET _v = 100, _k = 7").commit_version
    changes = engine.execute(
        f"SELECT _v, _w, _change_type FROM bag CHANGES FROM VERSION {newest} TO VERSION {newest}"
    )
    assert {row[0] for row in changes.fetchall()} >= {100}
    engine.compact("t")
    engine.execute(f"UPDATE t SET {', '.join(f'`{name}` = 4' for name in names if name != '_k0')}")
    check("everything, after a compaction")


def test_reserved_names(spark: SparkSession, warehouse: Path) -> None:
    names = [*sorted(RESERVED), ROW_VERSION, ROW_WEIGHT, ROW_FROM, ROW_TO, f"{INTERNAL.upper()}X"]
    with cq_engine.connect(warehouse, spark=spark, scheduler=False) as engine:
        engine.execute("CREATE TABLE known (k INT PRIMARY KEY)")
        for name in names:
            reason = "change rows need" if name in RESERVED else INTERNAL
            with pytest.raises(CatalogError, match=reason):
                engine.execute(f"CREATE TABLE t (k INT PRIMARY KEY, {name} INT)")
            with pytest.raises(CatalogError, match=reason):
                engine.execute(f"ALTER TABLE known ADD COLUMNS ({name} INT)")


def test_a_foreign_key_to_a_table_whose_columns_have_short_names(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE TABLE t (k INT PRIMARY KEY, c INT, p INT, child INT, parent INT)")
    engine.execute("INSERT INTO t VALUES (1, NULL, NULL, NULL, NULL), (2, 1, 2, 1, 3)")
    for column in ("c", "p", "child"):
        engine.execute(f"ALTER TABLE t ADD FOREIGN KEY ({column}) REFERENCES t (k) ENFORCED")
    with pytest.raises(ConstraintError, match="1 rows of t violate"):
        engine.execute("ALTER TABLE t ADD FOREIGN KEY (parent) REFERENCES t (k) ENFORCED")
    assert [row[2] for row in engine.execute("CHECK CONSTRAINTS ON t").fetchall()] == [0, 0, 0, 0]
