"""PostgreSQL: its catalog, its types, md5(), and EXPLAIN as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.sources.sql.address import Options
from cq_engine.sources.sql.model import Index, Relation, SourceColumn
from cq_engine.sources.sql.servers.server import PARTS, Found, Server, spark_decimal

__all__ = ["WITH_PARTS", "PostgreSQL"]

WITH_PARTS = """WITH RECURSIVE parts (oid) AS (
  SELECT CAST(CAST({} AS regclass) AS oid)
  UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN parts AS p ON i.inhparent = p.oid)"""
"""A table, with all that is attached to it or inherits from it: their rows are the table's."""

_SPARK = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "oid": "bigint",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
    "bytea": "binary",
    "date": "date",
    "time without time zone": "time(6)",
    "timestamp without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp",
}
_TEXTS = ("text", "character varying")
_BYTES = ("C", "POSIX", "C.UTF-8", "C.utf8", "ucs_basic")
"""Collations that compare bytes, or code points in UTF-8, which is the same."""
_ORDERED = (*_SPARK, "numeric", "uuid")

_FIND = """
SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND lower(c.relname) = lower(:name)
  AND CASE WHEN CAST(:schema AS text) IS NULL THEN n.nspname = ANY (current_schemas(false))
           ELSE n.nspname = :schema END
"""
_NAMES = """
SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND CASE WHEN CAST(:schema AS text) IS NULL THEN n.nspname = ANY (current_schemas(false))
           ELSE n.nspname = :schema END
"""
_TABLE = f"""
{WITH_PARTS.format(":name")}
SELECT CAST(CAST(:name AS regclass) AS oid), CASE WHEN bool_and(c.reltuples >= 0) THEN sum(CAST(c.reltuples AS float8)) END
FROM parts JOIN pg_class AS c ON c.oid = parts.oid WHERE c.relkind <> 'p'
"""
_COLUMNS = """
SELECT a.attname, format_type(b.type, b.modifier), NOT a.attnotnull, l.collname,
       (SELECT datcollate FROM pg_database WHERE datname = current_database())
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
CROSS JOIN LATERAL (SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE a.atttypid END AS type,
                           CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier) AS b
LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
WHERE a.attrelid = :oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_INDEXES = """
SELECT c.relname, i.indisunique, i.indisprimary, i.indnkeyatts,
       (SELECT array_agg(CAST(a.attname AS text) ORDER BY k.n)
        FROM unnest(CAST(i.indkey AS int2[])) WITH ORDINALITY AS k (number, n)
        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = :oid AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indisprimary DESC, c.relname
"""


class PostgreSQL(Server):
    extra = "postgres"
    connect_timeout = True
    row_list = "VALUES {}"
    compares_rows = True
    snapshot = "SELECT pg_export_snapshot()"
    _SETTINGS: ClassVar[tuple[str, ...]] = (
        "SET DateStyle = 'ISO, YMD'; SET TimeZone = 'UTC'; SET IntervalStyle = 'iso_8601'",
        "SET bytea_output = 'hex'; SET extra_float_digits = 1; SET idle_in_transaction_session_timeout = 0",
    )

    def __init__(self) -> None:
        super().__init__("postgresql", "postgres")

    def prepare(self, driver: Any, options: Options) -> None:
        if not hasattr(driver, "pgconn"):
            return
        from psycopg.types import datetime as times
        from psycopg.types.string import TextLoader

        for name in ("json", "jsonb", "uuid"):
            driver.adapters.register_loader(name, TextLoader)
        for name, loader in (
            ("date", times.DateLoader),
            ("timestamp", times.TimestampLoader),
            ("timestamptz", times.TimestamptzLoader),
        ):
            driver.adapters.register_loader(name, _or_text(loader))

    def settings(self, options: Options) -> Sequence[str]:
        milliseconds = 0 if options.timeout is None else max(1, round(options.timeout * 1000))
        return (*self._SETTINGS, f"SET statement_timeout = {milliseconds}")

    def begin(self, *, writes: bool, compares: bool) -> Sequence[str]:
        level = "READ COMMITTED, READ WRITE" if writes else "REPEATABLE READ, READ ONLY"
        return (f"SET TRANSACTION ISOLATION LEVEL {level}",)

    def share(self, snapshot: str) -> Sequence[str]:
        return (f"SET TRANSACTION SNAPSHOT '{snapshot}'", "SET LOCAL lock_timeout = '2s'")

    # ------------------------------------------------------------ relations

    def find(self, connection: Connection, schema: str | None, name: str) -> Sequence[Found]:
        rows = connection.execute(sa.text(_FIND), {"schema": schema, "name": name})
        return [Found(found, relation) for found, relation in rows]

    def names(self, connection: Connection, schema: str | None) -> Sequence[str]:
        return [name for (name,) in connection.execute(sa.text(_NAMES), {"schema": schema})]

    def describe(self, connection: Connection, found: Found) -> Relation:
        wanted = f"{self.quoted(found.schema or 'public')}.{self.quoted(found.name)}"
        oid, rows = connection.execute(sa.text(_TABLE), {"name": wanted}).one()
        columns = []
        for name, declared, nullable, collation, default in connection.execute(
            sa.text(_COLUMNS), {"oid": oid}
        ):
            used = default if collation == "default" else collation
            columns.append(self._column(name, declared, bool(nullable), used))
        key: tuple[str, ...] = ()
        indexes = []
        for name, unique, primary, length, names in connection.execute(sa.text(_INDEXES), {"oid": oid}):
            if primary:
                key = tuple(names[:length])
            indexes.append(Index(name, tuple(names[:length]), unique, tuple(names[length:])))
        return Relation(
            self.name, self.dialect, found.name, tuple(columns), found.schema, key, tuple(indexes),
            None if rows is None else int(rows),
        )  # fmt: skip

    def result_columns(self, connection: Connection, cursor: Any) -> Sequence[SourceColumn]:
        columns = []
        for column in cursor.description:
            modifier = getattr(column, "_fmod", -1)
            declared = connection.exec_driver_sql(
                "SELECT format_type(CAST(%s AS oid), CAST(%s AS int))", (column.type_code, modifier)
            ).scalar_one()
            columns.append(self._column(column.name, declared, True, None))
        return columns

    def _column(self, name: str, declared: str, nullable: bool, collation: str | None) -> SourceColumn:
        kind = _without_digits(declared)
        ordered = kind in _ORDERED or (kind in _TEXTS and collation in _BYTES)
        return SourceColumn(name, declared, self.spark(declared), nullable, collation, ordered)

    def spark(self, declared: str) -> str:
        if declared.endswith("[]"):
            return f"array<{self.spark(declared[:-2])}>"
        kind = _without_digits(declared)
        return spark_decimal(declared) if kind == "numeric" else _SPARK.get(kind, "string")

    # ------------------------------------------------------------ SQL

    def read(self, column: SourceColumn, sql: str) -> str:
        as_text = column.type == "string" and _without_digits(column.declared) not in (
            *_TEXTS,
            "character",
            "",
        )
        return f"CAST({sql} AS text)" if as_text else sql

    def typed(self, column: SourceColumn, mark: str) -> str:
        return f"CAST({mark} AS {_compared(column)})"

    def unnested(self, column: SourceColumn, mark: str) -> str:
        return f"SELECT unnest(CAST({mark} AS {_compared(column)}[]))"

    def instant(self) -> str:
        return "clock_timestamp()"

    def row_checksum(self, columns: Sequence[tuple[SourceColumn, str]]) -> str:
        texts = [f"CAST({sql} AS text)" for _, sql in columns]
        parts = [f"COALESCE(CAST(char_length({text}) AS text) || ':' || {text}, '-')" for text in texts]
        return f"md5({' || '.join(parts)})"

    def range_checksum(self, columns: Sequence[tuple[SourceColumn, str]], source: str) -> str:
        sums = (
            f"CAST(sum(CAST(CAST('x' || substr(r.m, {start}, {length}) AS bit({4 * length})) AS bigint)) AS text)"
            for start, length in PARTS
        )
        rows = f"SELECT {self.row_checksum(columns)} AS m {source} OFFSET 0"  # which keeps md5 from being computed for each part
        return f"count(*), concat_ws(':', {', '.join(sums)}) FROM ({rows}) AS r"

    # ------------------------------------------------------------ plans

    def explain(self, connection: Connection, sql: str, parameters: tuple[Any, ...]) -> list[str]:
        return [str(row[0]) for row in connection.exec_driver_sql(f"EXPLAIN {sql}", parameters)]

    def reads_only_index(self, connection: Connection, sql: str, parameters: tuple[Any, ...]) -> bool:
        (text,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters).one()
        plan = json.loads(text) if isinstance(text, str) else text
        nodes = list(_nodes(plan[0]["Plan"]))
        tables = [
            node for node in nodes if "Relation Name" in node or node["Node Type"] == "Bitmap Heap Scan"
        ]
        return bool(tables) and all(node["Node Type"] == "Index Only Scan" for node in tables)


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _compared(column: SourceColumn) -> str:
    """The type in which values are compared with a column."""
    kind = _without_digits(column.declared)
    other = {"character": "bpchar", "bit": "varbit", "": "text"}
    return other.get(kind, kind)


def _without_digits(declared: str) -> str:
    """A type without its length: a cast to it must neither round nor cut off."""
    return re.sub(r"\(\d+(,-?\d+)?\)", "", declared)


def _or_text(loader: type[Any]) -> type[Any]:
    """The loader, which gives the text of values that Python has not, such as `infinity` and years before Christ."""

    class OrText(loader):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            from psycopg import DataError

            try:
                return super().load(data)
            except DataError:
                return bytes(data).decode()

    return OrText
