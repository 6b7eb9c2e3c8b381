"""SQLite: PRAGMAs, affinities, checksums in Python, and EXPLAIN QUERY PLAN."""

from __future__ import annotations

import hashlib
import re
import struct
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from cq_engine.sources.sql.address import Options
from cq_engine.sources.sql.model import Index, Relation, SourceColumn
from cq_engine.sources.sql.servers.server import PARTS, Found, Server, spark_decimal

__all__ = ["SQLite"]

_ROW = "cq_row_checksum"
_RANGE = "cq_range_checksum"
_ARGUMENTS = 100
"""So many arguments a function may have in every build."""
_STEPS = 10_000
"""So many instructions of its machine pass between two looks at the clock."""

_EXACT = (
    ("bool", "boolean"),
    ("int", "bigint"),
    ("char", "string"),
    ("clob", "string"),
    ("text", "string"),
    ("json", "string"),
    ("uuid", "string"),
    ("blob", "binary"),
    ("real", "double"),
    ("floa", "double"),
    ("doub", "double"),
    ("datetime", "timestamp_ntz"),
    ("timestamp", "timestamp_ntz"),
    ("date", "date"),
    ("time", "time(6)"),
)


class SQLite(Server):
    mark = "?"
    row_list = (
        "SELECT * FROM (VALUES {})"  # a compound SELECT, which VALUES of several rows is, uses no index
    )
    compares_rows = True
    probe = "SELECT count(*) FROM sqlite_master"  # what asks for less does not look at the file

    def __init__(self) -> None:
        super().__init__("sqlite", "sqlite")

    def prepare(self, driver: Any, options: Options) -> None:
        driver.isolation_level = None  # the driver would end transactions by itself
        driver.create_function(_ROW, -1, _row_checksum, deterministic=True)
        driver.create_aggregate(_RANGE, -1, _RangeChecksum)

    def begin(self, *, writes: bool, compares: bool) -> Sequence[str]:
        return ("BEGIN IMMEDIATE",) if writes else ("PRAGMA query_only = ON", "BEGIN")

    def limit(self, driver: Any, timeout: float | None) -> None:
        """Gives the statement that comes next on a connection of the driver so many seconds."""
        if timeout is not None:
            end = time.monotonic() + timeout
            driver.set_progress_handler(lambda: time.monotonic() > end, _STEPS)

    # ------------------------------------------------------------ relations

    def find(self, connection: Connection, schema: str | None, name: str) -> Sequence[Found]:
        return [
            Found(schema, found) for found in self.names(connection, schema) if found.lower() == name.lower()
        ]

    def names(self, connection: Connection, schema: str | None) -> Sequence[str]:
        schemas = [row[1] for row in connection.exec_driver_sql("PRAGMA database_list")]
        if schema is not None and schema.lower() not in [known.lower() for known in schemas]:
            return []
        place = self.quoted(schema or "main")
        found = connection.exec_driver_sql(
            f"SELECT name FROM {place}.sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        )
        return [name for (name,) in found]

    def describe(self, connection: Connection, found: Found) -> Relation:
        place, name = self.quoted(found.schema or "main"), self.quoted(found.name)
        run = connection.exec_driver_sql
        rows = [row for row in run(f"PRAGMA {place}.table_xinfo({name})") if row[6] != 1]
        by_place = sorted((row[5], row[1]) for row in rows if row[5])
        key = tuple(name for _, name in by_place)
        indexes, collations = self._indexes(connection, place, found.name)
        is_row_id = len(key) == 1 and any(row[5] and row[2].upper() == "INTEGER" for row in rows)
        if key and not any(index.columns == key for index in indexes):
            indexes.insert(0, Index("primary key", key, True))
        in_bytes = run("PRAGMA encoding").scalar_one() == "UTF-8"
        columns = []
        for _, name, declared, not_null, _, in_key, _ in rows:
            kind, collation = self.spark(declared), collations.get(name)
            ordered = kind in ("bigint", "double") or (
                in_bytes and collation == "BINARY" and kind in ("string", "binary")
            )
            columns.append(
                SourceColumn(
                    name, declared, kind, not (not_null or (in_key and is_row_id)), collation, ordered
                )
            )
        return Relation(
            self.name, self.dialect, found.name, tuple(columns), found.schema, key, tuple(indexes),
            self._rows(connection, place, found.name),
        )  # fmt: skip

    def _indexes(self, connection: Connection, place: str, name: str) -> tuple[list[Index], dict[str, str]]:
        """The indexes, and the collations by which they compare columns."""
        indexes: list[Index] = []
        collations: dict[str, str] = {}
        found = connection.exec_driver_sql(f"PRAGMA {place}.index_list({self.quoted(name)})").all()
        for _, index, unique, origin, partial in found:
            parts = connection.exec_driver_sql(f"PRAGMA {place}.index_xinfo({self.quoted(index)})").all()
            parts = [part for part in parts if part[5]]
            if partial or any(part[2] is None for part in parts):
                continue
            made = Index(index, tuple(part[2] for part in parts), bool(unique))
            indexes.insert(0 if origin == "pk" else len(indexes), made)
            collations.update(
                {part[2]: part[4] for part in parts if part[2] not in collations or origin == "pk"}
            )
        return indexes, collations

    def _rows(self, connection: Connection, place: str, name: str) -> int | None:
        """What ANALYZE has counted, else the largest row number, which is found at once."""
        for sql, parameters in (
            (f"SELECT max(CAST(stat AS INTEGER)) FROM {place}.sqlite_stat1 WHERE tbl = ?", (name,)),
            (f"SELECT max(_rowid_) FROM {place}.{self.quoted(name)}", ()),
        ):
            try:
                found = connection.exec_driver_sql(sql, parameters).scalar()
            except OperationalError:
                continue
            if found is not None:
                return int(found)
        return None

    def spark(self, declared: str) -> str:
        text = declared.lower()
        if re.search(r"dec|num|money", text):
            return spark_decimal(text) if "dec" in text or "(" in text else "decimal(38,18)"
        return next((kind for word, kind in _EXACT if word in text), "string")

    # ------------------------------------------------------------ SQL

    def row_checksum(self, columns: Sequence[tuple[SourceColumn, str]]) -> str:
        return f"{_ROW}({', '.join(self._arguments(columns))})"

    def range_checksum(self, columns: Sequence[tuple[SourceColumn, str]], source: str) -> str:
        return f"COUNT(*), {_RANGE}({', '.join(self._arguments(columns))}) {source}"

    def _arguments(self, columns: Sequence[tuple[SourceColumn, str]]) -> list[str]:
        sqls = [sql for _, sql in columns]
        while len(sqls) > _ARGUMENTS:
            sqls = [f"{_ROW}({', '.join(sqls[:_ARGUMENTS])})", *sqls[_ARGUMENTS:]]
        return sqls

    def instant(self) -> str:
        return "strftime('%Y-%m-%d %H:%M:%f', 'now')"

    # ------------------------------------------------------------ plans

    def explain(self, connection: Connection, sql: str, parameters: tuple[Any, ...]) -> list[str]:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters)
        return [str(row[3]) for row in rows]

    def reads_only_index(self, connection: Connection, sql: str, parameters: tuple[Any, ...]) -> bool:
        lines = self.explain(connection, sql, parameters)
        tables = [line for line in lines if re.match(r"(SCAN|SEARCH) (?!CONSTANT|\(|\d)", line)]
        return bool(tables) and all("USING COVERING INDEX" in line for line in tables)


def _row_checksum(*values: Any) -> str:
    whole = hashlib.md5(usedforsecurity=False)
    for value in values:
        whole.update(_text(value))
    return whole.hexdigest()


def _text(value: Any) -> bytes:
    """A value with its type and length in front."""
    if value is None:
        return b"-"
    if isinstance(value, int):
        kind, text = b"i", b"%d" % value
    elif isinstance(value, float):
        kind, text = b"f", struct.pack(">d", value)
    elif isinstance(value, str):
        kind, text = b"s", value.encode("utf-8", "surrogatepass")
    else:
        kind, text = b"b", bytes(value)
    return kind + b"%d:" % len(text) + text


class _RangeChecksum:
    """Adds up the checksums of rows in numbers of Python, which do not overflow."""

    def __init__(self) -> None:
        self._sums = [0] * len(PARTS)

    def step(self, *values: Any) -> None:
        row = _row_checksum(*values)
        for n, (start, length) in enumerate(PARTS):
            self._sums[n] += int(row[start - 1 : start - 1 + length], 16)

    def finalize(self) -> str:
        return ":".join(map(str, self._sums))
