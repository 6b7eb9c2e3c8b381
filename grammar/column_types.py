"""Spark's names of simple types, and what people write instead of them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

_NUMERIC = {
    "TINYINT",
    "BYTE",
    "SMALLINT",
    "SHORT",
    "INT",
    "INTEGER",
    "BIGINT",
    "LONG",
    "FLOAT",
    "REAL",
    "DOUBLE",
}
_DECIMAL = {"DECIMAL", "DEC", "NUMERIC"}
_TIME = {"DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"}
_TEXT = {"STRING", "TEXT", "CHAR", "CHARACTER", "VARCHAR"}
SIMPLE_TYPES = frozenset(_NUMERIC | _DECIMAL | _TIME | _TEXT | {"BOOLEAN", "BINARY", "VOID", "VARIANT"})
INTERVAL_FIELDS = (("YEAR", "MONTH"), ("DAY", "HOUR", "MINUTE", "SECOND"))

_WITH_NUMBERS = {"DECIMAL": 2, "DEC": 2, "NUMERIC": 2, "CHAR": 1, "CHARACTER": 1, "VARCHAR": 1, "TIME": 1}
_NEED_NUMBERS = ("CHAR", "CHARACTER", "VARCHAR")
_ELSEWHERE = {
    "NUMBER": "DECIMAL(p, s) or BIGINT",
    "VARCHAR2": "STRING",
    "NVARCHAR": "STRING",
    "CLOB": "STRING",
    "BLOB": "BINARY",
    "BYTEA": "BINARY",
    "RAW": "BINARY",
    "BOOL": "BOOLEAN",
    "DATETIME": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP",
    "INT2": "SMALLINT",
    "INT4": "INT",
    "INT8": "BIGINT",
    "INT64": "BIGINT",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "FLOAT64": "DOUBLE",
    "SERIAL": "BIGINT",
    "UUID": "STRING",
    "JSON": "VARIANT or STRING",
    "OBJECT": "STRUCT<...>",
}


@dataclass(frozen=True)
class TypeProblem:
    """Why a type is none: a key of messages.py, and what to write instead."""

    key: str
    fix: str


def type_problem(word: str, numbers: str | None) -> TypeProblem | None:
    """What is wrong with the simple type `word` (upper case) with `numbers` in brackets, or None.

    >>> type_problem("DECIMAL", "10,2") is None, type_problem("NUMBER", None).fix
    (True, 'use DECIMAL(p, s) or BIGINT')
    """
    if word not in SIMPLE_TYPES:
        close = difflib.get_close_matches(word, sorted(SIMPLE_TYPES), 1, 0.7)
        fix = _ELSEWHERE.get(word) or (close[0] if close else "")
        return TypeProblem(
            "unknown_type", f"use {fix}" if fix else "types are Spark SQL's: INT, STRING, DATE, ..."
        )
    if numbers is None and word in _NEED_NUMBERS:
        return TypeProblem("type_numbers", f"write {word}(n), or STRING for text of any length")
    if numbers is not None and numbers.count(",") + 1 > _WITH_NUMBERS.get(word, 0):
        return TypeProblem(
            "type_numbers", f"write {word}" + {1: "(n)", 2: "(p, s)"}.get(_WITH_NUMBERS.get(word, 0), "")
        )
    return None
