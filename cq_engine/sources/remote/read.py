"""SELECT from a table that stays at its source: one statement in the source's SQL, as of now.

Columns that the query does not name are not read, and conditions go along where the source cannot take less for true than the
warehouse does. Up to `Limits.pending_rows` rows come through the driver. Of more, the statement is run by one task of Spark, when
the query is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.catalog.model import Table
from cq_engine.context.services import Condition, RemoteRows, Services, Wanted
from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError
from cq_engine.core.types import spark_schema
from cq_engine.sources.remote.place import INTEGERS, Place, comparable, family, opened
from cq_engine.sources.sql.model import SourceColumn, Statement
from cq_engine.sources.sql.parts import Parts
from cq_engine.sources.sql.text import Text
from cq_engine.spark.sql import quote
from cq_engine.storage.rows import conform

__all__ = ["read"]


def read(services: Services, table: Table, wanted: Wanted, *, once: bool) -> RemoteRows:
    """The rows of `table` that a query wants, and maybe others, as they are now at its source.

    Raises SourceError where the source cannot be read, has a value that does not fit, or, with `once`, where there are more
    than `Limits.pending_rows` rows.
    """
    columns = _chosen(table, wanted)
    with opened(services.catalog.state, table) as place:
        statement = statement_of(place, columns, wanted.conditions)
        rows = _few(place, statement, columns, services.limits.pending_rows)
        assert table.remote is not None
        note = f"{table.name}: read at source {table.remote.source} as it is now: {_shown(statement)}"
        if rows is not None:
            return RemoteRows(services.reader.frame(conform(rows, table.columns), table.columns), note)
        if once:
            raise SourceError(
                f"the statement needs more than {services.limits.pending_rows} rows of table {table.name}",
                detail=f"it stays at source {table.remote.source}, and a transaction takes so many rows of it at most",
                hint="restrict it by WHERE, or let CREATE CAPTURE keep a copy",
            )
        names = tuple(column.name for column in columns)
        database = place.database
        parts = Parts(
            database.declared, database.address, "", (statement,), tuple(columns), names, 0, in_order=False
        )
    return RemoteRows(_whole(_by_task(services, parts), table), note)


def _chosen(table: Table, wanted: Wanted) -> list[Column]:
    """The columns that are read: one at least."""
    if wanted.columns is None:
        return list(table.columns)
    chosen = [column for column in table.columns if column.name.lower() in wanted.columns]
    key = {name.lower() for name in (table.primary_key or (table.columns[0].name,))[:1]}
    return chosen or [column for column in table.columns if column.name.lower() in key]


def statement_of(place: Place, columns: Sequence[Column], conditions: Sequence[Condition]) -> Statement:
    """What asks the source for columns of the rows for which the conditions hold, as far as these go along."""
    text = Text(place.selection)
    wanted = [text.read(place.source_column(column.name), column.name) for column in columns]
    types = {column.name: column for column in place.table.columns}
    where = []
    for condition in conditions:
        source = place.source_column(condition.column)
        if _goes_along(place, source, types[condition.column], condition):
            where.append(_condition(text, source, condition))
    return text.select(wanted, where)


def _condition(text: Text, source: SourceColumn, condition: Condition) -> str:
    if condition.operator == "IN":
        return text.among([source], [[value] for value in condition.values])
    sql = text.column(source)
    if not condition.values:
        return f"{sql} {condition.operator}"
    return f"{sql} {condition.operator} {text.value(source, condition.values[0])}"


def _goes_along(place: Place, source: SourceColumn, column: Column, condition: Condition) -> bool:
    """Whether the source lets all rows through for which the warehouse takes the condition for true."""
    if not condition.values:
        return True
    if not comparable(place.selection.relation, source, column):
        return False
    is_equality = condition.operator in ("=", "IN")
    if not is_equality and not source.ordered:
        return False
    return all(_has(source.type, value) for value in condition.values)


def _has(kind: str, value: object) -> bool:
    """Whether a source's type has the value of a literal."""
    of = family(kind)
    if of == "integer":
        return isinstance(value, int) and abs(value) < 2 ** INTEGERS[kind]
    if of == "decimal":
        return isinstance(value, int | Decimal)
    return isinstance(value, {"string": str, "date": date}.get(of, ()))


def _few(place: Place, statement: Statement, columns: Sequence[Column], most: int) -> pa.Table | None:
    """All rows of a statement; None where they are more than `most`."""
    found, count = [], 0
    with place.database.connect() as session:
        for batch in session.batches(statement, columns):
            found.append(batch)
            count += len(batch)
            if count > most:
                return None
        return pa.Table.from_batches(found or [session.to_batch(statement, columns, [])])


def _by_task(services: Services, parts: Parts) -> DataFrame:
    return services.spark().range(0, 1, 1, 1).mapInArrow(_task(parts), spark_schema(parts.columns))


def _task(parts: Parts) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What runs in a Python process of Spark."""
    return parts.read


def _whole(frame: DataFrame, table: Table) -> DataFrame:
    """The frame with all columns of the table: NULL in those that were not read."""
    known = {name.lower() for name in frame.columns}
    return frame.selectExpr(
        *(
            quote(c.name) if c.name.lower() in known else f"CAST(NULL AS {c.type}) AS {quote(c.name)}"
            for c in table.columns
        )
    )


def _shown(statement: Statement) -> str:
    """A statement for a person, with its parameters behind it."""
    values = ", ".join(map(repr, statement.parameters))
    return f"{statement.sql} [{values}]" if values else statement.sql
