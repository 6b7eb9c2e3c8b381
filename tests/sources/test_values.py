"""Values of each source in the warehouse's types: exactly, or with an error that names them."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError
from cq_engine.sources.sql import keys
from cq_engine.sources.sql import select as s
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.values import Place, to_batch
from tests.sources.shops import Shop, capture, declared, naive, values

UTC = timezone.utc
PLACE = Place("orders at source shop", (0,), UTC)

ALIKE: list[tuple[str, str, Any]] = [
    ("SMALLINT", "smallint", -32768),
    ("BIGINT", "bigint", 2**63 - 1),
    ("DECIMAL(14,4)", "decimal(18,6)", Decimal("-1234567890.125")),
    ("BOOLEAN", "boolean", True),
    ("VARCHAR(30)", "string", "é😀'\\%"),
    ("DATE", "date", date(2024, 2, 29)),
    ("DOUBLE PRECISION", "double", 0.1 + 0.2),
]
OWN: dict[str, list[tuple[str, str, str, Any]]] = {
    "sqlite": [
        ("BLOB", "binary", "x'00ff'", b"\x00\xff"),
        ("DATETIME", "timestamp", "'2024-07-01T12:00:00.25+02:00'", datetime(2024, 7, 1, 10, 0, 0, 250_000, UTC)),
        ("DATETIME", "timestamp_ntz", "'2024-07-01 12:00'", naive(2024, 7, 1, 12)),
        ("INTEGER", "boolean", "0", False),
        ("NUMERIC", "decimal(10,2)", "7.25", Decimal("7.25")),
        ("JSON", "array<int>", "'[1, null]'", [1, None]),
        ("ANYTHING", "string", "5", "5"),
        ("TIME", "time(6)", "'23:59:59.5'", time(23, 59, 59, 500_000)),
    ],
    "postgresql": [
        ("bytea", "binary", r"'\x00ff'", b"\x00\xff"),
        ("timestamptz", "timestamp", "'2024-07-01 12:00:00.25+02'", datetime(2024, 7, 1, 10, 0, 0, 250_000, UTC)),
        ("timestamp", "timestamp_ntz", "'2024-07-01 12:00'", naive(2024, 7, 1, 12)),
        ("uuid", "string", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("jsonb", "string", "'{\"b\": 1.50}'", '{"b": 1.50}'),
        ("json", "struct<b:decimal(5,2)>", "'{\"b\": 1.50}'", {"b": Decimal("1.50")}),
        ("int[]", "array<int>", "'{1,NULL,3}'", [1, None, 3]),
        ("text[]", "array<string>", "'{a,\"b,c\"}'", ["a", "b,c"]),
        ("real", "float", "0.1", pa.scalar(0.1, pa.float32()).as_py()),
        ("double precision", "double", "'Infinity'", float("inf")),
        ("interval", "string", "'1 day 2 hours'", "P1DT2H"),
        ("inet", "string", "'10.0.0.1'", "10.0.0.1/32"),
        ("numeric", "decimal(38,18)", "0.000000000000000001", Decimal("1E-18")),
    ],
    "mariadb": [
        ("VARBINARY(9)", "binary", "x'00ff'", b"\x00\xff"),
        ("TIMESTAMP(6)", "timestamp", "'2024-07-01 12:00:00.25'", datetime(2024, 7, 1, 12, 0, 0, 250_000, UTC)),
        ("DATETIME(6)", "timestamp_ntz", "'2024-07-01 12:00'", naive(2024, 7, 1, 12)),
        ("BIGINT UNSIGNED", "decimal(20,0)", "18446744073709551615", Decimal(2**64 - 1)),
        ("INT UNSIGNED", "bigint", "4294967295", 2**32 - 1),
        ("BIT(1)", "boolean", "b'1'", True),
        ("FLOAT", "float", "16777217", 16777216.0),
        ("FLOAT", "float", "0.12345679", pa.scalar(0.12345679, pa.float32()).as_py()),
        ("UUID", "string", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("JSON", "string", "'{\"b\": 1.50}'", '{"b": 1.50}'),
        ("ENUM('x','y')", "string", "'y'", "y"),
        ("TIME(6)", "string", "'-25:00:00.5'", "-25:00:00.500000"),
        ("YEAR", "int", "2024", 2024),
    ],
}  # fmt: skip


def test_values_arrive_as_they_were_written(shop: Shop) -> None:
    name = shop.fresh()
    own = OWN[shop.kind]
    declarations = [f"c{n} {kind}" for n, kind in enumerate([*(a[0] for a in ALIKE), *(o[0] for o in own)])]
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, {', '.join(declarations)})")
    marks = ", ".join(["?"] * (1 + len(ALIKE)) + [o[2] for o in own])
    shop.run(f"INSERT INTO {name} VALUES ({marks})", (1, *(a[2] for a in ALIKE)))
    shop.run(f"INSERT INTO {name} (id) VALUES (2)")
    columns = [Column("id", "int")] + [
        Column(f"c{n}", kind) for n, kind in enumerate([*(a[1] for a in ALIKE), *(o[1] for o in own)])
    ]
    relation = shop.relation(name)
    made = s.selection(capture(*(c.name for c in columns)), relation)
    first, second = sorted(shop.values(s.image(made), columns))
    assert list(first[1:]) == [a[2] for a in ALIKE] + [o[3] for o in own]
    if "TIMESTAMP(6)" not in [o[0] for o in own]:
        assert set(second[1:]) == {None}
    # What the source's types fit by themselves has the same values, where it is not declared otherwise here.
    own_types = [c.column for c in relation.columns]
    assert len(shop.values(s.image(made), own_types)) == 2
    assert [c.type for c in own_types[8:] if shop.kind != "sqlite" and c.type == "binary"] == (
        ["binary"] if shop.kind != "sqlite" else []
    )


def test_a_key_of_the_sources_type_goes_back(shop: Shop) -> None:
    kinds = {
        "sqlite": [("BLOB", b"\x01"), ("DOUBLE", 0.1)],
        "postgresql": [("uuid", str(UUID(int=7))), ("timestamptz", datetime(2024, 1, 1, tzinfo=UTC)), ("numeric", Decimal("0.10"))],
        "mariadb": [("BINARY(2)", b"\x01\xff"), ("DATETIME(6)", naive(2024, 1, 1, 0, 0, 0, 7)), ("FLOAT", 0.1)],
    }[shop.kind]  # fmt: skip
    for declaration, value in kinds:
        name = shop.fresh()
        shop.run(f"CREATE TABLE {name} (k {declaration} PRIMARY KEY, v INT)")
        shop.insert(name, [(value, 1)])
        made = s.selection(capture("k", "v"), shop.relation(name))
        ((key, _),) = shop.rows(s.image(made))
        again = keys.from_text(keys.to_text([key]))
        assert shop.rows(s.rows_of(made, [again])) == [(key, 1)]
        assert shop.rows(s.image_between(made, None, again)) == [(key, 1)]
        assert shop.rows(s.image_between(made, again, None)) == []


def test_times_without_a_zone_are_in_that_of_the_source(shop: Shop) -> None:
    name = shop.fresh()
    kind = {"sqlite": "DATETIME", "postgresql": "timestamp", "mariadb": "DATETIME(6)"}[shop.kind]
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, ts {kind})")
    shop.insert(name, [(1, naive(2024, 7, 1, 12)), (2, naive(2024, 1, 1, 12))])
    made = s.selection(capture("id", "ts"), shop.relation(name))
    columns = [Column("id", "int"), Column("ts", "timestamp")]
    assert shop.values(s.image(made, order=True), columns)[0][1] == datetime(2024, 7, 1, 12, tzinfo=UTC)
    with (
        Database.open(declared(shop.kind, shop.url, time_zone="Europe/Vienna")) as vienna,
        vienna.connect() as session,
    ):
        found = values(session, s.image(made, order=True), columns)
        local = values(session, s.image(made, order=True), [columns[0], Column("ts", "timestamp_ntz")])
    assert found == [(1, datetime(2024, 7, 1, 10, tzinfo=UTC)), (2, datetime(2024, 1, 1, 11, tzinfo=UTC))]
    assert local[0][1] == naive(2024, 7, 1, 12)


def test_what_python_has_no_value_for_is_named(shop: Shop) -> None:
    kind, text = {
        "sqlite": ("DATE", "'not yet'"),
        "postgresql": ("date", "'infinity'"),
        "mariadb": ("DATE", "'0000-00-00'"),
    }[shop.kind]
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, d {kind})")
    if shop.kind == "mariadb":
        shop.run(f"INSERT IGNORE INTO {name} VALUES (1, '2024-01-01'), (2, {text})")
    else:
        shop.run(f"INSERT INTO {name} VALUES (1, '2024-01-01'), (2, {text})")
    made = s.selection(capture(("id", "oid"), "d"), shop.relation(name))
    with pytest.raises(SourceError) as error:
        shop.values(s.image(made, order=True), [Column("oid", "int"), Column("d", "date")])
    assert f"column d of {made.relation.shown} at source shop has {text}" in error.value.message
    assert error.value.detail == "the row with oid = 2"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("tinyint", 128), ("int", 2.5), ("int", "abc"), ("int", b"1"), ("bigint", 2**63), ("int", float("nan")),
        ("decimal(4,2)", Decimal("1.234")), ("decimal(4,2)", 123), ("decimal(4,2)", Decimal("NaN")), ("decimal(4,2)", "x"),
        ("double", 2**63 + 1), ("double", "abc"), ("float", 1e300), ("boolean", 2), ("boolean", "maybe"),
        ("string", b"\xff"), ("string", "\ud800"), ("binary", 5), ("date", 20240101), ("date", naive(2024, 1, 1, 1)),
        ("timestamp", 1720000000), ("timestamp", "yesterday"), ("timestamp_ntz", "2024-01-01 00:00:00.1234567"),
        ("timestamp", "2024-13-01 00:00"), ("time(6)", timedelta(days=2)), ("array<int>", "[1, 2.5]"), ("array<int>", "{}"),
        ("struct<a:int>", '{"a": 1, "b": 2}'), ("array<int>", [1, "x"]),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named(kind: str, value: Any) -> None:
    rows = [(1, None), (2, value), (3, value)]
    with pytest.raises(SourceError) as error:
        to_batch(rows, ("id", "v"), [Column("id", "int"), Column("v", kind)], PLACE)
    assert (
        error.value.message == f"column v of orders at source shop has {value!r}, which is no {kind.upper()}"
    )
    assert error.value.detail.endswith("the row with id = 2")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", "12", 12), ("int", Decimal("12.00"), 12), ("bigint", 2.0**53, 2**53), ("decimal(38,2)", 0.1, Decimal("0.10")),
        ("double", Decimal("0.1"), 0.1), ("boolean", b"\x01", True), ("boolean", "f", False), ("string", 1.5, "1.5"),
        ("string", Decimal("1E+3"), "1000"), ("string", True, "true"), ("binary", "é", "é".encode()),
        ("date", "2024-01-01 00:00:00", date(2024, 1, 1)), ("timestamp", date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp", "2024-01-01T00:00:00.1234560Z", datetime(2024, 1, 1, 0, 0, 0, 123456, UTC)),
        ("time(6)", timedelta(hours=1), time(1)), ("map<string,bigint>", '{"a": 1}', [("a", 1)]),
    ],
)  # fmt: skip
def test_a_value_of_another_type_that_fits(kind: str, value: Any, expected: Any) -> None:
    batch = to_batch([(value,)], ("v",), [Column("v", kind)], PLACE)
    assert batch.column(0)[0].as_py() == expected


def test_an_hour_that_comes_twice_is_the_first() -> None:
    vienna = Place("t", (), ZoneInfo("Europe/Vienna"))
    batch = to_batch([(naive(2024, 10, 27, 2, 30),)], ("v",), [Column("v", "timestamp")], vienna)
    assert batch.column(0)[0].as_py() == datetime(2024, 10, 27, 0, 30, tzinfo=UTC)


source_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.floats(allow_nan=False), st.decimals(allow_nan=False),
    st.dates(), st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.times(), st.timedeltas(), st.uuids(),
)  # fmt: skip


@given(row=st.lists(source_values, max_size=4))
def test_a_position_keeps_values_and_their_types(row: list[Any]) -> None:
    again = keys.from_text(keys.to_text(row))
    assert again == tuple(row)
    assert [type(value) for value in again] == [type(value) for value in row]
