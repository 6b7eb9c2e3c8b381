"""MariaDB, and MySQL: the information schema, types, MD5(), and EXPLAIN."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from cq_engine.sources.sql.address import Options
from cq_engine.sources.sql.model import Index, Relation, SourceColumn
from cq_engine.sources.sql.servers.server import PARTS, Found, Server, spark_decimal

__all__ = ["MariaDB"]

_SPARK = {
    "tinyint": "tinyint",
    "smallint": "smallint",
    "mediumint": "int",
    "int": "int",
    "bigint": "bigint",
    "year": "int",
    "float": "float",
    "double": "double",
    "date": "date",
    "datetime": "timestamp_ntz",
    "timestamp": "timestamp",
    "binary": "binary",
    "varbinary": "binary",
    "tinyblob": "binary",
    "blob": "binary",
    "mediumblob": "binary",
    "longblob": "binary",
}
_UNSIGNED = {
    "tinyint": "smallint",
    "smallint": "int",
    "mediumint": "int",
    "int": "bigint",
    "bigint": "decimal(20,0)",
}
_LARGE = ("mediumtext", "longtext", "mediumblob", "longblob", "json")
_UNORDERED = ("enum", "set", "uuid", "inet4", "inet6", "bit", "time", "json")

_PLACE = "table_schema = COALESCE(:schema, DATABASE())"
_FIND = f"SELECT table_schema, table_name FROM information_schema.tables WHERE {_PLACE} AND lower(table_name) = lower(:name)"
_NAMES = f"SELECT table_name FROM information_schema.tables WHERE {_PLACE}"
_COLUMNS = f"""
SELECT column_name, column_type, is_nullable, collation_name FROM information_schema.columns
WHERE {_PLACE} AND table_name = :name ORDER BY ordinal_position
"""
_INDEXES = f"""
SELECT index_name, non_unique, column_name, sub_part, index_type FROM information_schema.statistics
WHERE {_PLACE} AND table_name = :name ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index
"""
_ROWS = f"SELECT table_rows FROM information_schema.tables WHERE {_PLACE} AND table_name = :name"


class MariaDB(Server):
    extra = "mariadb"
    connect_timeout = True
    row_list = "{}"
    _SETTINGS: ClassVar[tuple[str, ...]] = (
        "SET SESSION time_zone = '+00:00', net_write_timeout = 3600",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    )

    def __init__(self, name: str = "mariadb") -> None:
        super().__init__(name, "mysql")

    def settings(self, options: Options) -> Sequence[str]:
        if options.timeout is None:
            return self._SETTINGS
        milliseconds = max(1, round(options.timeout * 1000))
        mine, theirs = f"max_statement_time = {milliseconds / 1000}", f"max_execution_time = {milliseconds}"
        # Each server reads the comment that is meant for it.
        return (
            *self._SETTINGS,
            f"SET SESSION net_read_timeout = 3600 /*M! , {mine} */ /*!50799 , {theirs} */",
        )

    def begin(self, *, writes: bool, compares: bool) -> Sequence[str]:
        if compares:  # else it would lock what it reads
            return ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION")
        return (
            ("START TRANSACTION",) if writes else ("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",)
        )

    # ------------------------------------------------------------ relations

    def find(self, connection: Connection, schema: str | None, name: str) -> Sequence[Found]:
        rows = connection.execute(sa.text(_FIND), {"schema": schema, "name": name})
        return [Found(found, relation) for found, relation in rows]

    def names(self, connection: Connection, schema: str | None) -> Sequence[str]:
        return [name for (name,) in connection.execute(sa.text(_NAMES), {"schema": schema})]

    def describe(self, connection: Connection, found: Found) -> Relation:
        place = {"schema": found.schema, "name": found.name}
        columns = [
            self._column(name, declared, nullable == "YES", collation)
            for name, declared, nullable, collation in connection.execute(sa.text(_COLUMNS), place)
        ]
        parts: dict[str, list[str]] = {}
        unique: dict[str, bool] = {}
        partial = set()
        for index, non_unique, column, cut, kind in connection.execute(sa.text(_INDEXES), place):
            if column is None or cut is not None or kind != "BTREE":
                partial.add(index)
            parts.setdefault(index, []).append(column)
            unique[index] = not int(non_unique)
        indexes = tuple(Index(n, tuple(c), unique[n]) for n, c in parts.items() if n not in partial)
        rows = connection.execute(sa.text(_ROWS), place).scalar()
        return Relation(
            self.name, self.dialect, found.name, tuple(columns), found.schema, tuple(parts.get("PRIMARY", ())),
            indexes, None if rows is None else int(rows),
        )  # fmt: skip

    def result_columns(self, connection: Connection, cursor: Any) -> Sequence[SourceColumn]:
        from pymysql.constants import FIELD_TYPE  # type: ignore[import-untyped]

        names = {
            FIELD_TYPE.TINY: "smallint", FIELD_TYPE.SHORT: "int", FIELD_TYPE.INT24: "int",
            FIELD_TYPE.LONG: "bigint", FIELD_TYPE.LONGLONG: "bigint", FIELD_TYPE.FLOAT: "float",
            FIELD_TYPE.DOUBLE: "double", FIELD_TYPE.DATE: "date", FIELD_TYPE.YEAR: "int",
            FIELD_TYPE.DATETIME: "datetime", FIELD_TYPE.TIMESTAMP: "timestamp",
        }  # fmt: skip
        columns = []
        for name, code, _, length, _, scale, nullable in cursor.description:
            declared = names.get(code, "")
            if code in (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL):
                declared = f"decimal({min(65, length)},{scale})"
            columns.append(self._column(name, declared, bool(nullable), None))
        return columns

    def _column(self, name: str, declared: str, nullable: bool, collation: str | None) -> SourceColumn:
        kind = _kind(declared)
        plain = collation is None or collation.endswith("_nopad_bin")
        return SourceColumn(
            name, declared, self.spark(declared), nullable, collation,
            bool(kind) and kind not in _UNORDERED and plain,
        )  # fmt: skip

    def spark(self, declared: str) -> str:
        kind = _kind(declared)
        if declared in ("tinyint(1)", "bit(1)"):
            return "boolean"
        if kind == "bit":
            return "decimal(20,0)"
        if kind == "decimal":
            return spark_decimal(declared)
        return (_UNSIGNED if "unsigned" in declared and kind in _UNSIGNED else _SPARK).get(kind, "string")

    # ------------------------------------------------------------ SQL

    def read(self, column: SourceColumn, sql: str) -> str:
        kind = _kind(column.declared)
        if kind == "float":
            return f"CAST({sql} AS DOUBLE)"  # it is shown with six digits
        return f"CAST({sql} AS UNSIGNED)" if kind == "bit" else sql

    def instant(self) -> str:
        return "SYSDATE(6)"

    def row_checksum(self, columns: Sequence[tuple[SourceColumn, str]]) -> str:
        parts = []
        for column, sql in columns:
            text = f"CAST({self.read(column, sql)} AS BINARY)"
            whole = f"CONCAT(LENGTH({text}), ':', {text})"
            if _kind(column.declared) in (*_LARGE, ""):  # together they may be more than fits in a packet
                whole = f"CONCAT(LENGTH({text}), '#', MD5({text}))"
            parts.append(f"COALESCE({whole}, '-')")
        return f"MD5(CONCAT({', '.join(parts)}))"

    def range_checksum(self, columns: Sequence[tuple[SourceColumn, str]], source: str) -> str:
        row = self.row_checksum(columns)
        sums = (
            f"SUM(CAST(CONV(SUBSTR({row}, {start}, {length}), 16, 10) AS UNSIGNED))"
            for start, length in PARTS
        )
        return f"COUNT(*), CONCAT_WS(':', {', '.join(sums)}) {source}"

    # ------------------------------------------------------------ plans

    def explain(self, connection: Connection, sql: str, parameters: tuple[Any, ...]) -> list[str]:
        rows = connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).mappings()
        return [
            " ".join(f"{name}={value}" for name, value in row.items() if value is not None) for row in rows
        ]

    def reads_only_index(self, connection: Connection, sql: str, parameters: tuple[Any, ...]) -> bool:
        """The table is the index of the primary key: what is read by it touches the table."""
        rows = connection.exec_driver_sql(f"EXPLAIN {sql}", parameters).mappings().all()
        tables = [row for row in rows if row["table"] and not str(row["table"]).startswith("<")]
        return bool(tables) and all(
            row["key"] not in (None, "PRIMARY") and re.search(r"Using index(?! condition)", str(row["Extra"]))
            for row in tables
        )


def _kind(declared: str) -> str:
    """The name of a type alone.

    >>> _kind("int(10) unsigned"), _kind("double")
    ('int', 'double')
    """
    return re.split(r"[ (]", declared, maxsplit=1)[0].lower()
