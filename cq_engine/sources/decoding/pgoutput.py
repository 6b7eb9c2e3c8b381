"""The messages of pgoutput, the output plugin that every PostgreSQL server has, in version 1 of its protocol.

They are described in PostgreSQL's manual under "Logical Replication Message Formats". Numbers are big-endian, names end with a
zero byte, values are the text that the server's output functions give, in the encoding of the client.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import NamedTuple, TypeAlias

__all__ = [
    "Begin",
    "Commit",
    "Delete",
    "Insert",
    "MalformedMessage",
    "Message",
    "Other",
    "Relation",
    "RelationColumn",
    "Truncate",
    "Unchanged",
    "Update",
    "Value",
    "Values",
    "decode",
    "lsn_number",
    "lsn_text",
]

_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)


class MalformedMessage(ValueError):
    """Bytes that are no message of this protocol."""


class Unchanged(Enum):
    """A large value that an update has left as it is, so that it is not sent (TOAST)."""

    VALUE = "u"


Value: TypeAlias = "bytes | Unchanged | None"
"""A value of a row; NULL is None."""
Values: TypeAlias = list[Value]
"""A row, in the order of its relation's columns."""


class Begin(NamedTuple):
    """A transaction begins; the place in the log of its commit, when that was, and its number, which has 32 bits."""

    commit_lsn: int
    committed: datetime
    xid: int


class Commit(NamedTuple):
    """A transaction ends; `end_lsn` is what follows its commit in the log."""

    commit_lsn: int
    end_lsn: int
    committed: datetime


class RelationColumn(NamedTuple):
    """A column of a table; `in_identity` where it identifies the rows that are updated and deleted."""

    name: str
    type_oid: int
    modifier: int
    in_identity: bool


class Relation(NamedTuple):
    """A table as it was when the rows that follow were written."""

    oid: int
    schema: str
    name: str
    identity: str
    """Its REPLICA IDENTITY: d(efault), n(othing), f(ull) or i(ndex)."""
    columns: tuple[RelationColumn, ...]


class Insert(NamedTuple):
    """A row that is new."""

    relation: int
    new: Values


class Update(NamedTuple):
    """A row that has changed: `key` has only the columns of its identity, and is there where these have changed; `old` is
    there where the identity is the whole row."""

    relation: int
    key: Values | None
    old: Values | None
    new: Values


class Delete(NamedTuple):
    """A row that is gone, by what identifies it or as a whole."""

    relation: int
    key: Values | None
    old: Values | None


class Truncate(NamedTuple):
    """Tables that were emptied."""

    relations: tuple[int, ...]
    cascade: bool
    restart: bool


class Other(NamedTuple):
    """What says nothing about rows: a type's name, where a transaction has come from, a message of a program."""

    kind: str


Message: TypeAlias = "Begin | Commit | Relation | Insert | Update | Delete | Truncate | Other"


def decode(data: bytes, encoding: str = "utf-8") -> Message:
    """The message that the bytes are; `encoding` is that of names. Raises MalformedMessage.

    >>> decode(b"B" + bytes(16) + bytes([0, 0, 2, 1])).xid
    513
    """
    read = _READERS.get(data[:1])
    if read is None:
        raise MalformedMessage(f"there is no message {data[:1]!r}")
    try:
        message, end = read(data, encoding)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"a message {data[:1]!r} is not whole: {error}") from None
    if end != len(data):
        raise MalformedMessage(f"a message {data[:1]!r} has {len(data)} bytes, of which {end} are known")
    return message


def lsn_text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it.

    >>> lsn_text(0x116B3748), lsn_number("1/6B3748") == (1 << 32) + 0x6B3748
    ('0/116B3748', True)
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """A place in the log as a number of bytes."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


# ---------------------------------------------------------------- parts

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_COUNT = struct.Struct(">H")
_OID = struct.Struct(">I")
_COLUMN = struct.Struct(">Ii")
_TRUNCATE = struct.Struct(">IB")
_NULL, _TEXT, _UNCHANGED = b"ntu"


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _name(data: bytes, at: int, encoding: str) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise IndexError("a name has no end")
    return data[at:end].decode(encoding), end + 1


def _values(data: bytes, at: int) -> tuple[Values, int]:
    (count,) = _COUNT.unpack_from(data, at)
    at += 2
    values: Values = []
    add = values.append
    length = _OID.unpack_from
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            (size,) = length(data, at)
            at += 4
            add(data[at : at + size])
            at += size
        elif kind == _NULL:
            add(None)
        elif kind == _UNCHANGED:
            add(Unchanged.VALUE)
        else:
            raise IndexError(f"a value of kind {chr(kind)!r} was not asked for")
    return values, at


def _old(data: bytes, at: int) -> tuple[Values | None, Values | None, int]:
    """The key and the old row, of which one is there or none, and where what follows begins."""
    if data[at] == ord("K"):
        key, at = _values(data, at + 1)
        return key, None, at
    if data[at] == ord("O"):
        old, at = _values(data, at + 1)
        return None, old, at
    return None, None, at


def _new(data: bytes, at: int) -> tuple[Values, int]:
    if data[at] != ord("N"):
        raise IndexError("the new row is missing")
    return _values(data, at + 1)


# ---------------------------------------------------------------- messages


def _begin(data: bytes, _: str) -> tuple[Message, int]:
    commit, moment, xid = _BEGIN.unpack_from(data, 1)
    return Begin(commit, _time(moment), xid), 1 + _BEGIN.size


def _commit(data: bytes, _: str) -> tuple[Message, int]:
    _flags, commit, end, moment = _COMMIT.unpack_from(data, 1)
    return Commit(commit, end, _time(moment)), 1 + _COMMIT.size


def _relation(data: bytes, encoding: str) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, 1)
    schema, at = _name(data, 5, encoding)
    name, at = _name(data, at, encoding)
    identity = chr(data[at])
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _name(data, at + 1, encoding)
        kind, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(column, kind, modifier, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _insert(data: bytes, _: str) -> tuple[Message, int]:
    (relation,) = _OID.unpack_from(data, 1)
    new, at = _new(data, 5)
    return Insert(relation, new), at


def _update(data: bytes, _: str) -> tuple[Message, int]:
    (relation,) = _OID.unpack_from(data, 1)
    key, old, at = _old(data, 5)
    new, at = _new(data, at)
    return Update(relation, key, old, new), at


def _delete(data: bytes, _: str) -> tuple[Message, int]:
    (relation,) = _OID.unpack_from(data, 1)
    key, old, at = _old(data, 5)
    if key is None and old is None:
        raise IndexError("the old row is missing")
    return Delete(relation, key, old), at


def _truncate(data: bytes, _: str) -> tuple[Message, int]:
    count, options = _TRUNCATE.unpack_from(data, 1)
    relations = struct.unpack_from(f">{count}I", data, 6)
    return Truncate(relations, bool(options & 1), bool(options & 2)), 6 + 4 * count


def _other(data: bytes, _: str) -> tuple[Message, int]:
    return Other(chr(data[0])), len(data)


_READERS: Mapping[bytes, Callable[[bytes, str], tuple[Message, int]]] = {
    b"B": _begin, b"C": _commit, b"R": _relation, b"I": _insert, b"U": _update, b"D": _delete, b"T": _truncate,
    b"Y": _other, b"O": _other, b"M": _other,
}  # fmt: skip
