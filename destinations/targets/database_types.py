"""Which type of a database a column of a query has there, and whether a table that is there takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from pyspark.sql import types as t
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from cq_engine.core.columns import Column
from cq_engine.core.errors import DestinationError
from cq_engine.core.types import spark_type
from cq_engine.destinations.fit import widens
from cq_engine.destinations.targets import mariadb_types
from cq_engine.destinations.targets.target import TargetDestination

__all__ = ["EXACT_DIGITS", "check_table", "declared_type"]

EXACT_DIGITS = 15
"""Digits of a decimal that SQLite, which has floating-point numbers only, keeps."""

_SIMPLE: tuple[tuple[type[t.DataType], Any], ...] = (
    (t.BooleanType, sa.Boolean()),
    (t.ByteType, sa.SmallInteger()),
    (t.ShortType, sa.SmallInteger()),
    (t.IntegerType, sa.Integer()),
    (t.LongType, sa.BigInteger()),
    (t.FloatType, sa.REAL()),
    (t.DoubleType, sa.Double()),
    (t.StringType, sa.Text()),
    (t.BinaryType, sa.LargeBinary()),
    (t.DateType, sa.Date()),
    (t.TimeType, sa.Time()),
    (t.TimestampType, sa.TIMESTAMP(timezone=True)),
    (t.TimestampNTZType, sa.TIMESTAMP()),
    (t.YearMonthIntervalType, sa.Integer()),  # months
    (t.DayTimeIntervalType, sa.BigInteger()),  # microseconds
    (t.NullType, sa.Text()),
)
_AS_TEXT = (t.DateType, t.TimeType, t.TimestampType, t.TimestampNTZType, t.BinaryType)
"""What SQLite must not take for a number."""


class _Any(sa.types.UserDefinedType[object]):
    """No type: SQLite keeps what it is given."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return ""


def declared_type(kind: str, dialect: str) -> Any:
    """The SQLAlchemy type of a column for a query's column of type `kind`; arrays, maps, structs and variants are JSON."""
    found = spark_type(kind)
    other = mariadb_types.declared(found) if dialect == "mariadb" else None
    if other is not None:
        return other
    if isinstance(found, t.DecimalType):
        if dialect == "sqlite" and found.precision > EXACT_DIGITS:
            return _Any()
        return sa.Numeric(found.precision, found.scale)
    if isinstance(found, (t.TimestampType, t.TimestampNTZType)) and dialect == "sqlite":
        return sa.TIMESTAMP()
    for python_type, declared in _SIMPLE:
        if isinstance(found, python_type):
            return declared
    return postgresql.JSONB() if dialect == "postgresql" else sa.Text()


def check_table(destination: TargetDestination, connection: Connection, there: Sequence[Any]) -> None:
    """Raises DestinationError unless a table with the columns `there`, as SQLAlchemy finds them, takes the rows: each column
    of its name, regardless of case, and wide enough; others may be left out where they can be."""
    dialect = connection.dialect.name
    by_name = {found["name"].lower(): found for found in there}
    query, shown = destination.query.name, f"table {destination.options['table']}"
    hint = "the table must have the columns (" + ", ".join(
        f"{c.name} {_name(declared_type(c.type, dialect), connection)}" for c in destination.columns
    ) + ")"  # fmt: skip
    for column in destination.columns:
        found = by_name.pop(column.name.lower(), None)
        if found is not None and _takes(found["type"], column, dialect):
            continue
        detail = f"it has no column {column.name}"
        if found is not None:
            detail = f"it is {column.type}, and there {found['name']} is {_name(found['type'], connection)}"
        raise DestinationError(
            f"column {column.name} of continuous query {query} does not fit {shown}", detail=detail, hint=hint
        )
    for found in by_name.values():
        needed = (
            not found["nullable"] and found.get("default") is None and found.get("autoincrement") is not True
        )
        if needed and not found.get("identity") and not found.get("computed"):
            raise DestinationError(
                f"column {found['name']} of {shown} gets no value from continuous query {query}",
                detail="it is NOT NULL and has no default",
                hint=hint,
            )
    if dialect == "mariadb":
        schema, _, name = destination.options["table"].rpartition(".")
        key = destination.key if destination.merges else ()
        mariadb_types.check_storage(connection, schema or None, name, destination.columns, key)


def _name(declared: Any, connection: Connection) -> str:
    return str(declared.compile(dialect=connection.dialect))


def _takes(found: Any, column: Column, dialect: str) -> bool:
    wanted = spark_type(column.type)
    if dialect == "sqlite":
        return _affine(found, wanted)
    if isinstance(wanted, (t.YearMonthIntervalType, t.DayTimeIntervalType)):
        wanted = t.IntegerType() if isinstance(wanted, t.YearMonthIntervalType) else t.LongType()
    if dialect == "mariadb":
        there = mariadb_types.spark_type_of(found, wanted)
        return there is not None and (there == wanted or widens(wanted, there))
    if isinstance(wanted, (t.ArrayType, t.MapType, t.StructType, t.VariantType)):
        return isinstance(found, (sa.JSON, sa.Text))
    if isinstance(found, sa.Numeric) and not isinstance(found, sa.Float) and found.precision is None:
        return isinstance(wanted, (t.DecimalType, t.IntegralType))
    if isinstance(found, sa.String) and found.length is not None:
        return False  # a string may have any length
    there = _spark(found)
    return there is not None and widens(wanted, there)


def _spark(found: Any) -> t.DataType | None:
    """The type of Spark that has the same values."""
    if isinstance(found, sa.Float):
        return t.FloatType() if isinstance(found, sa.REAL) else t.DoubleType()
    if isinstance(found, sa.Numeric):
        return t.DecimalType(min(38, found.precision or 38), min(38, found.scale or 0))
    if isinstance(found, sa.DateTime):
        return t.TimestampType() if found.timezone else t.TimestampNTZType()
    if isinstance(found, sa.Time):
        return t.TimeType()
    for generic, there in (
        (sa.Boolean, t.BooleanType()),
        (sa.BigInteger, t.LongType()),
        (sa.SmallInteger, t.ShortType()),
        (sa.Integer, t.IntegerType()),
        (sa.String, t.StringType()),
        (sa.LargeBinary, t.BinaryType()),
        (postgresql.BYTEA, t.BinaryType()),
        (sa.Date, t.DateType()),
    ):
        if isinstance(found, generic):
            return there
    return None


def _affine(found: Any, wanted: t.DataType) -> bool:
    """Whether SQLite keeps the values in a column so declared: of a declaration it makes an affinity, and no width."""
    if isinstance(found, (sa.types.NullType, sa.LargeBinary)):
        return True
    is_time = isinstance(wanted, _AS_TEXT) and isinstance(
        found, (sa.Date, sa.Time, sa.DateTime, sa.LargeBinary)
    )
    if isinstance(wanted, (t.StringType, t.ArrayType, t.MapType, t.StructType, t.VariantType, *_AS_TEXT)):
        return is_time or isinstance(found, sa.String)
    if isinstance(wanted, t.DecimalType):
        return isinstance(found, sa.String) or (
            isinstance(found, sa.Numeric) and wanted.precision <= EXACT_DIGITS
        )
    if isinstance(wanted, (t.FloatType, t.DoubleType)):
        return isinstance(found, (sa.Numeric, sa.Float))
    return isinstance(found, (sa.Integer, sa.Boolean, sa.Numeric)) and not isinstance(found, sa.Float)
