"""How results look."""

from __future__ import annotations

import doctest
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import cq_engine.repl.render
from cq_engine.query.result import Result
from cq_engine.repl.render import render_result, render_value


def result(**columns: object) -> Result:
    return Result(arrow=pa.table(columns))


def test_doctests() -> None:
    assert doctest.testmod(cq_engine.repl.render).failed == 0


def test_table() -> None:
    shown = render_result(
        result(
            oid=pa.array([1, 20], pa.int32()),
            name=["Anna", None],
            amount=pa.array([Decimal("12.50"), Decimal("3.00")], pa.decimal128(10, 2)),
        )
    )
    assert shown.splitlines() == [
        " oid | name | amount",
        "-----+------+--------",
        "   1 | Anna |  12.50",
        "  20 | NULL |   3.00",
        "(2 rows)",
    ]


def test_no_rows_keep_their_header() -> None:
    assert render_result(result(a=pa.array([], pa.int64()))).splitlines() == [" a", "---", "(0 rows)"]


def test_one_row() -> None:
    assert render_result(result(a=[1])).endswith("\n(1 row)")


def test_message() -> None:
    assert render_result(Result(message="INSERT 3")) == "INSERT 3"
    assert render_result(Result()) == "OK"


def test_limit_says_that_there_are_more() -> None:
    shown = render_result(result(n=range(100)), 3)
    assert shown.splitlines()[2:] == [" 0", " 1", " 2", "(first 3 rows; there are more)"]
    assert render_result(result(n=range(100)), 0).endswith("(100 rows)")
    assert render_result(result(n=range(3)), 3).endswith("(3 rows)")


def test_wide_unicode_is_aligned() -> None:
    lines = render_result(result(name=["日本語", "abc"], n=[1, 2])).splitlines()
    assert lines == [" name   | n", "--------+---", " 日本語 | 1", " abc    | 2", "(2 rows)"]


def test_wide_cells_are_cut() -> None:
    shown = render_result(result(text=["x" * 100]), cell=10)
    assert " " + "x" * 9 + "…" in shown.splitlines()[2]
    assert "x" * 100 in render_result(result(text=["x" * 100]), cell=0)


def test_expanded_cuts_nothing() -> None:
    lines = render_result(result(a=["x" * 100], long_name=[None]), expanded=True).splitlines()
    assert lines == ["-[ row 1 ]", "a         | " + "x" * 100, "long_name | NULL", "(1 row)"]


def test_too_wide_a_table_is_expanded() -> None:
    assert "-[ row 1 ]" in render_result(result(a=["x" * 40], b=["y" * 40]), width=60)
    assert "-[ row 1 ]" not in render_result(result(a=["x" * 40], b=["y" * 40]), width=100)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (False, "false"),
        (Decimal("0E-10"), "0.0000000000"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (1e100, "1e+100"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 12, 0, 0, 500), "2024-02-29 12:00:00.000500"),  # noqa: DTZ001 - a TIMESTAMP_NTZ
        (datetime(2024, 2, 29, 1, tzinfo=timezone(timedelta(hours=2))), "2024-02-28 23:00:00Z"),
        (timedelta(days=1), "1 day, 0:00:00"),
        (b"\x00\xff", "x'00ff'"),
        ([1, None, "a"], '[1, NULL, "a"]'),
        ([("k", 1)], '{"k": 1}'),
        ({"a": 1, "b": "x"}, '{a: 1, b: "x"}'),
        ("two\nlines\t\x1b[31m", "two\\nlines\\t\\x1b[31m"),
        ("\u202egnp", "\\u202egnp"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert render_value(value) == text


def test_values_that_python_cannot_hold() -> None:
    year_20000 = pa.array([568971820800000000], pa.timestamp("us", "UTC"))
    assert "20000-01-01" in render_result(Result(arrow=pa.table({"t": year_20000})))


def test_float_has_its_own_digits() -> None:
    assert " 0.1" in render_result(Result(arrow=pa.table({"f": pa.array([0.1, None], pa.float32())})))


class FakeFrame:
    """A DataFrame of a thousand rows that remembers how many were asked for."""

    columns = ("n",)
    schema = StructType([StructField("n", LongType())])
    asked = 1000

    def limit(self, rows: int) -> FakeFrame:
        self.asked = rows
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.table({"n": range(self.asked)})


def test_frames_are_read_as_far_as_they_are_shown() -> None:
    frame = FakeFrame()
    shown = render_result(Result(frame=frame), 5)  # type: ignore[arg-type]
    assert frame.asked == 6
    assert shown.endswith("(first 5 rows; there are more)")
