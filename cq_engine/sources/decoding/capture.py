"""USING LOG WITH (slot = 'name') over PostgreSQL: its own log, decoded by the server and read from a replication slot.

Slot and publication come and go with the capture. They are read by SQL functions: a tick looks at what has been committed since
(`pg_logical_slot_peek_binary_changes`), writes it as the source's own transactions, and only when that is durable here, together
with the place in the log that goes with it, the slot is advanced to that place. What a killed process has written, but not
advanced over, lies before the position: the next tick advances first. So nothing is lost, and nothing comes twice.

The first tick reads all rows. The slot is older than that, so that it has transactions whose rows have been read already; going
through them would bring back states that are over. Their commits cannot be told by places in the log, as a transaction becomes visible
some time after its commit was logged. So the position keeps the snapshot that the rows were read with (`pg_current_snapshot()`):
transactions that it sees are passed over. All of them were logged before `until`, the end of the log after the snapshot was
taken: from there on the snapshot is not needed any more.

The end of the log is asked for once, before a tick reads: everything that was logged before is read, if it was flushed, and then
the slot advances to there, also where nothing has happened to the table: else the server would have to keep its log forever.

Partitions are published as their table. What one of them has is not logged when it comes or goes or is emptied by itself, so that
the position knows which ones there were.

All rows are compared, in one commit, when a capture that has failed is resumed, where one transaction has more changes than
`Limits.apply_rows`, and where other partitions are there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import AnalysisError, ConflictError, SourceError
from cq_engine.sources.decoding.pgoutput import Begin, lsn_number, lsn_text
from cq_engine.sources.decoding.slot import Slot, check_server, end_of_log, is_flushed
from cq_engine.sources.decoding.table import LoggedTable, check, check_partitions, look, name_of
from cq_engine.sources.decoding.transactions import Reading, TooLarge
from cq_engine.sources.decoding.values import Converter, Ready, complete, encoding_of
from cq_engine.sources.decoding.visibility import is_visible
from cq_engine.sources.methods.base import Place
from cq_engine.sources.methods.relational import Asked, Relational, opened
from cq_engine.sources.options import option
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import differences
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.tick import Tick

__all__ = ["Decoding"]

_log = logging.getLogger(__name__)


class Decoding(Relational):
    """Positions are the slot (`slot`), what was published (`was`), and up to where the log was read (`lsn`); `snapshot` and `until`
    where transactions before `until` may have been read with the table, and `whole` where all rows are to be compared."""

    def examine(self, asked: Asked, capture: Capture, place: Place) -> list[str]:
        selection, slot = asked.selection, _slot_of(capture)
        if selection.relation.query is not None or not selection.key:
            raise AnalysisError("USING LOG needs a table with a key", location=place("LOG"))
        with asked.database.connect() as session:
            encoding_of(session)
            check_server(session, place)
            check(look(session, selection), selection, capture, place)
            if slot.is_taken(session):
                raise AnalysisError(
                    f"source {capture.source} has a slot {slot.name} or a publication {slot.publication} already",
                    detail="a slot has one reader: it may be that of another capture or warehouse",
                    hint="choose another name, or drop slot and publication where nobody reads them",
                    location=place("slot"),
                )
        made = f"slot {slot.name} and publication {slot.publication} are made at the source"
        return [f"{made}, which keeps its log until it is read, also while the capture is paused"]

    def prepare(
        self, declared: DeclaredSource, capture: Capture, table: Table, position: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        slot = _slot_of(capture)
        with opened(declared, capture, table) as asked:
            selection = asked.selection
            with asked.database.connect() as session:
                _hold(session, selection)
                now = look(session, selection)
                check(now, selection, capture)
                if position is not None and not _reasons(session, slot, now, selection, position):
                    return {**position, "whole": True, "snapshot": None, "until": None}
            if position is not None and "slot" in position:
                Slot(position["slot"]).remove(asked.database)
            lsn = slot.install(asked.database, selection, is_partitioned=now.is_partitioned)
            try:
                with asked.database.connect() as session:
                    was = _state(slot, session, look(session, selection), selection)
            except BaseException:
                with suppress(SourceError):
                    slot.remove(asked.database)
                raise
        whole = position is not None or option(capture, "initial") == "snapshot"
        return {
            "slot": slot.name,
            "was": was,
            "lsn": lsn_text(lsn),
            "whole": whole,
            "snapshot": None,
            "until": None,
        }

    def release(self, declared: DeclaredSource, capture: Capture, position: Mapping[str, Any] | None) -> None:
        with Database.open(declared) as database:
            Slot((position or {}).get("slot") or option(capture, "slot")).remove(database)

    def ask(self, tick: Tick, asked: Asked) -> None:
        position, slot = tick.position, _slot_of(tick.capture)
        if position is None:
            raise ConflictError(
                f"slot {slot.name} of capture {tick.capture.name} is not made yet",
                hint=f"where CREATE CAPTURE has not ended, ALTER CAPTURE {tick.capture.name} RESUME makes it",
            )
        at = _At(tick, asked, slot, position)
        if not position["whole"]:
            while at.read():
                pass
        if at.position["whole"]:
            at.read_all()


@dataclass
class _At:
    """A tick, and where it stands in the log."""

    tick: Tick
    asked: Asked
    slot: Slot
    position: Mapping[str, Any]
    end: int | None = None
    """The end of the log when the tick began to read."""

    @property
    def lsn(self) -> int:
        return lsn_number(self.position["lsn"])

    def read_all(self) -> None:
        """Compares all rows with the table, and notes which transactions were among them."""
        with self.asked.database.connect() as session:
            now = self._look(session)
            (snapshot,) = session.one(Statement("SELECT CAST(txid_current_snapshot() AS text)")) or ("",)
            until = lsn_text(end_of_log(session))
            known = {"whole": False, "snapshot": snapshot, "until": until}
            reached = {**self.position, **known, "was": {**self.position["was"], **now.layout}}
            self.tick.replace(self.asked.whole(session, self.tick.columns), reached)

    def read(self) -> bool:
        """Reads some transactions, and writes them; whether there may be more. The slot advances last."""
        most = self.tick.services.limits.pending_rows
        with self.asked.database.connect() as session:
            table = self._look(session)
            if self._has_other_partitions(table):
                self.position = {**self.position, "whole": True}
                return False
            if self.end is None:
                self.slot.advance(self.asked.database, self.lsn)  # where a killed process has not
                self.end = end_of_log(session)
                if self.end == self.lsn:
                    self.tick.move(self.position)
                    return False
            has_all = is_flushed(session, self.end)
            reading = self._reading(table, encoding_of(session))
            too_large = False
            try:
                with closing(self.slot.peek(session, self.end, most)) as messages:
                    reading.read(messages)
            except TooLarge:
                too_large = True
            converter = Converter(self.tick, session, table, self.asked.selection)
            ready = converter.convert(reading.steps)
            wanted = converter.keys()
        is_last = reading.messages < most and not too_large
        reached = max(reading.end, self.lsn, self.end if is_last and has_all else 0)
        self._write(complete(self.tick, ready, wanted, self.asked.selection), reached)
        self.slot.advance(self.asked.database, self.lsn)
        if too_large:
            _log.warning(
                "capture %s: a transaction has too many changes; all rows are compared",
                self.tick.capture.name,
            )
            self.position = {**self.position, "whole": True}
        return not is_last and not too_large

    def _has_other_partitions(self, table: LoggedTable) -> bool:
        """Whether there may be rows of which nothing is logged as the table's: partitions have come or gone, or were emptied."""
        if table.layout.items() <= self.position["was"].items():
            return False
        _log.warning(
            "capture %s: other partitions are there, or one was emptied; all rows are compared",
            self.tick.capture.name,
        )
        return True

    def _write(self, steps: list[Ready], reached: int) -> None:
        """Writes the steps, each with the place in the log after it; the last one with what is reached."""
        for number, step in enumerate(steps, 1):
            after = self._after(reached if number == len(steps) else step.end)
            if step.empties:
                self.tick.replace(step.rows.to_batches(), after)
            else:
                self.tick.apply({self.tick.table.name: step.rows}, after, transactional=True)
            self.position = after
        if not steps:
            self.position = self._after(reached)
            self.tick.move(self.position)

    def _after(self, lsn: int) -> Mapping[str, Any]:
        after = {**self.position, "lsn": lsn_text(lsn)}
        if after["until"] is not None and lsn >= lsn_number(after["until"]):
            after["snapshot"] = after["until"] = None
        return after

    def _reading(self, table: LoggedTable, encoding: str) -> Reading:
        tick, selection = self.tick, self.asked.selection
        return Reading(
            table, selection, selection.where is not None, self._skips(), tick.services.limits.apply_rows, tick.count, encoding
        )  # fmt: skip

    def _skips(self) -> Callable[[Begin], bool]:
        """Whether what a transaction did is here already."""
        lsn, snapshot, until = self.lsn, self.position["snapshot"], self.position["until"]
        if snapshot is None:
            return lambda begin: begin.commit_lsn < lsn
        limit = lsn_number(until)
        return lambda begin: (
            begin.commit_lsn < lsn or (begin.commit_lsn < limit and is_visible(begin.xid, snapshot))
        )

    def _look(self, session: Session) -> LoggedTable:
        """The table as it is now, which nobody alters as long as the session lasts. Raises SourceError where what was not read yet
        may not be in the slot."""
        selection, capture = self.asked.selection, self.tick.capture
        _hold(session, selection)
        table = look(session, selection)
        check_partitions(table, selection)
        reasons = _reasons(session, self.slot, table, selection, self.position)
        if reasons:
            raise SourceError(
                f"what capture {capture.name} reads at the source is not as it was",
                detail="; ".join(reasons),
                hint=f"ALTER CAPTURE {capture.name} RESUME makes it ready again, and compares all rows",
            )
        return table


def _slot_of(capture: Capture) -> Slot:
    return Slot(option(capture, "slot"))


def _hold(session: Session, selection: Selection) -> None:
    session.change(Statement(f"LOCK TABLE {name_of(selection)} IN ACCESS SHARE MODE".replace("%", "%%")))


def _state(slot: Slot, session: Session, table: LoggedTable, selection: Selection) -> dict[str, str]:
    return {**slot.state(session, table, selection), "REPLICA IDENTITY": table.identity}


def _reasons(
    session: Session, slot: Slot, table: LoggedTable, selection: Selection, position: Mapping[str, Any]
) -> list[str]:
    """Why the slot may not have all that comes after the position; empty where it has."""
    if position.get("slot") != slot.name:
        return [
            f"it has read from {position.get('slot', 'another log')}, and is to read from slot {slot.name}"
        ]
    now = _state(slot, session, table, selection)
    was = (
        {**position["was"], "REPLICA IDENTITY": now["REPLICA IDENTITY"]} if table.is_full else position["was"]
    )
    return slot.troubles(session, lsn_number(position["lsn"])) + differences(was, now)
