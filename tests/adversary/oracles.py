"""What a query gives, by those who have no part in the engine: DuckDB over a copy of the tables, and Spark.

DuckDB's copy is made from the model of the tables, not from the engine. The query is translated by sqlglot.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Iterable
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from tests.adversary.tables import Model
from tests.oracle.law import Row, row_of

__all__ = ["DIFFERENCES", "Copies", "normal", "translated"]

DIFFERENCES: tuple[tuple[str, str], ...] = (
    (r"PIVOT \(count\(", "where no row is counted, Spark's PIVOT has NULL and DuckDB's 0"),
)
"""Where DuckDB, or the translation into its dialect, means something else: such queries are Spark's alone to judge.

The grammar goes round what is known from `tests.oracle`: `count_if` of no rows is NULL in DuckDB, so it stands in a
COALESCE; ROLLUP over no rows gives no row in Spark, so it has `HAVING count(*) > 0`. STDDEV and VARIANCE of infinity
are an error in DuckDB.
"""


def normal(row: Iterable[Any]) -> Row:
    """A row in one form, whoever gave it."""
    return row_of(_plain(value) for value in row)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    return value


@functools.lru_cache(maxsize=10_000)
def translated(text: str) -> str:
    """A query of Spark as DuckDB reads it. Times have no zone there: all of them are in UTC."""
    tree = sqlglot.parse_one(text, read="spark")
    for kind in tree.find_all(exp.DataType):
        if kind.this in (exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ):
            kind.set("this", exp.DataType.Type.TIMESTAMP)
    for cast in list(tree.find_all(exp.TryCast)):
        cast.replace(exp.Cast(this=cast.this, to=cast.args["to"]))
    for select in tree.find_all(exp.Select):
        for shown in select.expressions:
            value = shown.unalias()
            if _asks_in(value):
                value.replace(exp.Coalesce(this=value.copy(), expressions=[exp.false()]))
    return tree.sql("duckdb").replace("TIMESTAMPTZ", "TIMESTAMP")


def _asks_in(value: exp.Expr) -> bool:
    """Whether it is [NOT] IN with a subquery: shown as a value, that is never NULL in Spark."""
    bare = value.unnest()
    if isinstance(bare, exp.Not):
        bare = bare.this.unnest()
    return isinstance(bare, exp.In) and bare.args.get("query") is not None


class Copies:
    """The tables at every version, in DuckDB."""

    def __init__(self) -> None:
        self.base = duckdb.connect()
        self.base.execute("SET threads = 1")
        self.base.execute("SET TimeZone = 'UTC'")
        self.base.execute("PRAGMA disable_optimizer")
        self.results: dict[tuple[str, tuple[int, ...]], list[Row]] = {}
        self.refused: dict[str, str] = {}
        self.contents: list[dict[str, int]] = []
        """By version, which version each table is as it was at."""
        self.newest: Model | None = None

    def add(self, version: int, model: Model) -> None:
        self.base.execute(f"CREATE SCHEMA v{version}")
        self.contents.append({})
        for table in model.tables:
            same = self.newest is not None and self.newest.rows[table.name] == model.rows[table.name]
            self.contents[version][table.name] = self.contents[-2][table.name] if same else version
            self.base.register("staged", table.to_arrow(model.rows[table.name]))
            self.base.execute(f"CREATE TABLE v{version}.{table.name} AS SELECT * FROM staged")
            self.base.unregister("staged")
        self.newest = model

    def result(self, text: str, version: int) -> list[Row] | None:
        """The query's rows at a version; None where DuckDB cannot tell."""
        why = next((why for pattern, why in DIFFERENCES if re.search(pattern, text)), None)
        if why is not None:
            self.refused.setdefault(text, why)
        if text in self.refused:
            return None
        found = (text, tuple(at for name, at in self.contents[version].items() if f"{name} " in text))
        if found not in self.results:
            try:
                self.base.execute(f"USE v{version}")
                rows = self.base.execute(translated(text)).fetchall()
            except (duckdb.Error, sqlglot.errors.SqlglotError) as error:
                self.refused[text] = f"{type(error).__name__}: {error}"
                return None
            self.results[found] = [normal(row) for row in rows]
        return self.results[found]

    def close(self) -> None:
        self.base.close()
