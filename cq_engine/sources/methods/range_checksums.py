"""USING RANGES (…, CHECKSUM) (Carnes & Hanson §3.6 ID/RCS): only ranges whose checksum is another are read.

The ranges, and what they had, are kept in a table beside the capture's own. A step asks for the checksums of several ranges in
one transaction, and reads those that have changed in the same; it passes no more rows than the driver would hold of a statement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa

from cq_engine.catalog.model import Capture
from cq_engine.core.types import arrow_type
from cq_engine.grammar.clauses import ColumnSpec, PrimaryKeySpec
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.methods.range_rows import RangeRows
from cq_engine.sources.methods.relational import Asked
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.keys import from_text, to_text
from cq_engine.sources.sql.select import Bounds, next_keys, range_checksums
from cq_engine.sources.tick import UPSERT, Tick, with_operation
from cq_engine.spark.arrow_io import to_arrow

__all__ = ["RangeChecksums", "side_name", "side_table"]

_AT_ONCE = 50
"""Ranges of one statement."""
_COLUMNS = (
    ("range", "BIGINT"),
    ("low", "STRING"),
    ("high", "STRING"),
    ("rows", "BIGINT"),
    ("checksum", "STRING"),
)


@dataclass(frozen=True)
class _Range:
    """Keys in (low, high], as text of the source's values; None is an open end. Without a checksum it was never read."""

    number: int
    low: str | None
    high: str | None
    rows: int = 0
    checksum: str | None = None

    @property
    def bounds(self) -> Bounds:
        low, high = (None if end is None else from_text(end) for end in (self.low, self.high))
        return low, high


class RangeChecksums:
    """A pass over the ranges of a capture."""

    def __init__(self, tick: Tick, asked: Asked, size: int, rows: RangeRows) -> None:
        self._tick, self._asked, self._size, self._rows = tick, asked, size, rows
        limits = tick.services.limits
        self._most = max(1, min(_AT_ONCE, min(limits.pending_rows, limits.apply_rows) // 2 // size))
        self._whole = min(2 * size, limits.apply_rows)
        self._numbers: Iterator[int] = count()
        self._queue: deque[_Range] = deque()
        self._changed: list[_Range] = []

    def steps(self, after: str | None) -> Iterator[str | None]:
        """Goes through the ranges after the one that ends with the key `after`; the end of each step."""
        ranges, number = _known(self._tick)
        self._numbers = count(number)
        if after is not None:
            ends = [each.high for each in ranges]
            ranges = ranges[ends.index(after) + 1 :] if after in ends else []
        self._queue = deque(ranges)
        while self._queue:
            with self._asked.database.connect() as session:
                is_known = self._queue[0].checksum is not None
                reached = self._known_step(session) if is_known else self._new_step(session)
            yield reached

    @property
    def count(self) -> int:
        """Of how many ranges `changed` would tell."""
        return len(self._changed)

    def changed(self) -> pa.Table | None:
        """The ranges that are others than those in the table, as its changes; they are given once."""
        ranges, self._changed = self._changed, []
        if not ranges:
            return None
        values = {
            name: [getattr(each, "number" if name == "range" else name) for each in ranges]
            for name, _ in _COLUMNS
        }
        arrays = {name: pa.array(values[name], arrow_type(kind)) for name, kind in _COLUMNS}
        return with_operation(pa.table(arrays), UPSERT)

    def _known_step(self, session: Session) -> str | None:
        """The next ranges that have checksums; those that are others now are read."""
        some: list[_Range] = []
        while self._queue and self._queue[0].checksum is not None and len(some) < self._most:
            some.append(self._queue.popleft())
        now = self._summed(session, some)
        together: list[_Range] = []
        for place, (was, found) in enumerate(zip(some, now)):
            if found == was:
                continue
            if found.rows > self._whole:
                anew = replace(was, rows=0, checksum=None)
                if found.rows > self._most * self._size:  # for steps of its own
                    self._queue.extendleft([*reversed(some[place + 1 :]), anew])
                    some = some[:place]
                    break
                rest: _Range | None = anew
                while rest is not None:
                    rest = self._cut(session, rest)
                continue
            if together and together[-1].high != was.low:
                self._read(session, together)
                together = []
            together.append(found)
        self._read(session, together)
        return some[-1].high if some else was.low

    def _new_step(self, session: Session) -> str | None:
        """The begin of a range that was never read, or all of it."""
        each = self._queue.popleft()
        rest = self._cut(session, each)
        if rest is not None:
            self._queue.appendleft(rest)
            self._changed.append(rest)  # should no more than this be written
        return each.high if rest is None else rest.low

    def _cut(self, session: Session, each: _Range) -> _Range | None:
        """Reads ranges of `size` rows in the place of one that has more, as many as a step takes; what is left of it."""
        low, last = each.low, each.bounds[1]
        pieces: list[_Range] = []
        rest: _Range | None = each
        while rest is not None and len(pieces) < self._most:
            high = session.one(
                next_keys(self._asked.selection, None if low is None else from_text(low), self._size)
            )
            if high is None or (last is not None and tuple(high) >= tuple(last)):
                pieces.append(rest)
                rest = None
            else:
                pieces.append(_Range(next(self._numbers), low, to_text(high)))
                low = to_text(high)
                rest = replace(each, low=low)
        self._read(session, self._summed(session, pieces))
        return rest

    def _summed(self, session: Session, ranges: Sequence[_Range]) -> list[_Range]:
        """The ranges as they are at the source."""
        found = session.rows(range_checksums(self._asked.selection, [each.bounds for each in ranges]))
        sums = {int(number): (int(rows), str(checksum)) for number, rows, checksum in found}
        pairs = ((each, *sums[place]) for place, each in enumerate(ranges))
        return [replace(each, rows=rows, checksum=checksum) for each, rows, checksum in pairs]

    def _read(self, session: Session, ranges: Sequence[_Range]) -> None:
        """Reads ranges that follow one another."""
        if ranges:
            self._rows.read(session, (ranges[0].bounds[0], ranges[-1].bounds[1]))
            self._changed += ranges


def side_name(capture: Capture) -> str:
    """The name of the table that keeps the ranges."""
    return f"{capture.name}_ranges"


def side_table(capture: Capture) -> CreateTable:
    """The table: the ranges, and how many rows and which checksum each had."""
    columns = tuple(ColumnSpec(name, kind, nullable=name != "range") for name, kind in _COLUMNS)
    return CreateTable(side_name(capture), columns, PrimaryKeySpec(("range",)))


def _known(tick: Tick) -> tuple[list[_Range], int]:
    """The ranges of the last time, from the least keys to the greatest, or one of all keys; and a number for the next."""
    side = tick.beside(side_name(tick.capture))
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
