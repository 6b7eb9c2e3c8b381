"""The messages that brokers get: their formats, keys and headers, and what may be on its way together."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st

from cq_engine.core.errors import DestinationError
from cq_engine.core.types import arrow_type
from cq_engine.destinations.brokers.avro import Row, single_object
from cq_engine.destinations.brokers.messages import Message, messages, runs
from cq_engine.destinations.contract import World
from cq_engine.destinations.contract.world import row
from cq_engine.destinations.envelope import Delta, DeltaBatch, json_bytes, json_form, json_row
from cq_engine.destinations.log import read_pairs
from cq_engine.destinations.row_text import delta_texts, row_texts

NOON = datetime(2026, 5, 1, 12, 30, 15, 123456)  # noqa: DTZ001 - TIMESTAMP_NTZ


def batch_of(world: World, *deltas: Any) -> DeltaBatch:
    version = world.refresh(*deltas)
    (wide,) = read_pairs(
        world.services,
        world.query,
        world.catalog.cursor("Totals", "none") or _start(),
        version,
        ("I", "D", "U"),
    )
    return DeltaBatch.of(world.query, wide, world.catalog.timestamp(version), True)


def _start() -> Any:
    from cq_engine.catalog.model import Cursor

    return Cursor("Totals", "none", 0)


def decoded(content: bytes, schema: str) -> Any:
    """As a receiver does it, with the schema of the header."""
    parsed = json.loads(schema)
    mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO"))
    assert content[:10] == b"\xc3\x01" + mark
    return fastavro.schemaless_reader(io.BytesIO(content[10:]), fastavro.parse_schema(parsed), None)


COLUMNS = [
    ("i", pa.int64()), ("b", pa.bool_()), ("s", pa.string()), ("f", pa.float32()), ("d", pa.float64()),
    ("n", pa.decimal128(38, 4)), ("x", pa.binary()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()),
    ("l", pa.list_(pa.float64())), ("m", pa.map_(pa.string(), pa.int32())), ("s", pa.string()), ('"ü%s', pa.null()),
]  # fmt: skip
ROWS = st.tuples(
    *(
        st.none() | each
        for each in (
            st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text(), st.floats(width=32), st.floats(),
            st.decimals(allow_nan=False, allow_infinity=False, places=4), st.binary(),
            st.datetimes(timezones=st.just(timezone.utc)), st.dates(), st.lists(st.none() | st.floats()),
            st.lists(st.tuples(st.text(), st.none() | st.integers())), st.text(), st.none(),
        )
    )
)  # fmt: skip


@given(rows=st.lists(st.none() | ROWS, max_size=4), width=st.integers(0, 13), ascii_only=st.booleans())
def test_the_texts_of_rows_are_what_json_makes_of_them(rows: Any, width: int, ascii_only: bool) -> None:
    columns, rows = COLUMNS[:width], [None if row is None else row[:width] for row in rows]
    wanted = [
        json.dumps(json_row(columns, row), ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"))
        for row in rows
    ]
    assert row_texts(columns, ascii_only=ascii_only)(rows) == wanted


@given(old=ROWS, new=ROWS, marker=st.sampled_from("IUD"), keyed=st.booleans())
def test_the_text_of_a_delta_is_what_json_makes_of_it(old: Any, new: Any, marker: str, keyed: bool) -> None:
    before, after = None if marker == "I" else old, None if marker == "D" else new
    keys = COLUMNS[:2] if keyed else None
    delta = Delta(marker, (after or before)[:2] if keyed else None, after, before, 7, NOON, 3)
    unnamed_twice = [(str(n), kind) for n, (_, kind) in enumerate(COLUMNS)]
    schema = pa.schema(unnamed_twice)
    wanted = json_bytes(json_form(schema, keys)(delta)).decode()
    assert [f"{{{text}}}" for text in delta_texts(schema, keys)([delta, delta])] == [wanted] * 2


def test_the_fingerprint_is_that_of_the_specification() -> None:
    assert fingerprint('"int"', "CRC-64-AVRO") == (0x7275D51A3F395C8F).to_bytes(8, "little").hex()


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ("boolean", True, True),
        ("tinyint", -128, -128),
        ("smallint", 32767, 32767),
        ("int", -(2**31), -(2**31)),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("float", 1.5, 1.5),
        ("double", float("inf"), float("inf")),
        ("string", "ü\n'\"", "ü\n'\""),
        ("binary", b"\x00\xff", b"\x00\xff"),
        ("decimal(38,18)", Decimal("-12345678901234567890.123456789012345678"), ...),
        ("decimal(5,0)", Decimal(99999), ...),
        ("date", date(9999, 12, 31), ...),
        ("timestamp", NOON.replace(tzinfo=timezone.utc), ...),
        ("timestamp_ntz", NOON, ...),
        ("time(6)", time(23, 59, 59, 999999), ...),
        ("interval day to second", timedelta(days=-3, microseconds=1), -3 * 86_400_000_000 + 1),
        ("interval year to month", 14, 14),
        ("array<int>", [1, None, 3], ...),
        ("array<array<date>>", [[NOON.date()], None, []], ...),
        ("map<string,decimal(5,2)>", [("a", Decimal("1.50")), ("b", None)], {"a": Decimal("1.50"), "b": None}),
        ("map<int,string>", [(1, "x"), (2, None)], [{"key": 1, "value": "x"}, {"key": 2, "value": None}]),
        ("struct<a:int,b:struct<a:string>>", {"a": 1, "b": {"a": "x"}}, ...),
        ("array<struct<v:timestamp>>", [{"v": NOON.replace(tzinfo=timezone.utc)}, None], ...),
        ("map<string,struct<`x y`:int>>", [("k", {"x y": 1})], {"k": {"x_y": 1}}),
        ("variant", {"a": [1, None]}, '{"a": [1, null]}'),
        ("void", None, None),
    ],
)  # fmt: skip
def test_avro_types(kind: str, value: Any, read: Any) -> None:
    made = Row(pa.schema([("c", arrow_type(kind)), ("1 c", arrow_type(kind)), ("_1_c", arrow_type(kind))]))
    encode, schema = single_object(made.record)
    delta = {
        "op": "u", "query": "q", "commit_version": 7, "commit_time": NOON.replace(tzinfo=timezone.utc), "sequence": 2,
        "before": made.value((value, None, value)), "after": None,
    }  # fmt: skip
    found = decoded(encode(delta), schema)
    expected = value if read is ... else read
    assert found["before"] == {"c": expected, "_1_c": None, "_1_c_": expected}
    assert (found["after"], found["commit_version"], found["sequence"]) == (None, 7, 2)
    assert found["commit_time"] == NOON.replace(tzinfo=timezone.utc)


def test_avro(world: World) -> None:
    batch = batch_of(world, ("I", row(1)), ("U", row(2, "a"), row(2, "b")), ("D", row(3)))
    made = messages(batch, "d", "t", "avro", "")
    found = [decoded(each.body, each.headers["avro_schema"]) for each in made]
    assert [(each["op"], each["before"], each["after"]) for each in found] == [
        ("c", None, {"id": 1, "name": "n1", "amount": Decimal("1.50")}),
        ("u", {"id": 2, "name": "a", "amount": Decimal("1.50")}, {"id": 2, "name": "b", "amount": Decimal("1.50")}),
        ("d", {"id": 3, "name": "n3", "amount": Decimal("1.50")}, None),
    ]  # fmt: skip
    assert {each["query"] for each in found} == {"Totals"}
    assert made[0].content_type == "application/vnd.apache.avro+binary"


def test_debezium(world: World) -> None:
    batch = batch_of(world, ("U", row(2, "a"), row(2, "b")))
    (made,) = messages(batch, "d", "t", "debezium-json", "")
    milliseconds = int(batch.commit_time.timestamp() * 1000)
    assert json.loads(made.body) == {
        "op": "u", "before": {"id": 2, "name": "a", "amount": "1.50"}, "after": {"id": 2, "name": "b", "amount": "1.50"},
        "source": {
            "connector": "cq", "name": "d", "query": "Totals", "commit_version": batch.commit_version, "sequence": 1,
            "commit_time": batch.commit_time.isoformat(), "ts_ms": milliseconds,
        },
        "ts_ms": milliseconds,
    }  # fmt: skip


def test_the_same_again(world: World) -> None:
    batch = batch_of(world, ("I", row(1)), ("D", row(2)))
    for form in ("json", "debezium-json", "avro"):
        made = messages(batch, "d", "t", form, "")
        assert made == messages(batch, "d", "t", form, "")
        assert len({each.id for each in made}) == 2


def test_avro_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    with pytest.raises(DestinationError) as raised:
        single_object(Row(pa.schema([("c", pa.int32())])).record)
    assert "cq-engine[avro]" in raised.value.hint


@given(st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=12))
def test_runs_have_no_key_twice(keys: list[str | None]) -> None:
    made = [Message(str(n), key, b"", {}, "") for n, key in enumerate(keys)]
    pieces = list(runs(made))
    assert [each for piece in pieces for each in piece] == made
    for piece in pieces:
        named = [each.key for each in piece if each.key is not None]
        assert piece
        assert len(named) == len(set(named))
