"""USING RANGES (Carnes & Hanson §3.5 ID and §3.6 ID/RCS): the table is compared range of keys by range of keys.

Each step reads one bounded range in a transaction of its own, and nothing is locked for longer. Rows that move from one range
to another while the ranges are read end up where they are at the next tick, at the latest. With CHECKSUM a range is read only
where its checksum, which the source computes, is not that of the last time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import arrow_type
from cq_engine.grammar.statements import ColumnSpec, CreateTable, PrimaryKeySpec
from cq_engine.sources.methods.base import Place
from cq_engine.sources.methods.relational import Asked, Relational, opened
from cq_engine.sources.options import option
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.keys import from_text, to_text
from cq_engine.sources.sql.model import Statement, is_number
from cq_engine.sources.sql.select import Key, image_between, next_keys, range_checksum
from cq_engine.sources.tick import DELETE, UPSERT, Tick, with_operation
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote

__all__ = ["Ranges"]

Bounds = tuple[Key | None, Key | None]

_COLUMNS = (
    ("range", "BIGINT"),
    ("low", "STRING"),
    ("high", "STRING"),
    ("rows", "BIGINT"),
    ("checksum", "STRING"),
)


@dataclass(frozen=True)
class _Range:
    """Keys in (low, high], as text of the source's values; None is an open end."""

    number: int
    low: str | None
    high: str | None
    rows: int = 0
    checksum: str | None = None

    @property
    def bounds(self) -> Bounds:
        low, high = (None if end is None else from_text(end) for end in (self.low, self.high))
        return low, high


@dataclass
class _Found:
    """What differs in the ranges that were read and are not written yet."""

    tick: Tick
    changes: list[pa.Table] = field(default_factory=list)
    ranges: list[_Range] = field(default_factory=list)
    count: int = 0

    def add(self, rows: pa.Table, ours: pa.Table) -> None:
        """The rows that a range has at the source, and those that it has here."""
        gone = ours.filter(pa.array(~self.tick.among(ours, rows))).select(rows.column_names)
        self.changes += [with_operation(rows, UPSERT), with_operation(gone, DELETE)]
        self.count += rows.num_rows + gone.num_rows

    def write(self, position: Mapping[str, Any]) -> None:
        """As one commit; nothing is kept after it."""
        given = {}
        if self.changes:
            rows, most = pa.concat_tables(self.changes), self.tick.services.limits.apply_rows
            while rows.num_rows > most:  # a part says nothing of where the others are: it may come again
                here = self.tick.position or {"after": None}
                self.tick.apply({self.tick.table.name: rows.slice(0, most)}, here)
                rows = rows.slice(most)
            given[self.tick.table.name] = rows
        if self.ranges:
            given[_side(self.tick.capture)] = _as_rows(self.ranges)
        self.tick.apply(given, position)
        self.changes, self.ranges, self.count = [], [], 0


def _as_rows(ranges: Sequence[_Range]) -> pa.Table:
    values = {
        name: [getattr(each, "number" if name == "range" else name) for each in ranges]
        for name, _ in _COLUMNS
    }
    arrays = {name: pa.array(values[name], arrow_type(kind)) for name, kind in _COLUMNS}
    return with_operation(pa.table(arrays), UPSERT)


class Ranges(Relational):
    """Positions are the key (`after`) that the ranges were read up to; None between two passes."""

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        with opened(declared, capture, table) as asked:
            _check_key(asked, table, place)
            return capture, self.examine(asked, capture, place)

    def examine(self, asked: Asked, capture: Capture, place: Place) -> list[str]:
        del capture
        if not asked.selection.is_ordered:
            named = [c.name for c in asked.selection.key_columns if not c.ordered]
            raise AnalysisError(
                f"{asked.selection.relation.shown} orders {named[0]} in a way that ranges cannot follow",
                detail="its collation compares text otherwise than byte by byte",
                hint="use CHECKSUM or COPY, or give the column a binary collation at the source",
                location=place("RANGES"),
            )
        return []

    def side_tables(self, capture: Capture, table: Table) -> Sequence[CreateTable]:
        """`<capture>_ranges`, with CHECKSUM: the ranges, and how many rows and which checksum each had."""
        del table
        if not capture.method.checksum:
            return ()
        columns = tuple(ColumnSpec(name, kind, nullable=name != "range") for name, kind in _COLUMNS)
        return [CreateTable(_side(capture), columns, PrimaryKeySpec(("range",)))]

    def ask(self, tick: Tick, asked: Asked) -> None:
        _check_key(asked, tick.table)
        position = tick.position or {"after": None}
        found, size = _Found(tick), int(option(tick.capture, "rows"))
        most = tick.services.limits.pending_rows // 2
        steps = _by_checksums if tick.capture.method.checksum else _by_keys
        for reached in steps(tick, asked, size, position["after"], found):
            if found.count >= most:
                found.write({"after": reached})
        found.write({"after": None})


def _check_key(asked: Asked, table: Table, place: Place = lambda _: None) -> None:
    """Raises AnalysisError where the warehouse orders the key otherwise than the source, as text and numbers are."""
    types = {column.name.lower(): column.type for column in table.columns}
    for column, where in zip(asked.selection.key_columns, asked.selection.key_places):
        name = asked.selection.names[where]
        ours = types[name.lower()]
        if _family(column.type) != _family(ours):
            raise AnalysisError(
                f"{name} is {ours} here and {column.type} at the source, which orders it otherwise",
                hint=f"declare it as {column.type.upper()}, or use CHECKSUM or COPY",
                location=place("RANGES"),
            )


def _family(kind: str) -> str:
    """Types of one family are ordered alike."""
    plain = kind.lower().split("(")[0].strip()
    if is_number(kind):
        return "number"
    if plain.startswith("timestamp"):
        return "timestamp"
    return "string" if plain in ("char", "varchar") else plain


def _by_keys(tick: Tick, asked: Asked, size: int, after: str | None, found: _Found) -> Iterator[str | None]:
    """Reads range after range; the ends of those that were read."""
    while True:
        low = None if after is None else from_text(after)
        with asked.database.connect() as session:
            high = session.one(next_keys(asked.selection, low, size))
            _compare(tick, asked, session, (low, high), found)
        if high is None:
            return
        after = to_text(high)
        yield after


def _by_checksums(
    tick: Tick, asked: Asked, size: int, after: str | None, found: _Found
) -> Iterator[str | None]:
    """The same for the ranges that are known, of which only those are read that have changed."""
    ranges, number = _known(tick)
    passed = after is None
    for each in ranges:
        if not passed:
            passed = each.high == after
            continue
        with asked.database.connect() as session:
            rows, checksum = _summed(session, asked, each)
            if each.checksum is not None and (rows, checksum) == (each.rows, each.checksum):
                continue
            pieces = [each]
            if rows > 2 * size:
                pieces = list(_split(session, asked, each, size, number))
                number += len(pieces)
            for piece in pieces:
                _compare(tick, asked, session, piece.bounds, found)
                counted, summed = (rows, checksum) if piece is each else _summed(session, asked, piece)
                found.ranges.append(_Range(piece.number, piece.low, piece.high, counted, summed))
                if piece.number != each.number:  # the rest of the range, should no more than this be written
                    found.ranges.append(_Range(each.number, piece.high, each.high))
                    yield piece.high
        yield each.high


def _summed(session: Session, asked: Asked, each: _Range) -> tuple[int, str]:
    row = session.one(range_checksum(asked.selection, *each.bounds))
    return (0, "") if row is None else (int(row[0]), str(row[1]))


def _split(session: Session, asked: Asked, each: _Range, size: int, number: int) -> Iterator[_Range]:
    """Ranges of `size` rows in the place of one that has too many."""
    low, last = each.low, each.bounds[1]
    while True:
        high = session.one(next_keys(asked.selection, None if low is None else from_text(low), size))
        if high is None or (last is not None and tuple(high) >= tuple(last)):
            yield _Range(each.number, low, each.high)
            return
        yield _Range(number, low, to_text(high))
        low, number = to_text(high), number + 1


def _compare(tick: Tick, asked: Asked, session: Session, bounds: Bounds, found: _Found) -> None:
    """Reads a range, and notes what differs here."""
    batches = session.batches(image_between(asked.selection, *bounds), tick.columns)
    rows, _ = tick.take(batches, tick.services.limits.apply_rows)
    if rows is None:
        raise AnalysisError(
            f"a range of capture {tick.capture.name} has more rows than the driver takes",
            hint="write fewer rows, as in RANGES (rows = 1000)",
        )
    found.add(rows, _ours(tick, asked, session, bounds))


def _ours(tick: Tick, asked: Asked, session: Session, bounds: Bounds) -> pa.Table:
    """The rows of the table whose keys are in the range."""
    names = [asked.selection.names[place] for place in asked.selection.key_places]
    low, high = (None if end is None else _in_our_types(tick, session, names, end) for end in bounds)
    small = tick.own_rows()
    if small is not None:
        fields = [pc.field(name) for name in names]
        inside = _inside(fields, low, high)
        return small if inside is None else small.filter(inside)
    frame = tick.services.reader.image(tick.table.storage, tick.services.catalog.newest_version)
    values = [None if end is None else [each.as_py() for each in end] for end in (low, high)]
    condition = _inside([f.col(quote(name)) for name in names], *values)
    return to_arrow(frame if condition is None else frame.where(condition))


def _in_our_types(tick: Tick, session: Session, names: Sequence[str], key: Key) -> list[Any]:
    """A key of the source as values of our columns."""
    batch = session.to_batch(Statement("", names=tuple(names)), tick.columns, [key])
    return [batch.column(place)[0] for place in range(len(names))]


def _inside(columns: Sequence[Any], low: Sequence[Any] | None, high: Sequence[Any] | None) -> Any:
    """The condition (low, high] over columns of Arrow or Spark; None where both ends are open."""
    above = None if low is None else _beyond(columns, low)
    below = None if high is None else ~_beyond(columns, high)
    return above if below is None else below if above is None else above & below


def _beyond(columns: Sequence[Any], values: Sequence[Any]) -> Any:
    """Greater than the values, column by column."""
    condition = columns[-1] > values[-1]
    for column, value in reversed(list(zip(columns[:-1], values[:-1]))):
        condition = (column > value) | ((column == value) & condition)
    return condition


def _side(capture: Capture) -> str:
    return f"{capture.name}_ranges"


def _known(tick: Tick) -> tuple[list[_Range], int]:
    """The ranges of the last time, from the least keys to the greatest, or one of all keys; and a number for the next."""
    side = tick.beside(_side(tick.capture))
    kept = tick.own_rows(side)
    if kept is None:
        kept = to_arrow(tick.services.reader.image(side.storage, tick.services.catalog.newest_version))
    rows = [_Range(each.pop("range"), **each) for each in kept.to_pylist()]
    number = max((each.number for each in rows), default=0) + 1
    by_low = {each.low: each for each in rows}
    inorder = [by_low.pop(None, _Range(number, None, None))]
    while inorder[-1].high in by_low and inorder[-1].high is not None:
        inorder.append(by_low.pop(inorder[-1].high))
    if inorder[-1].high is not None:
        inorder.append(_Range(number + 1, inorder[-1].high, None))
    return inorder, number + 2
