"""How results look."""

from __future__ import annotations

import csv
import doctest
import io
import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import cq_engine.query.rendering
from cq_engine.query.formats import render_csv, render_json, render_jsonl
from cq_engine.query.rendering import render_html, render_result, render_value
from cq_engine.query.result import Result, text_result


def result(**columns: object) -> Result:
    return Result(arrow=pa.table(columns))


def test_doctests() -> None:
    assert doctest.testmod(cq_engine.query.rendering).failed == 0


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


def test_what_is_whole_is_neither_cut_nor_framed_anew() -> None:
    rows = pa.table({"property": ["name", "statement"], "value": ["q", "CREATE\n  " + "x" * 100]})
    lines = render_result(Result(arrow=rows, whole=True), 1, width=40).splitlines()
    assert lines[2:] == [
        " name      | q",
        " statement | CREATE",
        "           |   " + "x" * 100,
        "(2 rows)",
    ]


def test_text_is_shown_as_it_is() -> None:
    text = text_result("plan", "one\n  " + "x" * 100)
    assert render_result(text, 1, width=40) == "one\n  " + "x" * 100
    assert text.fetchall() == [("one",), ("  " + "x" * 100,)]


def typed() -> pa.Table:
    return pa.table(
        {
            "n": pa.array([1, None], pa.int32()),
            "s": pa.array(['say "hi", ü', ""], pa.string()),
            "d": pa.array([Decimal("12.50"), None], pa.decimal128(10, 2)),
            "day": pa.array([date(2024, 2, 29), None]),
            "at": pa.array([datetime(2024, 5, 1, 12, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
            "local": pa.array([datetime(2024, 5, 1, 12, 0, 0, 500), None], pa.timestamp("us")),  # noqa: DTZ001
            "f": pa.array([float("nan"), 0.5], pa.float64()),
            "f32": pa.array([0.1, None], pa.float32()),
            "b": pa.array([b"\x00\xff", None]),
            "flag": pa.array([True, None]),
            "list": pa.array([[1, None], []], pa.list_(pa.int64())),
            "map": pa.array([[("a", Decimal("1.0"))], []], pa.map_(pa.string(), pa.decimal128(4, 1))),
            "row": pa.array([{"x": date(2024, 1, 1), "y": "z"}, None]),
        }
    )


ROWS = [
    (
        '{"n": 1, "s": "say \\"hi\\", ü", "d": 12.50, "day": "2024-02-29", "at": "2024-05-01T12:00:00Z", '
        '"local": "2024-05-01T12:00:00.000500", "f": "NaN", "f32": 0.1, "b": "00ff", "flag": true, "list": [1, null], '
        '"map": {"a": 1.0}, "row": {"x": "2024-01-01", "y": "z"}}'
    ),
    (
        '{"n": null, "s": "", "d": null, "day": null, "at": null, "local": null, "f": 0.5, "f32": null, "b": null, '
        '"flag": null, "list": [], "map": {}, "row": null}'
    ),
]


def test_json() -> None:
    assert render_jsonl(typed()).splitlines() == ROWS
    assert render_json(typed()) == "[\n" + ",\n".join(ROWS) + "\n]"
    assert json.loads(render_json(typed()))[1]["list"] == []
    assert render_json(typed().slice(0, 0)) == "[]"


def test_csv() -> None:
    assert render_csv(typed()).splitlines() == [
        "n,s,d,day,at,local,f,f32,b,flag,list,map,row",
        (
            '1,"say ""hi"", ü",12.50,2024-02-29,2024-05-01T12:00:00Z,2024-05-01T12:00:00.000500,NaN,0.1,00ff,true,'
            '"[1, null]","{""a"": 1.0}","{""x"": ""2024-01-01"", ""y"": ""z""}"'
        ),
        ',"",,,,,0.5,,,,[],{},',
    ]
    assert list(csv.reader(io.StringIO(render_csv(typed()))))[1][1] == 'say "hi", ü'


def test_a_result_iterates_and_says_what_it_is() -> None:
    rows = result(n=[1, 2], name=["a", None])
    assert list(rows) == [(1, "a"), (2, None)]
    assert rows.to_pandas()["n"].tolist() == [1, 2]
    assert repr(rows) == "<Result: 2 rows of (n, name)>"
    assert repr(Result(message="table t created")) == "<Result: table t created>"
    assert repr(Result(frame=FakeFrame())) == "<Result: rows of (n), not computed yet>"  # type: ignore[arg-type]
    assert list(Result(message="done")) == []


def test_notebooks_get_html() -> None:
    shown = render_html(result(name=["<b>", None], n=[1, 2]), 1)
    assert "<td>&lt;b&gt;</td>" in shown
    assert '<td style="text-align: right">1</td>' in shown
    assert "(first row; there are more)" in shown
    assert result(n=[1])._repr_html_().startswith("<table>")
    assert Result(message="x < y")._repr_html_() == "<pre>x &lt; y</pre>"


class FakeFrame:
    """A DataFrame of a thousand rows that remembers how many were asked for."""

    columns = ("n",)
    schema = StructType([StructField("n", LongType())])
    asked = 1000
    sparkSession = None  # noqa: N815 - Spark's name

    def limit(self, rows: int) -> FakeFrame:
        self.asked = rows
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.table({"n": range(self.asked)})


def test_frames_are_read_as_far_as_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cq_engine.query.result.tag_jobs", lambda _: None)
    frame = FakeFrame()
    shown = render_result(Result(frame=frame), 5)  # type: ignore[arg-type]
    assert frame.asked == 6
    assert shown.endswith("(first 5 rows; there are more)")
