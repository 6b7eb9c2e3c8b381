"""Messages of pgoutput, made by hand."""

from __future__ import annotations

import struct
from datetime import datetime, timezone

import pytest

from cq_engine.sources.decoding.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    MalformedMessage,
    Message,
    Other,
    Relation,
    RelationColumn,
    Truncate,
    Unchanged,
    Update,
    decode,
    lsn_number,
    lsn_text,
)
from cq_engine.sources.decoding.visibility import is_visible

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, timezone.utc)
MICROSECONDS = (NOON - datetime(2000, 1, 1, tzinfo=timezone.utc)).days * 86_400_000_000 + 43_200_000_005


def row(*values: bytes | Unchanged | None) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unchanged):
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
    return b"".join(parts)


OID = struct.pack(">I", 70_000)
COLUMNS = b"\x01id\0" + struct.pack(">Ii", 23, -1) + b"\x00n\xc3\xb6te\0" + struct.pack(">Ii", 25, 7)
CASES: dict[str, tuple[bytes, Message]] = {
    "begin": (b"B" + struct.pack(">QqI", 2**33, MICROSECONDS, 2**32 - 1), Begin(2**33, NOON, 2**32 - 1)),
    "commit": (b"C" + struct.pack(">BQQq", 0, 16, 64, MICROSECONDS), Commit(16, 64, NOON)),
    "relation": (
        b"R" + OID + b"public\0Or ders\0d" + struct.pack(">H", 2) + COLUMNS,
        Relation(
            70_000, "public", "Or ders", "d",
            (RelationColumn("id", 23, -1, True), RelationColumn("nöte", 25, 7, False)),
        ),
    ),
    "relation of the catalog": (
        b"R" + OID + b"\0pg_class\0f\0\0", Relation(70_000, "pg_catalog", "pg_class", "f", ()),
    ),
    "insert": (b"I" + OID + b"N" + row(b"1", None, b""), Insert(70_000, [b"1", None, b""])),
    "update": (
        b"U" + OID + b"N" + row(b"1", Unchanged.VALUE), Update(70_000, None, None, [b"1", Unchanged.VALUE]),
    ),
    "update of the key": (
        b"U" + OID + b"K" + row(b"1", None) + b"N" + row(b"2", b"x"),
        Update(70_000, [b"1", None], None, [b"2", b"x"]),
    ),
    "update of the whole row": (
        b"U" + OID + b"O" + row(b"1", b"x") + b"N" + row(b"1", b"y"),
        Update(70_000, None, [b"1", b"x"], [b"1", b"y"]),
    ),
    "delete": (b"D" + OID + b"K" + row(b"1", None), Delete(70_000, [b"1", None], None)),
    "delete of the whole row": (b"D" + OID + b"O" + row(b"1", b"x"), Delete(70_000, None, [b"1", b"x"])),
    "truncate": (
        b"T" + struct.pack(">IB", 2, 3) + OID + struct.pack(">I", 5), Truncate((70_000, 5), True, True),
    ),
    "type": (b"Y" + OID + b"public\0mood\0", Other("Y")),
    "origin": (b"O" + struct.pack(">Q", 9) + b"elsewhere\0", Other("O")),
    "logical message": (b"M" + bytes(9) + b"prefix\0" + struct.pack(">I", 1) + b"x", Other("M")),
}  # fmt: skip
OPEN = ("type", "origin", "logical message")


@pytest.mark.parametrize("name", CASES)
def test_messages(name: str) -> None:
    data, message = CASES[name]
    assert decode(data) == message


@pytest.mark.parametrize("name", [name for name in CASES if name not in OPEN])
def test_messages_that_are_not_whole(name: str) -> None:
    data, _ = CASES[name]
    for end in range(1, len(data)):
        with pytest.raises(MalformedMessage):
            decode(data[:end])
    with pytest.raises(MalformedMessage, match="bytes, of which"):
        decode(data + b"\0")


@pytest.mark.parametrize(
    "data",
    [b"", b"S", b"I" + OID + b"K" + row(b"1"), b"D" + OID + row(b"1"), b"I" + OID + b"N\0\1b\0\0\0\1\0"],
)
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(data)


def test_names_in_another_encoding() -> None:
    data = b"R" + OID + b"s\0b\xe4ume\0d\0\0"
    found = decode(data, "latin-1")
    assert isinstance(found, Relation)
    assert found.name == "bäume"
    with pytest.raises(MalformedMessage):
        decode(data)


def test_places_in_the_log() -> None:
    for number in (0, 1, 2**32 - 1, 2**32, 2**63):
        assert lsn_number(lsn_text(number)) == number
    assert lsn_text(0x1_6B37_4D848) == "16/B374D848"


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_transactions_that_a_snapshot_sees(epoch: int) -> None:
    """Of whose numbers only 32 bits are logged, also where these begin again from 0."""
    for near in (100, 2**31, 2**32 - 5, 2**32 + 5):
        high = near + (epoch << 32)
        snapshot = f"{high - 10}:{high}:{high - 10},{high - 3}"
        running = {high - 10, high - 3}
        for number in range(high - 40, high + 40):
            if number > 2:
                wanted = number < high and number not in running
                assert is_visible(number % 2**32, snapshot) is wanted
