"""Types of MariaDB: which one has a type's values, what a column there keeps, and the two things that SQLAlchemy does not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from pyspark.sql import types as t
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection

from cq_engine.core.columns import Column
from cq_engine.core.errors import DestinationError
from cq_engine.core.types import spark_type

__all__ = ["check_storage", "declared", "spark_type_of"]

_COLLATION = "utf8mb4_nopad_bin"
"""By which two texts are equal that have the same characters; others ignore case, accents or blanks at the end."""
_LONG = mysql.LONGTEXT(charset="utf8mb4", collation=_COLLATION)
_MICROSECONDS = 6
_NESTED = (t.ArrayType, t.MapType, t.StructType, t.VariantType)
"""Are JSON there, in which nothing but characters that differ makes two texts differ."""

_OTHERS: tuple[tuple[type[t.DataType], Any], ...] = (
    (t.ByteType, mysql.TINYINT()),
    (t.FloatType, sa.Double()),  # FLOAT is shown with six digits
    (t.StringType, _LONG),
    (t.BinaryType, mysql.LONGBLOB()),
    (t.TimeType, mysql.TIME(fsp=_MICROSECONDS)),
    (t.TimestampType, mysql.DATETIME(fsp=_MICROSECONDS)),  # in UTC: TIMESTAMP ends with the year 2038
    (t.TimestampNTZType, mysql.DATETIME(fsp=_MICROSECONDS)),
    (t.NullType, _LONG),
    (t.ArrayType, mysql.JSON()),
    (t.MapType, mysql.JSON()),
    (t.StructType, mysql.JSON()),
    (t.VariantType, mysql.JSON()),
)


def declared(kind: t.DataType) -> Any:
    """The SQLAlchemy type, where it is not the one that other databases have; else None."""
    return next((there for of, there in _OTHERS if isinstance(kind, of)), None)


def spark_type_of(found: Any, wanted: t.DataType) -> t.DataType | None:
    """The type of Spark whose values a column of type `found` keeps, as a wider type of `wanted`; None for no such type."""
    if getattr(found, "unsigned", False) or getattr(found, "zerofill", False):
        return None
    if isinstance(found, mysql.TINYINT):
        return t.BooleanType() if isinstance(wanted, t.BooleanType) else t.ByteType()
    if isinstance(found, (mysql.FLOAT, mysql.DOUBLE)):
        rounds = found.scale is not None
        return None if rounds else t.FloatType() if isinstance(found, mysql.FLOAT) else t.DoubleType()
    if isinstance(found, mysql.DECIMAL):
        return t.DecimalType(min(38, found.precision or 10), min(38, found.scale or 0))
    if isinstance(found, (mysql.DATETIME, mysql.TIME)):
        if found.fsp != _MICROSECONDS:
            return None
        is_instant = isinstance(wanted, t.TimestampType)
        return (
            t.TimeType()
            if isinstance(found, mysql.TIME)
            else t.TimestampType()
            if is_instant
            else t.TimestampNTZType()
        )
    if isinstance(found, (mysql.LONGTEXT, mysql.JSON)):
        return wanted if isinstance(wanted, _NESTED) else t.StringType()
    for of, there in (
        (mysql.BIGINT, t.LongType()),
        (mysql.INTEGER, t.IntegerType()),
        (mysql.MEDIUMINT, t.ShortType()),
        (mysql.SMALLINT, t.ShortType()),
        (mysql.LONGBLOB, t.BinaryType()),
        (sa.Date, t.DateType()),
    ):
        if isinstance(found, of):
            return there
    return None


_ENGINE = """
SELECT t.engine, e.transactions FROM information_schema.tables AS t
LEFT JOIN information_schema.engines AS e ON e.engine = t.engine
WHERE t.table_schema = COALESCE(:schema, DATABASE()) AND t.table_name = :name
"""
_COLLATIONS = """
SELECT column_name, character_set_name, collation_name FROM information_schema.columns
WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name AND character_set_name IS NOT NULL
"""


def check_storage(
    connection: Connection, schema: str | None, name: str, columns: Sequence[Column], key: Sequence[int]
) -> None:
    """Raises DestinationError for a table without transactions, for text that has not all characters, and for a key that
    takes different texts for equal."""
    place: Mapping[str, Any] = {"schema": schema, "name": name}
    engine = connection.execute(sa.text(_ENGINE), place).first()
    if engine is not None and engine[0] is not None and engine[1] != "YES":
        raise DestinationError(
            f"table {name} is kept by {engine[0]}, which has no transactions",
            detail="rows and the mark of what has been delivered are one transaction",
            hint=f"ALTER TABLE {name} ENGINE = InnoDB",
        )
    by_name = {column.name.lower(): n for n, column in enumerate(columns)}
    for column, characters, collation in connection.execute(sa.text(_COLLATIONS), place):
        number = by_name.get(column.lower())
        kind = None if number is None else spark_type(columns[number].type)
        if not isinstance(kind, (t.StringType, *_NESTED)):
            continue
        tells_apart = str(collation).endswith("_bin" if isinstance(kind, _NESTED) else "_nopad_bin")
        has_all = characters == "utf8mb4" or isinstance(kind, _NESTED)
        if has_all and (number not in key or tells_apart):
            continue
        raise DestinationError(
            f"column {column} of table {name} has the collation {collation}",
            detail="it has not all characters"
            if not has_all
            else "it takes different values of the key for the same",
            hint="declare it JSON"
            if isinstance(kind, _NESTED)
            else f"declare it LONGTEXT CHARACTER SET utf8mb4 COLLATE {_COLLATION}",
        )
