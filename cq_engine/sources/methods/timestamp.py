"""USING TIMESTAMP (Carnes & Hanson §3.2: TS, TDI, ATDI): what was written since the newest timestamp that was read.

An overlap reads again what commits that became visible late may have hidden. A timestamp that lies after the source's own
clock is read, and is not what the next tick begins from. Where the newest timestamp has gone back (its row was removed, or the
source was restored from a backup), all rows are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.model import Capture, Table
from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.destinations.options import seconds
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.methods.base import Place
from cq_engine.sources.methods.relational import Asked, Relational
from cq_engine.sources.methods.seen import seen_table, unseen
from cq_engine.sources.options import option
from cq_engine.sources.sql.conversions import Misfit, parsed
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.keys import from_text, to_text
from cq_engine.sources.sql.model import DELETED, TIMESTAMP, Statement, is_number
from cq_engine.sources.sql.select import KEYS, Bounds, clock, now, purge, reads_only_index, since
from cq_engine.sources.tick import DELETE, UPSERT, Tick, with_operation
from cq_engine.sources.whole import Whole

__all__ = ["Timestamp"]

_log = logging.getLogger(__name__)


@dataclass
class _Written:
    """Rows of the source with their timestamps, as they are read; `marked` are key and timestamp of those with the flag."""

    tick: Tick
    session: Session
    statement: Statement
    zone: tzinfo
    until: datetime | None
    """Where there are timestamps after it: only those before it count."""
    newest: Any = None
    marked: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The captured columns and `_cq_deleted`."""
        names = self.statement.names
        written, deleted = names.index(TIMESTAMP), names.index(DELETED)
        for block in self.session.blocks(self.statement):
            for row in block:
                self._note(row[written])
                if row[deleted]:
                    self.marked.append((tuple(row[place] for place in self.statement.key), row[written]))
            batch = self.session.to_batch(self.statement, self.tick.columns, block)
            yield batch.select([name for name in names if name != TIMESTAMP])

    def present(self) -> Iterator[pa.RecordBatch]:
        """The captured columns of the rows that are not deleted."""
        for batch in self.batches():
            kept = batch.filter(pc.invert(batch.column(DELETED)))
            yield kept.select([name for name in kept.schema.names if name != DELETED])

    def _note(self, value: Any) -> None:
        if value is None:
            return
        try:
            if self.newest is not None and value <= self.newest:
                return
        except TypeError:
            raise SourceError(
                f"{self.tick.capture.method.column} of {self.statement.relation} has values of several types",
                detail=f"{self.newest!r} and {value!r} cannot be compared",
            ) from None
        moment = None if self.until is None else _moment(value, self.zone)
        if moment is None or self.until is None or moment <= self.until:
            self.newest = value


def _check_newest(asked: Asked, column: str, newest: Any) -> None:
    """Raises SourceError for a timestamp that no other one comes after."""
    if str(newest).strip().lower() in ("infinity", "inf", "nan"):
        raise SourceError(
            f"{column} of {asked.selection.relation.shown} is {newest} in some row",
            detail="what is written later would not be found after it",
            hint="correct it at the source, or capture the table USING CHECKSUM or COPY",
        )


class Timestamp(Relational):
    """Positions are the newest timestamp that was read (`high`), and, until marked rows are removed at the source, the one
    from which they are looked for (`purge`)."""

    def examine(self, asked: Asked, capture: Capture, place: Place) -> list[str]:
        column = capture.method.column or ""
        _overlap(asked, capture)
        if capture.method.deleted is not None:
            asked.selection.relation.column(capture.method.deleted)
        with asked.database.connect() as session:
            newest = session.one(clock(asked.selection, column))
        if option(capture, "index") == "covering":
            low = newest[0] if newest is not None else None
            if low is not None and not reads_only_index(asked.database, self._since(asked, capture, low)):
                names = [
                    column,
                    *filter(None, [capture.method.deleted]),
                    *(c.name for c in asked.selection.columns),
                ]
                raise AnalysisError(
                    f"no index of {asked.selection.relation.shown} covers what capture {capture.name} reads",
                    detail="the source's own plan touches the table itself",
                    hint=f"create an index over {', '.join(dict.fromkeys(names))} at the source, or leave out index = 'covering'",
                    location=place("covering"),
                )
        return (
            []
            if capture.method.deleted
            else ["it does not see deletions; DELETED names a column that marks them"]
        )

    def side_tables(self, capture: Capture, table: Table) -> Sequence[CreateTable]:
        """`<capture>_seen`, beside a table WITHOUT SNAPSHOT (`methods/seen.py`)."""
        return () if table.has_snapshot else [seen_table(capture, table)]

    def ask(self, tick: Tick, asked: Asked) -> None:
        capture, position = tick.capture, tick.position
        column = capture.method.column or ""
        with asked.database.connect() as session:
            (newest,) = session.one(clock(asked.selection, column)) or (None,)
            _check_newest(asked, column, newest)
            until = self._until(session, asked, newest)
            if position is None and option(capture, "initial") == "none":
                tick.move({"high": _text(newest if until is None else None)})
                return
            high = None if position is None else _value(position["high"])
            back = high is not None and (newest is None or newest < high)
            if back:
                _log.warning(
                    "capture %s: the newest %s at the source has gone back; all rows are compared",
                    capture.name, column,
                )  # fmt: skip
            low = high if position is None else _value(position.get("purge", position["high"]))
            written = self._read(tick, asked, session, None if back else low, until)
            if low is None or back or not self._apply(tick, written, low, high):
                written = self._read(tick, asked, session, None, until)
                self._replace(tick, asked, written, newest)
        if option(capture, "purge") == "true" and written.marked:
            self._purge(tick, asked, written)

    def _read(self, tick: Tick, asked: Asked, session: Session, low: Any, until: datetime | None) -> _Written:
        statement = self._since(asked, tick.capture, low)
        return _Written(tick, session, statement, asked.database.time_zone, until)

    def _since(self, asked: Asked, capture: Capture, low: Any, keys: Bounds = (None, None)) -> Statement:
        return since(
            asked.selection, capture.method.column or "", low,
            overlap=_overlap(asked, capture), deleted=capture.method.deleted, keys=keys,
        )  # fmt: skip

    def _replace(self, tick: Tick, asked: Asked, written: _Written, newest: Any) -> None:
        """Takes all rows. Which of them are to be removed at the source, and which timestamps do not count, only the driver sees."""
        if option(tick.capture, "purge") == "true" or written.until is not None:
            tick.replace(written.present(), lambda: _reached(tick, written, written.newest, None))
            return

        def ranged(keys: Bounds) -> Statement:
            return self._since(asked, tick.capture, None, keys)

        whole = Whole(written.session, asked.selection, ranged, written.present)
        tick.replace(
            whole, lambda: _reached(tick, written, newest if whole.in_parts else written.newest, None)
        )

    def _until(self, session: Session, asked: Asked, newest: Any) -> datetime | None:
        """The source's clock, where its newest timestamp lies after it."""
        moment = _moment(newest, asked.database.time_zone)
        if moment is None:
            return None
        found = session.one(now(asked.selection))
        clocked = None if found is None else _moment(found[0], timezone.utc)
        return clocked if clocked is not None and moment > clocked else None

    def _apply(self, tick: Tick, written: _Written, low: Any, high: Any) -> bool:
        """Takes what was written; False where it is more than the driver takes."""
        taken, count = [], 0
        for batch in written.batches():
            count += len(batch)
            if count > tick.services.limits.apply_rows:
                return False
            taken.append(batch)
        tick.read += count
        newest = high  # unless there is more than what the overlap reads again
        if high is None or (written.newest is not None and written.newest > high):
            newest = written.newest
        changes: dict[str, pa.Table] = {}
        if taken:
            rows = pa.Table.from_batches(taken)
            if not tick.table.has_snapshot:
                rows, changes = unseen(tick, rows)
            gone = rows.column(DELETED)
            rows = rows.drop_columns([DELETED])
            kinds = [(pc.invert(gone), UPSERT), (gone, DELETE)]
            parts = [with_operation(rows.filter(which), kind) for which, kind in kinds]
            changes[tick.table.name] = pa.concat_tables(parts)
        tick.apply(changes, _reached(tick, written, newest, low))
        return True

    def _purge(self, tick: Tick, asked: Asked, written: _Written) -> None:
        """Removes at the source the rows that are marked, now that this is durable here."""
        method = tick.capture.method
        for start in range(0, len(written.marked), KEYS):
            some = written.marked[start : start + KEYS]
            with asked.database.write() as session:
                session.change(purge(asked.selection, method.column or "", method.deleted or "", some))
        position = dict(tick.position or {})
        position.pop("purge", None)
        tick.move(position)


def _reached(tick: Tick, written: _Written, newest: Any, low: Any) -> dict[str, str | None]:
    """The position after a tick; with what is to be removed at the source after it, from where that is looked for again."""
    purges = option(tick.capture, "purge") == "true" and written.marked
    return {"high": _text(newest), **({"purge": _text(low)} if purges else {})}


def _overlap(asked: Asked, capture: Capture) -> timedelta | int | None:
    """A length of time, or of a counter a number."""
    column = asked.selection.relation.column(capture.method.column or "")
    given = dict(capture.options).get("overlap")
    if is_number(column.type):
        if given is not None and not given.isdigit():
            raise AnalysisError(
                f"overlap = '{given}' is not for {column.name}, which is a number",
                hint="write how far back is read in the column's own unit, as in overlap = '100'",
            )
        return int(given or 0)
    text = option(capture, "overlap")
    if text.isdigit():
        raise AnalysisError(
            f"overlap = '{text}' is no length of time",
            hint="write a length of time, as in overlap = '5 minutes'",
        )
    return timedelta(seconds=seconds(text))


def _moment(value: Any, zone: tzinfo) -> datetime | None:
    """When that is; None for what is no time, such as a counter."""
    if isinstance(value, str):
        try:
            value = parsed(value)
        except (Misfit, ValueError):
            return None
    if not isinstance(value, datetime):
        return None
    return (value if value.tzinfo is not None else value.replace(tzinfo=zone)).astimezone(timezone.utc)


def _text(value: Any) -> str | None:
    return None if value is None else to_text([value])


def _value(text: str | None) -> Any:
    return None if text is None else from_text(text)[0]
