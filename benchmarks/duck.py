"""DuckDB with the same tables, as the other engine beside which a refresh is measured."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
from frame import Rows, timed

from estore import TABLES
from estore.stream import KEYS

__all__ = ["Duck"]

_MEMORY = "4GB"


class Duck:
    """A database file with the shop's tables, and for every watched query its result at two moments."""

    def __init__(self, path: Path, staging: str) -> None:
        """Takes the bulk rows that `load` has written to `staging`."""
        self._connection = duckdb.connect(str(path))
        self._connection.execute(f"SET threads = {os.cpu_count()}")
        self._connection.execute(f"SET memory_limit = '{_MEMORY}'")
        for table in TABLES:
            self._connection.execute(
                f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{staging}/{table}/*.parquet')"
            )

    def watch(self, query: str, sql: str) -> None:
        """Keeps the query's result as it is now."""
        self._connection.execute(f"CREATE TABLE {query}_before AS {sql}")

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Brings the tables up to date with what `change_tables` gave: the last change of every key."""
        for table, rows in changes.items():
            columns = [name for name in rows.column_names if name not in {"op", "txn", "seq"}]
            keys = ", ".join(KEYS[table])
            same = " AND ".join(f"{table}.{key} = latest.{key}" for key in KEYS[table])
            self._connection.register("changes", rows)
            self._connection.execute(
                "CREATE OR REPLACE TEMP TABLE latest AS SELECT * FROM changes "
                f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY seq DESC) = 1"
            )
            self._connection.execute(f"DELETE FROM {table} USING latest WHERE {same}")
            self._connection.execute(
                f"INSERT INTO {table} SELECT {', '.join(columns)} FROM latest WHERE op <> 'D'"
            )
            self._connection.unregister("changes")

    def recompute(self, query: str, sql: str) -> tuple[float, float, tuple[Rows, Rows]]:
        """Computes a watched query from scratch into a table, and compares it with the result before.

        Returns:
            Seconds of computing, of computing and comparing, and the rows that are gone and those that are new.
        """
        before, after = f"{query}_before", f"{query}_after"
        recompute, _ = timed(lambda: self._connection.execute(f"CREATE TABLE {after} AS {sql}"))
        compare, rows = timed(
            lambda: self._connection.execute(
                f"SELECT -1 AS weight, * FROM (FROM {before} EXCEPT ALL FROM {after}) "
                f"UNION ALL SELECT 1, * FROM (FROM {after} EXCEPT ALL FROM {before})"
            ).fetchall()
        )
        self._connection.execute(f"DROP TABLE {before}")
        self._connection.execute(f"ALTER TABLE {after} RENAME TO {before}")
        removed = Counter(row[1:] for row in rows if row[0] < 0)
        return recompute, recompute + compare, (removed, Counter(row[1:] for row in rows if row[0] > 0))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Duck:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
