"""The queries by which a source is asked, in its own SQL: those of Carnes & Hanson's methods.

Keys are compared, and put in order, by the source alone, with the collation that it compares the column by: a range
(low, high] is what the source takes for it. `Selection.is_ordered` says whether the warehouse would take the same. Values of
keys and timestamps go back as the driver has given them; `keys.to_text` keeps them in a position. A row with NULL in its key
is in no range that has a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.model import CHECKSUM, DELETED, NOW, TIMESTAMP, SourceColumn, Statement, is_number
from cq_engine.sources.sql.overlap import before
from cq_engine.sources.sql.selection import Selection, selection
from cq_engine.sources.sql.text import Key, Text

__all__ = [
    "CHECKSUM",
    "DELETED",
    "KEYS",
    "NOW",
    "TIMESTAMP",
    "Bounds",
    "Key",
    "Selection",
    "clock",
    "count",
    "image",
    "image_between",
    "keys_and_checksums",
    "next_keys",
    "now",
    "plan",
    "purge",
    "range_checksums",
    "reads_only_index",
    "rows_of",
    "selection",
    "since",
    "splits",
    "without_key",
]

Bounds = tuple[Key | None, Key | None]
"""A range (low, high] of keys; None is an open end."""
KEYS = 1000
"""So many keys go well in one statement."""

_TRUE = "'T', 'TRUE', 'Y', 'YES', '1', 'D', 'DELETED'"


def image(selection: Selection, *, order: bool = False) -> Statement:
    """All rows of the selection, by Figure 1's restriction; with `order` in that of the key."""
    return image_between(selection, None, None, order=order)


def image_between(
    selection: Selection, low: Key | None, high: Key | None, *, order: bool = True
) -> Statement:
    """The rows whose key is in (low, high]; None is an open end."""
    text = Text(selection)
    wanted = text.captured()
    return text.select(wanted, [*text.between(low, high), *text.restriction()], order=order)


def next_keys(selection: Selection, after: Key | None, rows: int) -> Statement:
    """The key that ends a range of `rows` rows after `after`: one row, or none where fewer are left. The restriction does not
    count, so that no more than `rows` rows are passed; a key with NULL ends nothing."""
    text = Text(selection)
    keys = [text.read(column, column.name) for column in text.key_columns()]
    known = [f"{text.column(column)} IS NOT NULL" for column in text.key_columns() if column.nullable]
    return text.select(keys, [*text.between(after, None), *known], order=True, limit=1, offset=rows - 1)


def without_key(selection: Selection) -> Statement | None:
    """One row where a row of the selection has NULL in its key; None where no row can have it."""
    text = Text(selection)
    unknown = [f"{text.column(column)} IS NULL" for column in text.key_columns() if column.nullable]
    if not unknown:
        return None
    return text.select(
        [text.named("1", "found")], [f"({' OR '.join(unknown)})", *text.restriction()], limit=1
    )


def since(
    selection: Selection,
    timestamp: str,
    low: Any = None,
    high: Any = None,
    *,
    overlap: timedelta | Decimal | int | None = None,
    deleted: str | None = None,
    nulls: bool = False,
    keys: Bounds = (None, None),
) -> Statement:
    """The rows, of those with `keys`, that were written after `low` less `overlap`, and at `high` at the latest (TS and TDI, §3.2).

    Besides the captured columns there are `_cq_timestamp`, and `_cq_deleted`: true for rows with the flag `deleted`, and for
    those that the restriction does not let in, as they may have been in before. Without `low` these rows are left out by the
    restriction, and rows without a timestamp are among the result. With `low` they are so only with `nulls`: no write has set
    one. A flag is set where it is true, not 0, a text such as `T`, or, of any other type, not NULL.
    """
    text = Text(selection)
    column = selection.relation.column(timestamp)
    sql = text.column(column)
    flag = None if deleted is None else _flag(text, selection.relation.column(deleted))
    restriction = text.restriction()
    cases = [f"WHEN {flag} THEN 1"] if flag else []
    cases += [f"WHEN {condition} THEN 0" for condition in restriction]
    last = 1 if restriction else 0
    is_deleted = f"CASE {' '.join(cases)} ELSE {last} END" if cases else "0"
    wanted = [*text.captured(), text.read(column, TIMESTAMP), text.named(is_deleted, DELETED)]
    where = []
    if low is not None:
        where.append(f"{sql} > {text.value(column, before(low, overlap, column))}")
    if high is not None:
        where.append(f"{sql} <= {text.value(column, high)}")
    if where and (low is None or nulls):
        where = [f"({' AND '.join(where)} OR {sql} IS NULL)"]
    return text.select(wanted, [*where, *text.between(*keys), *(restriction if low is None else [])])


def clock(selection: Selection, timestamp: str) -> Statement:
    """The newest timestamp that the relation has: what `since` takes for `high`, in the source's own type. It is NULL where
    there is none."""
    text = Text(selection)
    column = selection.relation.column(timestamp)
    newest = text.server.read(column, f"MAX({text.column(column)})")
    return text.select([text.named(newest, TIMESTAMP)])


def now(selection: Selection) -> Statement:
    """The source's own clock, in UTC where it is one of ours."""
    sql = f"SELECT {selection.server.instant()}".replace("%", selection.server.percent)
    return Statement(sql, names=(NOW,))


def purge(selection: Selection, timestamp: str, deleted: str, rows: Sequence[tuple[Key, Any]]) -> Statement:
    """Removes rows that are marked deleted, given by key and timestamp: not those that were written to meanwhile, nor
    those that the restriction does not let in, which others may capture."""
    text = Text(selection)
    columns = [*text.key_columns(), selection.relation.column(timestamp)]
    among = text.among(columns, [(*key, written) for key, written in rows])
    return text.delete([_flag(text, selection.relation.column(deleted)), among, *text.restriction()])


def keys_and_checksums(
    selection: Selection, column: str | None = None, low: Key | None = None, high: Key | None = None
) -> Statement:
    """Of each row its key, under the names of the table's columns, and `_cq_checksum` (TLCS, §3.3): that of the captured
    columns, or the source's own column."""
    text = Text(selection)
    targets = [selection.names[n] for n in selection.key_places]
    keys = [text.read(key, target) for key, target in zip(text.key_columns(), targets)]
    if column is None:
        checksum = text.named(text.server.row_checksum(_pertinent(text)), CHECKSUM)
    else:
        checksum = text.read(selection.relation.column(column), CHECKSUM)
    return text.select([*keys, checksum], [*text.between(low, high), *text.restriction()])


def rows_of(selection: Selection, keys: Sequence[Key]) -> Statement:
    """The rows of the selection with these keys, of which there should be at most `KEYS`."""
    text = Text(selection)
    return text.select(text.captured(), [text.among(text.key_columns(), keys), *text.restriction()])


def range_checksums(selection: Selection, ranges: Sequence[Bounds]) -> Statement:
    """A row for each of the ranges (low, high]: its place among them, how many rows of the selection have keys in it, and a
    checksum of these in any order (ID/RCS, §3.6).

    It is the sums of two times 60 bits of the checksums of the rows, as decimal text, which no number of rows overflows.
    """
    text = Text(selection)
    return text.each(
        [
            text.server.range_checksum(
                _pertinent(text), text.source([*text.between(*each), *text.restriction()])
            )
            for each in ranges
        ],
        ["counted", CHECKSUM],
    )


def count(session: Session, selection: Selection, most: int | None = None) -> int:
    """The number of rows of the relation; of more than `most` not more are counted."""
    text = Text(selection)
    some = text.select([text.named("1", "one")], limit=most)
    (rows,) = session.one(Statement(f"SELECT COUNT(*) FROM ({some.sql}) AS c", some.parameters)) or (0,)
    return int(rows)


def splits(session: Session, selection: Selection, rows: int, parts: int) -> list[Bounds]:
    """At most so many ranges of about as many of the relation's `rows`, together all of it, with open ends."""
    each, bounds = -(-rows // max(1, parts)), list[Key]()
    while each and len(bounds) < parts - 1:
        bound = session.one(next_keys(selection, bounds[-1] if bounds else None, each))
        if bound is None:
            break
        bounds.append([bytes(value) if isinstance(value, memoryview) else value for value in bound])
    ends: list[Key | None] = [None, *bounds, None]
    return list(pairwise(ends))


def plan(database: Database, statement: Statement) -> str:
    """The source's own EXPLAIN of a statement."""
    with database.connect() as session, database.failing():
        return "\n".join(database.server.explain(session.connection, statement.sql, statement.parameters))


def reads_only_index(database: Database, statement: Statement) -> bool:
    """Whether the source's plan answers a statement from indexes alone, and does not touch the base relation (ATDI, §3.2.2).

    PostgreSQL looks at the base relation nevertheless for rows of pages that VACUUM has not seen since they were written.
    """
    with database.connect() as session, database.failing():
        return database.server.reads_only_index(session.connection, statement.sql, statement.parameters)


def _pertinent(text: Text) -> list[tuple[SourceColumn, str]]:
    selection = text.selection
    return text.columns([selection.relation.column(column.name) for column in selection.columns])


def _flag(text: Text, column: SourceColumn) -> str:
    """A condition: the delete flag is set."""
    sql = text.column(column)
    as_text = f"UPPER(TRIM({sql})) IN ({_TRUE})"
    if column.type == "boolean":
        return f"({sql} IS TRUE OR {as_text})" if text.server.name == "sqlite" else f"{sql} IS TRUE"
    if is_number(column.type):
        return f"{sql} <> 0"
    return as_text if column.type == "string" else f"{sql} IS NOT NULL"
