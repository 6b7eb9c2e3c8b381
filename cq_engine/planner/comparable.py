"""SQL expressions that Spark can group and compare, and that are equal exactly where two values are the same.

Spark has no order for maps and variants, so that it neither groups nor compares them, and text of a collation is equal
where its bytes are not. A row image is the same only where its text is: a change of case is a change.
"""

from __future__ import annotations

from pyspark.sql import types as t

from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import quote
from cq_engine.core.types import spark_type

__all__ = ["comparable"]


def comparable(expression: str, kind: str) -> str:
    """`expression`, of the Spark type `kind`, in a form of which GROUP BY finds the same values.

    A variant is compared by its JSON and its schema.

    >>> comparable("a", "int"), comparable("a", "string collate UTF8_LCASE")
    ('a', 'CAST(a AS STRING)')
    >>> comparable("m", "map<string,int>")
    'array_sort(transform(map_entries(m), e0 -> struct(e0.key, e0.value)))'
    """
    return _comparable(expression, spark_type(kind), 0)


def _comparable(value: str, kind: t.DataType, depth: int) -> str:
    if can(kind, Use.GROUPED):
        return value
    item = f"e{depth}"
    if isinstance(kind, t.VariantType):
        return f"struct(to_json({value}), schema_of_variant({value}))"
    if isinstance(kind, t.ArrayType):
        return f"transform({value}, {item} -> {_comparable(item, kind.elementType, depth + 1)})"
    if isinstance(kind, t.MapType):
        pair = f"struct({_comparable(f'{item}.key', kind.keyType, depth + 1)}, {_comparable(f'{item}.value', kind.valueType, depth + 1)})"
        return f"array_sort(transform(map_entries({value}), {item} -> {pair}))"
    if isinstance(kind, t.StructType):
        fields = ", ".join(
            _comparable(f"{value}.{quote(each.name)}", each.dataType, depth + 1) for each in kind.fields
        )
        return f"CASE WHEN {value} IS NOT NULL THEN struct({fields}) END"
    return f"CAST({value} AS STRING)"
