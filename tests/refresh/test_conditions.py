"""What the driver says of conditions, against what Spark's own semantics (as DuckDB has them here) keep."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from cq_engine.refresh.conditions import possible

TYPES = {
    "s": (pa.string(), st.sampled_from(["", "a", "b", "ab", "ä", "B"])),
    "n": (pa.int32(), st.integers(-3, 3)),
    "big": (pa.int64(), st.sampled_from([-(2**63), -1, 0, 1, 2**40, 2**63 - 1])),
    "d": (pa.decimal128(10, 2), st.integers(-300, 300).map(lambda n: Decimal(n) / 100)),
    "day": (pa.date32(), st.dates(date(2026, 1, 1), date(2026, 1, 5))),
}
CONSTANTS = {
    "s": st.sampled_from(["''", "'a'", "'b'", "'ä'"]),
    "n": st.sampled_from(["0", "1", "-2", "3000000000"]),
    "big": st.sampled_from(["0", "-1", "9223372036854775807"]),
    "d": st.sampled_from(["0", "-1.5", "1.005", "2"]),
    "day": st.sampled_from(["CAST('2026-01-03' AS DATE)", "CAST('2026-01-01' AS DATE)"]),
}
UNKNOWN = st.sampled_from(["s LIKE 'a%'", "n + 1 > 1", "length(s) = 1", "s IS NULL", "n = big"])


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(TYPES)))
    if draw(st.booleans()):
        values = draw(st.lists(CONSTANTS[name], min_size=1, max_size=3))
        return f"{name} IN ({', '.join(values)})"
    sides = [name, draw(CONSTANTS[name])]
    if draw(st.booleans()):
        sides.reverse()
    return f"{sides[0]} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {sides[1]}"


conditions = st.recursive(
    comparisons() | UNKNOWN,
    lambda inner: (
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=5,
)


@given(
    st.lists(st.tuples(*(st.none() | values for _, values in TYPES.values())), min_size=1, max_size=20),
    conditions,
)
@settings(max_examples=120, deadline=None)
def test_every_row_that_is_kept_is_possible(rows: list[tuple[object, ...]], condition: str) -> None:
    table = pa.table({n: pa.array([r[i] for r in rows], t) for i, (n, (t, _)) in enumerate(TYPES.items())})
    mask = possible(sqlglot.parse_one(condition, dialect="spark"), {n: table.column(n) for n in TYPES})
    with duckdb.connect() as connection:
        connection.register("t", table)
        kept = [
            row[0] for row in connection.execute(f"SELECT coalesce({condition}, false) FROM t").fetchall()
        ]
    told = [True] * len(rows) if mask is None else mask.to_pylist()
    assert all(possibly for is_kept, possibly in zip(kept, told) if is_kept)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("s = 'a'", [True, False, None]),
        ("'a' = s", [True, False, None]),
        ("s IN ('b', 'c')", [False, True, None]),
        ("n > 1 AND upper(s) = 'B'", [False, True, None]),
        ("2 > n", [True, False, None]),
        ("n = 1 OR s = 'b'", [True, True, None]),
        ("d >= 1.5", [True, False, None]),
        ("day <= CAST('2026-01-01' AS DATE)", [True, False, None]),
    ],
)
def test_comparisons_with_constants_are_told(condition: str, expected: list[bool | None]) -> None:
    rows = {
        "s": pa.chunked_array([["a", "b", None]]),
        "n": pa.chunked_array([[1, 2, None]]),
        "d": pa.chunked_array([[Decimal("1.50"), Decimal("-1.50"), None]]),
        "day": pa.chunked_array([[date(2026, 1, 1), date(2026, 1, 2), None]]),
    }
    mask = possible(sqlglot.parse_one(condition, dialect="spark"), rows)
    assert mask is not None
    assert mask.to_pylist() == expected


@pytest.mark.parametrize(
    "condition",
    ["upper(s) = 'A'", "s = n", "n = 'a'", "s = 1", "n = 1 OR upper(s) = 'A'", r"s = '\\u0041'", "t = 'a'"],
)
def test_of_others_nothing_is_said(condition: str) -> None:
    rows = {"s": pa.chunked_array([["a"]]), "n": pa.chunked_array([[1]])}
    assert possible(sqlglot.parse_one(condition, dialect="spark"), rows) is None
