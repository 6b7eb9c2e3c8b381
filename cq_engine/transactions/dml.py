"""INSERT, UPDATE, DELETE and TRUNCATE as Spark queries that compute their effect, changing nothing.

An effect is either rows to insert (the table's own columns), or *pairs*: `_kind` (I, U, D), `_o0 ..` the row that
was seen and `_n0 ..` the row that takes its place, over the table's physical columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import sqlglot
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from sqlglot import exp
from sqlglot.errors import SqlglotError

from cq_engine.catalog.model import CatalogState, Table
from cq_engine.catalog.names import check_snapshot
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, CQSyntaxError, location_at
from cq_engine.core.types import arrow_type
from cq_engine.query.query import Resolver, unknown_table
from cq_engine.spark.literals import literal_rows
from cq_engine.spark.sql import Composed, fresh_name, quote
from cq_engine.spark.store_assignment import assign, select
from cq_engine.transactions.clauses import Clauses, Span

__all__ = [
    "Effect",
    "delete",
    "find_column",
    "insert",
    "pairs",
    "target",
    "target_columns",
    "truncate",
    "update",
]

_QUERY_WORDS = ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "(", "MAP", "REDUCE")


@dataclass(frozen=True)
class Effect:
    """What a statement does to one table. Exactly one of `rows`, `inserts` and `pairs` is set, or none (nothing)."""

    table: Table
    rows: pa.Table | None = None
    """Rows to insert, evaluated already."""
    inserts: DataFrame | None = None
    pairs: DataFrame | None = None
    overwrite: bool = False
    """The rows replace everything that was in the table."""
    reads: bool = False
    """The statement looked at the table itself."""


def find_table(state: CatalogState, clauses: Clauses, at: int) -> Table:
    """The table that the token at `at` names. Raises AnalysisError with its place."""
    name = clauses.name(at)
    start, _ = clauses.offsets((at, at + 1))
    location = location_at(clauses.text, start)
    if clauses.word(at + 1) == ".":
        raise AnalysisError("table names have one part", hint="leave the database out", location=location)
    table = state.tables.get(name.lower())
    if table is None:
        raise unknown_table(state, name, location)
    check_snapshot(table, clauses.word(0), location)
    return table


def find_column(table: Table, name: str) -> int:
    """The position of a column, by its name in any case. Raises AnalysisError."""
    for n, column in enumerate(table.columns):
        if column.name.lower() == name.lower():
            return n
    known = ", ".join(c.name for c in table.columns)
    raise AnalysisError(f"table {table.name} has no column {name}", hint=f"its columns are {known}")


# ---------------------------------------------------------------- INSERT


def insert(clauses: Clauses, resolver: Resolver) -> Effect:
    """INSERT {INTO | OVERWRITE} [TABLE] t [(columns) | BY NAME] query."""
    at = clauses.find(0, "INSERT")
    prefix = (0, at)
    overwrite = clauses.word(at + 1) == "OVERWRITE"
    at += 2 if clauses.word(at + 1) in ("INTO", "OVERWRITE") else 1
    at += 1 if clauses.word(at) == "TABLE" else 0
    table = find_table(resolver.state, clauses, at)
    names, by_name, at = _insert_columns(clauses, at + 1)
    if clauses.word(at) not in _QUERY_WORDS:
        raise clauses.error(
            "INSERT needs a query or VALUES here", at, "PARTITION and REPLACE are not supported"
        )
    span = (at, len(clauses))
    wanted = [find_column(table, name) for name in names] if names else list(range(len(table.columns)))
    if len(set(wanted)) < len(wanted):
        raise AnalysisError(f"INSERT INTO {table.name} names a column twice")
    if prefix[1] == 0 and not by_name:
        rows = _literals(clauses, span, [table.columns[n] for n in wanted], resolver)
        if rows is not None:
            return Effect(table, rows=rows, overwrite=overwrite)
    frame = resolver.frame(_source(clauses, prefix, span))
    columns = _by_name(table, frame) if by_name else _by_position(table, frame, wanted, bool(names))
    return Effect(table, inserts=columns, overwrite=overwrite)


def _insert_columns(clauses: Clauses, at: int) -> tuple[list[str], bool, int]:
    if clauses.is_at(at, "BY", "NAME"):
        return [], True, at + 2
    if clauses.word(at) == "(" and clauses.word(at + 1) not in _QUERY_WORDS:
        closing = clauses.closing(at)
        return clauses.names((at + 1, closing)), False, closing + 1
    return [], False, at


def _literals(clauses: Clauses, span: Span, columns: Sequence[Column], resolver: Resolver) -> pa.Table | None:
    text = clauses.slice(span)
    if (
        clauses.word(span[0]) != "VALUES"
        or "\\" in text
        or clauses.find(span[0], "AS", end=span[1]) < span[1]
    ):
        return None
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
    except SqlglotError:
        return None
    if not isinstance(tree, exp.Values) or tree.args.get("alias"):
        return None
    return literal_rows(tree, columns, resolver.services.time_zone)


def _source(clauses: Clauses, prefix: Span, span: Span) -> Composed:
    """The source query, with the CTEs that stood before INSERT, and NULL for DEFAULT in VALUES."""
    composed = Composed(clauses.text)
    if prefix[1] > prefix[0]:
        composed.take(*clauses.offsets(prefix)).add(" ")
    word = clauses.word(span[0])
    if word == "TABLE":
        return composed.add("SELECT * FROM ").take(*clauses.offsets((span[0] + 1, span[1])))
    if word == "VALUES":
        at = clauses.offsets(span)[0]
        for n in range(*span):
            if clauses.word(n) == "DEFAULT":
                start, end = clauses.offsets((n, n + 1))
                composed.take(at, start).add("NULL")
                at = end
        return composed.take(at, clauses.offsets(span)[1])
    if prefix[1] > prefix[0]:
        return composed.add("SELECT * FROM (").take(*clauses.offsets(span)).add(")")
    return composed.take(*clauses.offsets(span))


def _by_position(table: Table, frame: DataFrame, wanted: Sequence[int], named: bool) -> DataFrame:
    if len(frame.columns) != len(wanted):
        listed = "named" if named else f"of table {table.name}"
        raise AnalysisError(
            f"INSERT INTO {table.name} gives {len(frame.columns)} values for the {len(wanted)} columns {listed}",
            hint="name the columns: INSERT INTO t (a, b) ...; those left out become NULL",
        )
    plain = frame.toDF(*(f"_s{n}" for n in range(len(wanted))))
    sources = {column: f"_s{n}" for n, column in enumerate(wanted)}
    return plain.select(
        *select(table, table.columns, [sources.get(n) for n in range(len(table.columns))], plain.schema)
    )


def _by_name(table: Table, frame: DataFrame) -> DataFrame:
    wanted = [find_column(table, name) for name in frame.columns]
    if len(set(wanted)) < len(wanted):
        raise AnalysisError(f"the query that fills {table.name} by name gives a column twice")
    return _by_position(table, frame, wanted, True)


# ---------------------------------------------------------------- UPDATE, DELETE, TRUNCATE


def target(
    clauses: Clauses, resolver: Resolver, at: int, end: int, where: int | None = None
) -> tuple[Table, str, str]:
    """`t [[AS] alias]` of UPDATE, DELETE or MERGE.

    `where` is the token of a WHERE clause, outside of which no row of the target matters.

    Returns the table, the fresh name that stands for its physical rows, and the alias.
    """
    table = find_table(resolver.state, clauses, at)
    alias = at + (2 if clauses.word(at + 1) == "AS" else 1)
    if alias < end - 1:
        raise clauses.error("the target is a table and an alias", alias + 1)
    name = fresh_name(table.name)
    shown = clauses.name(alias) if alias < end else table.name
    restrict = None if where is None else _restriction(clauses, where, table, shown)
    resolver.extra[name] = resolver.physical(table, restrict)
    resolver.read.add(table.name)
    return table, name, shown


def _restriction(clauses: Clauses, where: int, table: Table, alias: str) -> dict[str, pa.Array] | None:
    """What `column = literal` and `column IN (literals)` at the top of WHERE say: column → wanted values."""
    try:
        tree = sqlglot.parse_one("SELECT 1 " + clauses.slice((where, len(clauses))), dialect="spark")
    except SqlglotError:
        return None
    condition = tree.find(exp.Where)
    found: dict[str, pa.Array] = {}
    whole = condition.this if condition is not None else None
    for part in whole.flatten() if isinstance(whole, exp.And) else [whole]:
        column, values = _wanted_column(part)
        if (
            column is None
            or (column.table and column.table.lower() != alias.lower())
            or column.args.get("db")
        ):
            continue
        kind = next((c for c in table.columns if c.name.lower() == column.name.lower()), None)
        listed = None if kind is None else _plain(kind.type, values)
        if kind is not None and listed is not None and kind.name not in found:
            found[kind.name] = listed
    return found or None


def _wanted_column(part: object) -> tuple[exp.Column | None, list[exp.Expression]]:
    if isinstance(part, exp.EQ):
        for column, value in ((part.left, part.right), (part.right, part.left)):
            if isinstance(column, exp.Column) and isinstance(value, exp.Literal):
                return column, [value]
    if isinstance(part, exp.In) and isinstance(part.this, exp.Column) and part.expressions:
        return part.this, list(part.expressions)
    return None, []


def _plain(kind: str, values: Sequence[exp.Expression]) -> pa.Array | None:
    """Literals that compare with a column of this type as they stand, else None."""
    if not all(isinstance(value, exp.Literal) for value in values):
        return None
    if kind in ("int", "bigint") and all(
        not v.is_string and v.this.isdigit() and int(v.this) < 2**31 for v in values
    ):
        return pa.array([int(v.this) for v in values], arrow_type(kind))
    if kind == "string" and all(v.is_string and "\\" not in v.this for v in values):
        return pa.array([v.this for v in values], pa.string())
    return None


def update(clauses: Clauses, resolver: Resolver) -> Effect:
    """UPDATE t [alias] SET column = expression, ... [WHERE condition]."""
    start = clauses.find(0, "UPDATE")
    setting = clauses.find(start, "SET")
    where = clauses.find(setting, "WHERE")
    table, name, alias = target(clauses, resolver, start + 1, setting, where)
    changes = [
        (find_column(table, column), span) for column, span in clauses.assignments((setting + 1, where))
    ]
    if len({n for n, _ in changes}) < len(changes):
        raise AnalysisError(f"UPDATE {table.name} sets a column twice")
    composed = _with(clauses, start).add("SELECT " + target_columns(table, alias))
    for n, span in changes:
        expression(composed.add(", "), clauses, span).add(f" AS _x{n}")
    composed.add(f" FROM {name} AS {quote(alias)} ")
    frame = resolver.frame(
        composed.take(*clauses.offsets((where, len(clauses)))) if where < len(clauses) else composed
    )
    values = {n: assign(table, table.columns[n], f"_x{n}", frame.schema) for n, _ in changes}
    return Effect(table, pairs=pairs(table, frame, f.lit("U"), values), reads=True)


def delete(clauses: Clauses, resolver: Resolver) -> Effect:
    """DELETE FROM t [alias] [WHERE condition]."""
    start = clauses.find(0, "DELETE")
    at = start + (2 if clauses.word(start + 1) == "FROM" else 1)
    where = clauses.find(at, "WHERE")
    table, name, alias = target(clauses, resolver, at, where, where)
    composed = _with(clauses, start).add(
        f"SELECT {target_columns(table, alias)} FROM {name} AS {quote(alias)} "
    )
    frame = resolver.frame(
        composed.take(*clauses.offsets((where, len(clauses)))) if where < len(clauses) else composed
    )
    return Effect(table, pairs=pairs(table, frame, f.lit("D"), {}), reads=True)


def truncate(clauses: Clauses, resolver: Resolver) -> Effect:
    """TRUNCATE [TABLE] t."""
    at = 2 if clauses.word(1) == "TABLE" else 1
    table = find_table(resolver.state, clauses, at)
    if at + 1 < len(clauses):
        raise clauses.error("TRUNCATE TABLE takes a table's name only", at + 1)
    return Effect(table, overwrite=True)


def expression(composed: Composed, clauses: Clauses, span: Span) -> Composed:
    """Appends an assigned expression; DEFAULT is NULL."""
    if span[1] - span[0] == 1 and clauses.word(span[0]) == "DEFAULT":
        return composed.add("NULL")
    if span[0] >= span[1]:
        raise CQSyntaxError("an assignment is `column = expression`")
    return composed.add("(").take(*clauses.offsets(span)).add(")")


def target_columns(table: Table, alias: str) -> str:
    """The SELECT list that gives the target's physical columns as `_o0 ..`."""
    columns = table.storage.physical_columns
    return ", ".join(f"{quote(alias)}.{quote(c.name)} AS _o{n}" for n, c in enumerate(columns))


def pairs(table: Table, frame: DataFrame, kind: SparkColumn, values: Mapping[int, SparkColumn]) -> DataFrame:
    """A frame with `_o0 ..` as an effect's pairs, with new `values` by column position."""
    old = [f.col(f"_o{n}") for n in range(len(table.storage.physical_columns))]
    new = [values.get(n, column).alias(f"_n{n}") for n, column in enumerate(old)]
    return frame.select(kind.alias("_kind"), *old, *new)


def _with(clauses: Clauses, start: int) -> Composed:
    composed = Composed(clauses.text)
    return composed.take(*clauses.offsets((0, start))).add(" ") if start else composed
