"""Every type as data and as a key: what the engine keeps and what its deltas amount to is what Spark gives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.capabilities import key_problem
from cq_engine.core.columns import Column
from cq_engine.query.rendering import render_result
from cq_engine.storage.rows import conform
from tests.limits import limited

ZONE = "America/New_York"


@dataclass(frozen=True)
class Kind:
    """A type, two values that differ, and other spellings of the first one: equal as a key, or the same image."""

    type: str
    first: str
    second: str
    again: str | None = None
    same: str | None = None


KINDS = {
    "boolean": Kind("BOOLEAN", "true", "false"),
    "decimal": Kind("DECIMAL(38,10)", "1.5BD", "-9999999999999999999999999999.0000000001BD", "1.50BD"),
    "whole": Kind("DECIMAL(38,0)", "99999999999999999999999999999999999999BD", "1BD"),
    "float": Kind("FLOAT", "-0.0F", "float('NaN')", "0.0F", "0.0F"),
    "double": Kind("DOUBLE", "double('NaN')", "double('-Infinity')", "double('NaN')"),
    "string": Kind("STRING", "'a'", "''"),
    "varchar": Kind("VARCHAR(9)", "'a'", "'b '"),
    "lcase": Kind("STRING COLLATE UTF8_LCASE", "'Ärger'", "'b'", "'äRGER'"),
    "unicode_ci": Kind("STRING COLLATE UNICODE_CI", "'é'", "'b'", "'É'"),
    "binary": Kind("BINARY", "X'00FF'", "X''"),
    "date": Kind("DATE", "DATE '2020-02-29'", "DATE '0001-01-01'"),
    "timestamp": Kind("TIMESTAMP", "TIMESTAMP '2020-03-08 02:30:00'", "TIMESTAMP '1969-12-31 23:59:59.999999'",
                      "TIMESTAMP '2020-03-08 07:30:00 UTC'"),
    "ntz": Kind("TIMESTAMP_NTZ", "TIMESTAMP_NTZ '2020-03-08 02:30:00.123456'", "TIMESTAMP_NTZ '1900-01-01 00:00:00'"),
    "time": Kind("TIME(6)", "TIME '10:11:12.123456'", "TIME '00:00:00'"),
    "months": Kind("INTERVAL YEAR TO MONTH", "INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '-0-1' YEAR TO MONTH"),
    "days": Kind("INTERVAL DAY TO SECOND", "INTERVAL '1 02:03:04.5' DAY TO SECOND", "INTERVAL '-1 00:00:00' DAY TO SECOND"),
    "array": Kind("ARRAY<DOUBLE>", "array(-0.0D, NULL)", "array()", "array(0.0D, NULL)", "array(0.0D, NULL)"),
    "struct": Kind("STRUCT<x: INT, y: ARRAY<INTERVAL MONTH>>", "named_struct('x', 1, 'y', array(INTERVAL '3' MONTH))",
                   "named_struct('x', CAST(NULL AS INT), 'y', array())"),
    "map": Kind("MAP<STRING, DOUBLE>", "map('a', 1D, 'b', double('NaN'))", "map()", same="map('b', double('NaN'), 'a', 1D)"),
    "variant": Kind("VARIANT", """parse_json('{"b": 1, "a": [1.5, null]}')""", "parse_json('null')",
                    same="""parse_json('{"a": [1.50, null], "b": 1}')"""),
    "nested": Kind("MAP<STRING, ARRAY<VARIANT>>", "map('a', array(parse_json('1'), NULL))", "map('a', NULL)"),
}  # fmt: skip
KEYS = [name for name, kind in KINDS.items() if not key_problem(kind.type)]
SAME_AS_KEYS = ("whole", "varchar")
"""Kinds whose keys are those of another kind: of `decimal` and of `string`."""


def canonical(value: Any, fold: bool = False) -> Any:
    """One Python value for all that Spark takes for the same."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, str):
        return value.lower() if fold else value
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return ("map", *sorted((canonical(pair, fold) for pair in value), key=repr))
    if isinstance(value, (list, tuple)):
        return tuple(canonical(item, fold) for item in value)
    if isinstance(value, dict):
        return tuple(sorted(((k, canonical(v, fold)) for k, v in value.items()), key=repr))
    return value


@pytest.fixture(scope="module")
def engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cq_engine.Engine]:
    session = spark.newSession()
    for name, value in (
        ("session.timeZone", ZONE),
        ("timeType.enabled", "true"),
        ("variant.writeShredding.enabled", "false"),
    ):
        session.conf.set(f"spark.sql.{name}", value)
    with cq_engine.connect(tmp_path_factory.mktemp("types") / "w", spark=session, scheduler=False) as engine:
        yield engine


@dataclass
class Watched:
    """A query, its deltas added up."""

    engine: cq_engine.Engine
    name: str
    text: str
    fold: bool = False
    position: int = 0

    def __post_init__(self) -> None:
        self.engine.execute(f"CREATE CONTINUOUS QUERY {self.name} ON DEMAND AS {self.text}")
        self.rows = rows(self.engine, self.text, self.fold)

    def check(self) -> None:
        """The accumulated deltas are the result from scratch, and no update changes nothing."""
        self.engine.refresh(self.name)
        for delta in self.engine.deltas(self.name, self.position):
            old, new = canonical(delta.old, self.fold), canonical(delta.new, self.fold)
            assert delta.marker != "U" or canonical(delta.old) != canonical(delta.new), delta
            assert old is None or self.rows[old] > 0, delta
            self.rows += Counter([] if new is None else [new])
            self.rows -= Counter([] if old is None else [old])
            self.position = delta.commit_version
        assert self.rows == rows(self.engine, self.text, self.fold), self.name


def rows(engine: cq_engine.Engine, text: str, fold: bool = False) -> Counter[Any]:
    return Counter(canonical(row, fold) for row in engine.execute(text).fetchall())


@pytest.fixture(params=["small", "bulk"])
def path(request: pytest.FixtureRequest, engine: cq_engine.Engine) -> Iterator[str]:
    """Rows stay on the driver, or executors do everything."""
    bulk = {
        "pending_rows": 0,
        "inline_bytes": 0,
        "small_rows": -1,
        "refresh_changes": -1,
        "driver_changes": -1,
    }
    with limited(engine, **(bulk if request.param == "bulk" else {})):
        yield request.param


def test_as_data(engine: cq_engine.Engine, path: str, tmp_path: Path) -> None:
    names = [f"c_{name}" for name in KINDS]
    typed = ", ".join(f"c_{name} {kind.type}" for name, kind in KINDS.items())
    table = f"wide_{path}"
    engine.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, {typed})")
    engine.execute(f"CREATE TABLE {table}_copy (id INT, {typed})")
    shown = ", ".join(names)
    # With executors, the deltas of the rows with their keys are those that are sent.
    keyed = [f"SELECT id, {shown} FROM {table}"] if path == "small" else []
    watched = [
        Watched(engine, f"{table}_{n}", text)
        for n, text in enumerate([f"SELECT {shown} FROM {table}", *keyed])
    ]
    engine.execute(
        f"CREATE CONTINUOUS QUERY {table}_sent ON DEMAND DESTINATION TABLE {table}_log AS SELECT id, {shown} FROM {table}"
    )
    sent: list[pa.Table] = []
    engine.callback(f"{table}_sent")(lambda batch: sent.append(batch.to_arrow()))
    engine.execute(
        f"CREATE CONTINUOUS QUERY {table}_called ON DEMAND DESTINATION CALLBACK {table}_sent AS SELECT id, {shown} FROM {table}"
    )

    def values(which: str) -> str:
        picked = (getattr(kind, which) for kind in KINDS.values())
        return ", ".join("NULL" if value is None else value for value in picked)

    def step(text: str) -> int | None:
        version = engine.execute(text).commit_version
        for each in watched:
            each.check()
        return version

    first = step(f"INSERT INTO {table} VALUES (1, {values('first')}), (2, {values('second')})")
    step(f"INSERT INTO {table} SELECT 3, {', '.join(['NULL'] * len(names))}")
    assert step(f"UPDATE {table} SET " + ", ".join(f"{n} = {n}" for n in names)) is None
    same = {f"c_{name}": kind.same for name, kind in KINDS.items() if kind.same}
    assert (
        step(f"UPDATE {table} SET " + ", ".join(f"{n} = {v}" for n, v in same.items()) + " WHERE id = 1")
        is None
    )
    step(
        f"UPDATE {table} SET " + ", ".join(f"c_{n} = {k.second}" for n, k in KINDS.items()) + " WHERE id = 1"
    )
    step(f"DELETE FROM {table} WHERE id = 2")
    step(
        f"MERGE INTO {table} t USING (SELECT id + 2 AS id, {shown} FROM {table}) s ON t.id = s.id"
        f" WHEN MATCHED THEN UPDATE SET {', '.join(f'{n} = s.{n}' for n in names)} WHEN NOT MATCHED THEN INSERT *"
    )
    result = engine.execute(f"SELECT * FROM {table}")
    given, arrow = result.fetchall(), result.to_arrow()
    with engine.transaction() as tx:
        tx.insert(f"{table}_copy", given)
        tx.insert(f"{table}_copy", [dict(zip(["id", *names], row)) for row in given])
        tx.insert(f"{table}_copy", arrow)
    engine.apply_changes({f"{table}_copy": arrow.append_column("op", pa.array(["I"] * arrow.num_rows))})
    whole = rows(engine, f"SELECT * FROM {table}")
    assert rows(engine, f"SELECT * FROM {table}_copy") == Counter({row: 4 * n for row, n in whole.items()})
    files = tmp_path / "rows.parquet"
    engine.execute(f"SELECT * FROM {table}").to_df().write.parquet(str(files))
    engine.execute(f"COPY INTO {table}_copy FROM '{files}'")
    assert rows(engine, f"SELECT * FROM {table}_copy") == Counter({row: 5 * n for row, n in whole.items()})
    engine.drain(timeout=60)
    engine.refresh(f"{table}_sent")
    engine.refresh(f"{table}_called")
    changes = rows(
        engine,
        f"SELECT id, {shown} FROM {table} CHANGES FROM VERSION 1 TO VERSION 9999 WHERE _change_type <> 'update_preimage'",
    )
    assert rows(engine, f"SELECT * FROM {table}_log") == changes
    engine.delivery.drain(list(engine.catalog.state.queries.values()), None)
    assert sum(batch.num_rows for batch in sent) == sum(changes.values())
    engine.compact(table)
    assert rows(engine, f"SELECT * FROM {table}") == whole
    assert sum(rows(engine, f"SELECT * FROM {table} VERSION AS OF {first}").values()) == 2
    step(f"UPDATE {table} SET " + ", ".join(f"c_{n} = {k.first}" for n, k in KINDS.items()) + " WHERE id = 1")
    assert "NULL" in render_result(engine.execute(f"SELECT * FROM {table}"))


EQUAL = {
    "group": "SELECT {keys}, count(*) AS c, sum(v) AS s FROM t_{name} GROUP BY {keys}",
    "other": "SELECT t.id, {keys_of_t}, p.v, row_number() OVER (PARTITION BY {keys_of_t} ORDER BY t.id) AS r"
    " FROM t_{name} t LEFT JOIN (SELECT DISTINCT {keys}, v FROM p_{name}) p ON {same}",
}
ALONE = [name for name in KEYS if name not in SAME_AS_KEYS]
TOGETHER = [tuple(ALONE[start::2]) for start in range(2)]


@pytest.mark.parametrize(
    "names",
    [*TOGETHER, *(pytest.param((name,), marks=pytest.mark.long) for name in ALONE)],
    ids="_".join,
)
def test_as_keys(engine: cq_engine.Engine, names: tuple[str, ...]) -> None:
    """Keys of several types: of two rows that differ, one type alone says so."""
    name = "_".join(names)
    kinds = {f"k_{each}": KINDS[each] for each in names}
    fold = any("COLLATE" in kind.type for kind in kinds.values())
    keys = ", ".join(kinds)
    first = ", ".join(kind.first for kind in kinds.values())
    again = [kind.again or kind.first for kind in kinds.values()]
    others = [
        ", ".join(kind.second if kind is other else kind.first for kind in kinds.values())
        for other in kinds.values()
    ]
    same = " AND ".join(f"{key} = {value}" for key, value in zip(kinds, again))
    again_row, nulls = ", ".join(again), ", ".join(["NULL"] * len(kinds))
    typed = ", ".join(f"{key} {kind.type}" for key, kind in kinds.items())
    engine.execute(f"CREATE TABLE t_{name} (id INT PRIMARY KEY, {typed}, v INT)")
    engine.execute(f"CREATE TABLE p_{name} ({typed}, v INT, PRIMARY KEY ({keys}))")
    engine.execute(f"INSERT INTO p_{name} VALUES ({first}, 1)" + "".join(f", ({row}, 2)" for row in others))
    engine.execute(
        f"INSERT INTO t_{name} VALUES (1, {first}, 1), (2, {again_row}, 2), (4, {nulls}, 4), (5, {nulls}, 5)"
        + "".join(f", ({n}, {row}, 3)" for n, row in enumerate(others, 10))
    )
    of_t = ", ".join(f"t.{key}" for key in kinds)
    on = " AND ".join(f"t.{key} = p.{key}" for key in kinds)
    watched = [
        Watched(engine, f"{q}_{name}", text.format(name=name, keys=keys, keys_of_t=of_t, same=on), fold)
        for q, text in EQUAL.items()
    ]
    assert sum(watched[0].rows.values()) == 2 + len(names)
    found = [engine.describe(w.name).key for w in watched]
    assert fold or found == [tuple(kinds), ("id",)]

    def step(*texts: str) -> None:
        with engine.transaction() as tx:
            for text in texts:
                tx.execute(text)
        for each in watched:
            each.check()

    with pytest.raises(cq_engine.ConstraintError, match="PRIMARY KEY"):
        engine.execute(f"INSERT INTO p_{name} VALUES ({again_row}, 3)")
    step(
        f"UPDATE p_{name} SET v = 9 WHERE {same}",
        f"DELETE FROM t_{name} WHERE id IN (1, 4)",
        f"INSERT INTO t_{name} VALUES (6, {again_row}, 6), (7, {nulls}, 7)",
    )
    engine.compact(f"p_{name}")
    with limited(engine, refresh_changes=-1, driver_changes=-1, small_rows=-1):
        with pytest.raises(cq_engine.ConstraintError, match="PRIMARY KEY"):
            engine.execute(f"INSERT INTO p_{name} VALUES ({again_row}, 3)")
        changed = ", ".join(f"{key} = {value}" for key, value in zip(kinds, again))
        key, kind = next(iter(kinds.items()))
        step(
            f"UPDATE t_{name} SET {key} = {kind.second} WHERE id = 2",
            f"UPDATE t_{name} SET {changed} WHERE id = 5",
            f"DELETE FROM p_{name} WHERE {key} = {kind.second}",
        )


@pytest.mark.parametrize("name", [name for name in KINDS if name not in KEYS])
def test_what_is_no_key(engine: cq_engine.Engine, name: str) -> None:
    kind = KINDS[name]
    with pytest.raises(cq_engine.CatalogError, match="which no key can be"):
        engine.execute(f"CREATE TABLE no_{name} (k {kind.type} PRIMARY KEY)")
    engine.execute(f"CREATE TABLE o_{name} (id INT PRIMARY KEY, k {kind.type})")
    with pytest.raises(cq_engine.AnalysisError, match="which no key can be"):
        engine.execute(f"CREATE CONTINUOUS QUERY no_{name} PRIMARY KEY (k) AS SELECT k FROM o_{name}")
    if name in ("variant", "nested"):
        with pytest.raises(cq_engine.AnalysisError, match="not an orderable data type"):
            engine.execute(
                f"CREATE CONTINUOUS QUERY no_{name} AS SELECT k, count(*) AS c FROM o_{name} GROUP BY k"
            )
        return
    fold = "COLLATE" in kind.type
    grouped = Watched(engine, f"g_{name}", f"SELECT k, count(*) AS c FROM o_{name} GROUP BY k", fold)
    for text in (
        f"INSERT INTO o_{name} VALUES (1, {kind.first}), (2, {kind.again or kind.same}), (3, NULL)",
        f"UPDATE o_{name} SET k = {kind.second} WHERE id = 1",
        f"DELETE FROM o_{name} WHERE id > 1",
    ):
        engine.execute(text)
        grouped.check()


def test_published(engine: cq_engine.Engine) -> None:
    engine.execute(
        "CREATE TABLE open (id INT PRIMARY KEY, v VARIANT, m INTERVAL YEAR TO MONTH, s STRING COLLATE UTF8_LCASE)"
    )
    engine.execute(
        """INSERT INTO open VALUES (1, parse_json('{"a": 1}'), INTERVAL '1-1' YEAR TO MONTH, 'x'), (2, NULL, NULL, NULL)"""
    )
    engine.compact("open")
    engine.publish()
    found = DeltaTable(f"{engine.catalog.warehouse}/tables/open").to_pyarrow_table().sort_by("id")
    assert found.column("m").to_pylist() == [13, None]
    assert found.column("s").to_pylist() == ["x", None]
    assert found.column("v").to_pylist()[0].keys() == {"value", "metadata"}
    engine.execute("CREATE TABLE closed (id INT PRIMARY KEY, t TIME, d INTERVAL DAY)")
    engine.execute("INSERT INTO closed VALUES (1, TIME '01:02:03', INTERVAL '1' DAY)")
    engine.compact("closed")
    engine.publish()
    assert not DeltaTable.is_deltatable(f"{engine.catalog.warehouse}/tables/closed")


def test_files_are_pruned_by_no_statistics_of_collated_text(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE TABLE pruned (k STRING COLLATE UTF8_LCASE PRIMARY KEY, v INT)")
    with engine.transaction() as tx:
        tx.insert(
            "pruned", pa.table({"k": [f"k{n}" for n in range(300)], "v": pa.array(range(300), pa.int32())})
        )
    engine.compact("pruned")
    with limited(engine, small_rows=-1):
        with pytest.raises(cq_engine.ConstraintError, match="PRIMARY KEY"):
            engine.execute("INSERT INTO pruned VALUES ('K7', 0)")
        with pytest.raises(cq_engine.ConstraintError, match="PRIMARY KEY"):
            engine.execute("INSERT INTO pruned VALUES ('new', 0), ('NEW', 1)")
        assert engine.execute("UPDATE pruned SET v = 1 WHERE k = 'K9'").rowcount == 1


def test_a_state_that_spark_merges(engine: cq_engine.Engine) -> None:
    with limited(engine, refresh_changes=-1, small_rows=-1, driver_rows=-1):
        engine.execute("CREATE TABLE counted (id INT PRIMARY KEY, k INT)")
        watched = Watched(engine, "counts", "SELECT k, count(*) AS c FROM counted GROUP BY k")
        for text in (
            "INSERT INTO counted VALUES (0, 1), (1, 2), (2, 1)",
            "UPDATE counted SET k = 2 WHERE id = 0",
            "DELETE FROM counted WHERE id = 1",
        ):
            engine.execute(text)
            watched.check()


def test_nested_types_without_rows(engine: cq_engine.Engine) -> None:
    engine.execute("CREATE TABLE hollow (id INT PRIMARY KEY, k ARRAY<INT>, s STRUCT<x: ARRAY<INT>>)")
    with engine.transaction() as tx:
        tx.execute("DELETE FROM hollow WHERE id = 1")
        tx.execute("INSERT INTO hollow VALUES (1, array(1, NULL), NULL)")
    assert rows(engine, "SELECT id, k FROM hollow") == Counter([(1, (1, None))])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint64()])
def test_whole_numbers_become_decimals_where_they_fit(kind: pa.DataType) -> None:
    """Also of a type whose largest numbers would not."""
    for wanted, most in (
        ("decimal(5,2)", 127),
        ("decimal(10,2)", 100),
        ("decimal(38,0)", 127),
        ("decimal(38,36)", 12),
    ):
        rows = pa.table({"d": pa.array([most, 0, None], kind)})
        given = conform(rows, [Column("d", wanted)]).column("d").to_pylist()
        assert given == [Decimal(most), Decimal(0), None]
    with pytest.raises(pa.ArrowInvalid):
        conform(pa.table({"d": pa.array([100], kind)}), [Column("d", "decimal(4,2)")])
