"""What Arrow, NumPy and Python do with values as Spark does, by type: the one place where that is decided.

The driver compares, looks up and carries values in Spark's place only where the table says so; everything else is left
to Spark. An allow list: of a type that is not in the table nothing is said. Every line is tested against Spark, type by
type with all special values (tests/core/test_capabilities.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache

from pyspark.sql import types as t

from cq_engine.core.types import inner_types, spark_type

__all__ = ["KEY_COLLATIONS", "Use", "can", "key_problem", "problem"]


class Use(Enum):
    """What values of a type may be used for."""

    EQUAL = "Arrow and NumPy take two values for equal exactly where Spark's = does (`is_in`, `unique`, `index_in`)"
    ORDERED = "Arrow and Python order values as Spark's < does"
    IDENTICAL = "no function of Spark tells two values apart that its = takes for equal"
    GROUPED = "Spark's GROUP BY takes two values for one exactly where they are the same row image"
    KEY = "values identify rows: Spark can compare them, and so can Python (`rows.identity_keys`)"
    STATISTICS = "the smallest and largest value of a file say which values it may hold"
    PLAN_INPUT = "Spark reads Arrow's Parquet files of values as they are (`refresh.plan_inputs`)"
    EXCHANGED = "PySpark's conversion between DataFrame and Arrow keeps values as they are"


_ALL: Mapping[Use, str] = {}
_FLOAT = {
    Use.EQUAL: "Arrow tells -0.0 from 0.0",
    Use.ORDERED: "Spark has NaN above all numbers",
    Use.IDENTICAL: "-0.0 and 0.0 are equal and print differently",
    Use.STATISTICS: "bounds say nothing of NaN",
}
_NO_BOUNDS = {Use.STATISTICS: "the catalog keeps no bounds of the type"}
_TIME = {**_NO_BOUNDS, Use.PLAN_INPUT: "Spark reads another type from Arrow's Parquet files"}
_MONTHS = {Use.PLAN_INPUT: _TIME[Use.PLAN_INPUT], Use.EXCHANGED: "PySpark has no Arrow type for it"}
_NOTHING = dict.fromkeys(Use, "values of MAP, VARIANT and VOID have no order")
_COLLATED = {
    **dict.fromkeys((Use.EQUAL, Use.ORDERED, Use.STATISTICS), "Arrow compares text by its bytes"),
    **dict.fromkeys((Use.GROUPED, Use.IDENTICAL), "text of a collation is equal where its bytes are not"),
    Use.PLAN_INPUT: "Parquet files have no collation",
}
_NESTED = dict.fromkeys((Use.EQUAL, Use.ORDERED, Use.STATISTICS), "Arrow does not compare nested values")

_TABLE: Mapping[type[t.DataType], Mapping[Use, str]] = {
    t.BooleanType: _ALL,
    t.ByteType: _ALL,
    t.ShortType: _ALL,
    t.IntegerType: _ALL,
    t.LongType: _ALL,
    t.DecimalType: _ALL,
    t.FloatType: _FLOAT,
    t.DoubleType: _FLOAT,
    t.StringType: _ALL,
    t.BinaryType: _NO_BOUNDS,
    t.DateType: _ALL,
    t.TimeType: _TIME,
    t.TimestampType: _ALL,
    t.TimestampNTZType: _ALL,
    t.DayTimeIntervalType: _TIME,
    t.YearMonthIntervalType: _MONTHS,
    t.ArrayType: _NESTED,
    t.StructType: _NESTED,
    t.MapType: {use: why for use, why in _NOTHING.items() if use not in (Use.PLAN_INPUT, Use.EXCHANGED)},
    t.VariantType: _NOTHING,
    t.NullType: {use: why for use, why in _NOTHING.items() if use not in (Use.GROUPED, Use.EXCHANGED)},
}
"""By type what its values cannot be used for, and why not; everything else they can. Values inside of values come on
top of that."""

_EXACT_DIGITS = 18
"""Decimals of more digits have no bounds in the catalog."""
KEY_COLLATIONS = frozenset({"UTF8_BINARY", "UTF8_BINARY_RTRIM", "UTF8_LCASE", "UTF8_LCASE_RTRIM"})
"""Collations whose equality Python knows, too (`storage.rows`); only ICU, inside Spark, knows the others."""


def can(kind: str | t.DataType, use: Use) -> bool:
    """May values of the Spark type `kind` be used so?

    >>> can("int", Use.EQUAL), can("double", Use.EQUAL), can("array<double>", Use.KEY)
    (True, False, True)
    """
    return not problem(kind, use)


def problem(kind: str | t.DataType, use: Use) -> str:
    """Why values of the Spark type `kind` cannot be used so; empty where they can.

    >>> problem("double", Use.EQUAL)
    'Arrow tells -0.0 from 0.0'
    """
    return _problems(kind).get(use, "")


def key_problem(kind: str) -> str:
    """Why values of the type `kind` cannot identify rows; empty where they can.

    >>> key_problem("map<string,int>"), key_problem("array<int>")
    ('values of MAP, VARIANT and VOID have no order', '')
    """
    return problem(kind, Use.KEY)


@lru_cache(maxsize=4096)
def _problems(kind: str | t.DataType) -> Mapping[Use, str]:
    found = spark_type(kind) if isinstance(kind, str) else kind
    own = dict(_TABLE.get(type(found), dict.fromkeys(Use, f"nothing is known of {found.simpleString()}")))
    if isinstance(found, t.DecimalType) and found.precision > _EXACT_DIGITS:
        own |= _NO_BOUNDS
    if isinstance(found, t.StringType) and found.collation != "UTF8_BINARY":
        own |= _COLLATED
        if found.collation not in KEY_COLLATIONS:
            own[Use.KEY] = f"only Spark can compare text of collation {found.collation}"
    for inner in inner_types(found):
        own = {**_problems(inner), **own}
    return own
