"""Which table fits a query as its destination, and what a table made for it looks like."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as t

from cq_engine.catalog.model import ContinuousQuery, OutputColumn, Table
from cq_engine.core.columns import Column
from cq_engine.core.errors import DestinationError
from cq_engine.core.types import inner_pairs, spark_type

__all__ = ["check", "check_columns", "columns_for", "widens"]

_INTEGERS: dict[type[t.DataType], int] = {t.ByteType: 3, t.ShortType: 5, t.IntegerType: 10, t.LongType: 20}
"""Integer types from narrow to wide, with the decimal digits that hold all of their values."""


def columns_for(query: ContinuousQuery) -> tuple[Column, ...]:
    """The columns of a table made as a destination of `query`: its SELECT list, delta functions included.

    Raises DestinationError where two of them have one name.
    """
    seen: set[str] = set()
    for output in query.outputs:
        if output.name.lower() in seen:
            raise DestinationError(
                f"two columns of continuous query {query.name} are named {output.name}",
                detail="a table made for it would have two columns of one name",
                hint=f"give one of them another name: ... AS {output.name}_2",
            )
        seen.add(output.name.lower())
    return tuple(Column(output.name, output.type) for output in query.outputs)


def check(query: ContinuousQuery, table: Table) -> None:
    """Raises DestinationError unless `table` takes the rows of `query`.

    Its columns must be those of the SELECT list, delta functions included: in order, names regardless of case, types
    equal or wider without loss.
    """
    for place, output in enumerate(query.outputs):
        if place >= len(table.columns):
            raise _misfit(query, table, output, f"table {table.name} has only {len(table.columns)} columns")
        column = table.columns[place]
        if column.name.lower() != output.name.lower():
            detail = f"column {place + 1} of table {table.name} is {column.name}"
            raise _misfit(query, table, output, detail)
        if not widens(spark_type(output.type), spark_type(column.type)):
            detail = f"it is {output.type}, and {table.name}.{column.name} is {column.type}"
            raise _misfit(query, table, output, detail)
    if len(table.columns) > len(query.outputs):
        extra = table.columns[len(query.outputs)]
        raise DestinationError(
            f"column {extra.name} of table {table.name} gets no value from continuous query {query.name}",
            detail=f"the query has {len(query.outputs)} columns, the table {len(table.columns)}",
            hint=_hint(query),
        )
    _check_foreign_keys(query, table)


def check_columns(query: str, target: str, wanted: Sequence[Column], there: Sequence[Column]) -> None:
    """Raises DestinationError unless a table outside of the warehouse takes rows of `wanted`: each has a column of its
    name, regardless of case, of the same or a wider type, and any other column may be left out."""
    by_name = {column.name.lower(): column for column in there}
    hint = "the table must have the columns (" + ", ".join(f"{c.name} {c.type.upper()}" for c in wanted) + ")"
    for column in wanted:
        found = by_name.pop(column.name.lower(), None)
        fits = found is not None and widens(spark_type(column.type), spark_type(found.type))
        if not fits:
            raise DestinationError(
                f"column {column.name} of continuous query {query} does not fit {target}",
                detail=f"it has no column {column.name}"
                if found is None
                else f"it is {column.type}, and there {found.name} is {found.type}",
                hint=hint,
            )
    for column in by_name.values():
        if not column.nullable:
            raise DestinationError(
                f"column {column.name} of {target} gets no value from continuous query {query}",
                detail="it is NOT NULL",
                hint=hint,
            )


def widens(source: t.DataType, target: t.DataType) -> bool:
    """True where every value of `source` is a value of `target`.

    >>> widens(t.IntegerType(), t.LongType()), widens(t.LongType(), t.IntegerType())
    (True, False)
    """
    if source == target or isinstance(source, t.NullType):
        return True
    if isinstance(source, t.StructType) and isinstance(target, t.StructType) and source.names != target.names:
        return False
    if (pairs := inner_pairs(source, target)) is not None:
        return all(widens(*pair) for pair in pairs)
    if isinstance(source, t.DecimalType) and isinstance(target, t.DecimalType):
        whole = target.precision - target.scale >= source.precision - source.scale
        return whole and target.scale >= source.scale
    if type(source) in _INTEGERS:
        return _integer_widens(source, target)
    return isinstance(source, t.FloatType) and isinstance(target, t.DoubleType)


def _integer_widens(source: t.DataType, target: t.DataType) -> bool:
    digits = _INTEGERS[type(source)]
    if isinstance(target, t.DecimalType):
        return target.precision - target.scale >= digits
    if isinstance(target, t.DoubleType):
        return digits <= 10
    if isinstance(target, t.FloatType):
        return digits <= 5
    return _INTEGERS.get(type(target), 0) >= digits


def _misfit(query: ContinuousQuery, table: Table, output: OutputColumn, detail: str) -> DestinationError:
    return DestinationError(
        f"column {output.name} of continuous query {query.name} does not fit table {table.name}",
        detail=detail,
        hint=_hint(query),
    )


def _hint(query: ContinuousQuery) -> str:
    wanted = ", ".join(f"{output.name} {output.type.upper()}" for output in query.outputs)
    return f"the table must have the columns ({wanted})"


def _check_foreign_keys(query: ContinuousQuery, table: Table) -> None:
    for key in table.foreign_keys:
        if key.enforced:
            raise DestinationError(
                f"table {table.name} cannot be a destination of continuous query {query.name}",
                detail=f"its foreign key {key.name} is ENFORCED, and a delivery cannot wait for the rows it refers to",
                hint="declare the foreign key NOT ENFORCED",
            )
