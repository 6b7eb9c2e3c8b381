"""Where = means the same value: which columns tell equal values apart, and which comparisons convert their sides.

0.0 = -0.0 and 'a' = 'A' in a collation, although they print differently; '1' = 1 and '01' = 1; a BIGINT beside a DOUBLE
is rounded. What is not known to be exact here is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.core.capabilities import Use, can
from cq_engine.core.types import collations, spark_type

__all__ = ["Equality"]

_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_DATES = (t.DateType, t.TimestampType, t.TimestampNTZType)
_NUMBER = re.compile(r"0*(\d*)(?:\.(\d*))?")
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Equality:
    """What = says about the columns of a plan, by their Spark types (None: all columns are of one plain type)."""

    types: Mapping[str, str] | None = None

    def is_identity(self, name: str) -> bool:
        """Can no function tell two values apart that are equal in the column?"""
        if self.types is None:
            return True
        kind = self._kind(name)
        return kind is not None and can(kind, Use.IDENTICAL)

    def compares(self, left: str, right: str) -> bool:
        """Does = between the columns compare them as they are? Then each is equal to what the other is equal to."""
        if self.types is None:
            return True
        kind = self.types.get(left)
        return kind is not None and kind == self.types.get(right) and "collate" not in kind

    def fixes(self, name: str, literal: exp.Expr) -> bool:
        """Are all values of the column equal to each other that are equal to the literal?

        So it is where Spark casts the literal to the column's type, or both to one that keeps the column's values.
        """
        if not isinstance(literal, exp.Literal):
            return False
        if self.types is None:
            return True
        kind = self._kind(name)
        if kind is None or collations(kind):
            return False
        if literal.is_string:
            return isinstance(kind, (t.StringType, *_DATES))
        if isinstance(kind, (t.FloatType, t.DoubleType)):
            return True
        number = _NUMBER.fullmatch(literal.name)
        if number is None or not isinstance(kind, (*_WHOLE, t.DecimalType)):
            return False
        whole, scale = (
            (kind.precision - kind.scale, kind.scale) if isinstance(kind, t.DecimalType) else (20, 0)
        )
        return max(whole, len(number[1])) + max(scale, len(number[2] or "")) <= _MOST_DIGITS

    def _kind(self, name: str) -> t.DataType | None:
        kind = (self.types or {}).get(name)
        return None if kind is None or "char" in kind else spark_type(kind)
