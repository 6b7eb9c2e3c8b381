"""Which rows of a table meet changes under conditions that are no equality, against asking for every pair."""

from __future__ import annotations

import random
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import parse_one

from cq_engine.algebra.dialect import CQSpark
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type
from cq_engine.evaluation.expressions import truth
from cq_engine.evaluation.vectors import Rows, TooLargeError, UnsupportedError
from cq_engine.refresh.meeting import Meeting

TABLE = {"k": Column("key", "bigint"), "p": Column("price", "decimal(9,2)"), "d": Column("day", "date")}
CHANGES = {
    "a": Column("a", "int"),
    "b": Column("b", "bigint"),
    "e": Column("e", "date"),
    "q": Column("q", "decimal(7,1)"),
}
CONDITIONS = (
    "k < a", "k <= a + 1", "a < k", "b >= k", "k BETWEEN a AND b", "k > a AND k < b", "p > q", "p BETWEEN a AND q",
    "d >= e", "(k) > (b - 2)", "k + a > b", "k <> a", "k < a OR p > q", "k = a", "a < b AND k > a",
    "k = a + 1", "b <=> k", "p = q", "k * 2 = a + b", "d = e", "k % 2 <=> a % 2", "p = a", "d <=> e",
    "CASE WHEN k > 1 THEN 'x' WHEN k < 0 THEN 'y' END <=> CASE WHEN a > 1 THEN 'x' END", "(k > 1) = (a > 2)",
)  # fmt: skip
CLOSED = {
    "k < a": "k <= a", "k <= a + 1": "k <= a + 1", "a < k": "a <= k", "b >= k": "b >= k", "k BETWEEN a AND b": "k BETWEEN a AND b",
    "k > a AND k < b": "k >= a AND k <= b", "p > q": "p >= q", "p BETWEEN a AND q": "p BETWEEN a AND q", "d >= e": "d >= e",
    "(k) > (b - 2)": "k >= b - 2",
}  # fmt: skip
"""Comparisons of one column, which by themselves choose the rows in closed intervals."""


def draw(chance: random.Random, column: Column) -> Any:
    if chance.random() < 0.1:
        return None
    number = chance.randint(-4, 6)
    if column.type == "date":
        return date(2024, 1, 5) + timedelta(days=number)
    return Decimal(number) / 2 if column.type.startswith("decimal") else number


def make(chance: random.Random, columns: dict[str, Column], count: int) -> pa.Table:
    return pa.table(
        {
            c.name: pa.array([draw(chance, c) for _ in range(count)], arrow_type(c.type))
            for c in columns.values()
        }
    )


def rows_of(table: pa.Table, columns: dict[str, Column]) -> Rows:
    return Rows.of(table.select([c.name for c in columns.values()]), list(columns.values()), list(columns))


def pairs(table: pa.Table, changes: pa.Table, conditions: list[str]) -> list[bool]:
    """By row, whether all conditions are true with some change."""
    mine, theirs = rows_of(table, TABLE), rows_of(changes, CHANGES)
    found = np.zeros(table.num_rows, np.bool_)
    for place in range(changes.num_rows):
        both = mine.add(theirs.take(np.full(table.num_rows, place)).columns)
        kept = np.ones(table.num_rows, np.bool_)
        for condition in conditions:
            kept &= np.asarray(truth(parse_one(condition, read=CQSpark), both))
        found |= kept
    return found.tolist()


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_every_row_that_joins_is_found(seed: int) -> None:
    chance = random.Random(seed)
    table, changes = make(chance, TABLE, chance.randint(0, 15)), make(chance, CHANGES, chance.randint(0, 6))
    conditions = chance.sample(CONDITIONS, chance.randint(1, 3))
    parsed = [parse_one(condition, read=CQSpark) for condition in conditions]
    meeting = Meeting(rows_of(changes, CHANGES), TABLE, parsed, chance.choice([100, 10_000]))
    found, joins = meeting.probe(table).tolist(), pairs(table, changes, conditions)
    assert all(there for there, wanted in zip(found, joins) if wanted), conditions
    if len(conditions) == 1 and conditions[0] != "a < b AND k > a":
        exact = CLOSED.get(conditions[0], conditions[0])
        assert found == pairs(table, changes, [exact]), "and no others"


def test_intervals_that_overlap_are_one() -> None:
    changes = pa.table({"a": pa.array([1, 2, 10], pa.int32()), "b": pa.array([3, 5, 11])})
    names = {name: CHANGES[name] for name in ("a", "b")}
    parsed = [parse_one("k BETWEEN a AND b", read=CQSpark)]
    meeting = Meeting(Rows.of(changes, list(names.values()), list(names)), {"k": TABLE["k"]}, parsed, 1_000)
    assert meeting.nbytes == 32
    table = pa.table({"key": pa.array([0, 1, 4, 5, 6, 9, 10, 11, 12, None], pa.int64())})
    wanted = [False, True, True, True, False, False, True, True, False, False]
    assert meeting.probe(table).tolist() == wanted


def test_a_value_that_only_spark_holds_is_no_error_of_the_scan() -> None:
    """Others share it; who asks is told afterwards."""
    big = Column("price", "decimal(38,0)")
    changes = rows_of(make(random.Random(1), CHANGES, 3), CHANGES)
    meeting = Meeting(changes, {"p": big}, [parse_one("p > a", read=CQSpark)], 1_000)
    assert not meeting.failed
    found = meeting.probe(pa.table({"price": pa.array([Decimal(10**30)], pa.decimal128(38, 0))}))
    assert found.tolist() == [False]
    assert meeting.failed


@pytest.mark.parametrize(
    "condition",
    [
        "levenshtein(cast(k AS STRING), 'a') < a",
        "k < a + uuid()",
        "(k > 1) = (a > 1) IN (true, false)",
    ],
)
def test_what_only_spark_evaluates_is_refused(condition: str) -> None:
    changes = rows_of(make(random.Random(1), CHANGES, 3), CHANGES)
    with pytest.raises((UnsupportedError, TooLargeError)):
        Meeting(changes, TABLE, [parse_one(condition, read=CQSpark)], 1_000)
