"""USING COPY WITH (at = 'source') (Carnes & Hanson §3.1, MDS): the copy that the paper keeps, beside the table at its source.

A tick compares table and copy where both are, by the three-part query of Figure 1, and what travels is what has changed. The
differences are put beside the copy before they are shipped, with a mark of the tick. This mark is the position, in one commit with the
changes; only then do the differences go into the copy, and the mark with them. Whatever a killed process has left is told by the
marks: differences with the mark of the position are durable here, and go into the copy before the next comparison; those with
another mark have never been, and are forgotten. So the copy is always what the last tick has brought, and is compared with as such.

Where neither copy nor differences have the mark of the position, the source or this warehouse was restored from a backup, or
somebody else has the same position; where a table of ours or a captured column is not as it was, somebody has changed it. The capture
fails then; RESUME makes the copy anew, and all rows are compared. The marks say whose the copy is, too: nobody else's is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import AnalysisError, ConflictError, SourceError
from cq_engine.sources.copies.servers import COPIES
from cq_engine.sources.copies.table import CopyTable, Marks
from cq_engine.sources.methods.base import Place
from cq_engine.sources.methods.relational import Asked, Relational, opened
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import differences, name_for
from cq_engine.sources.sql.model import DELETED
from cq_engine.sources.sql.relation import describe
from cq_engine.sources.sql.servers.server import Server
from cq_engine.sources.tick import DELETE, INSERT, UPSERT, Tick, with_operation

__all__ = ["CopyAtSource"]

_COMPLETE_DELETE = "delete"

Position = Mapping[str, Any]


class CopyAtSource(Relational):
    """Positions are where the copy is (`copy`), whose it is (`owner`), what was installed (`was`), and the mark of the tick that
    is durable here (`stands`); `whole` where all rows are to be compared once more."""

    def examine(self, asked: Asked, capture: Capture, place: Place) -> list[str]:
        database, relation = asked.database, asked.selection.relation
        if database.server.name not in COPIES:
            raise AnalysisError(
                f"at = 'source' is not for a database of {database.server.name}",
                hint="SQLite, PostgreSQL and MariaDB can have the copy; leave it out, and the copy is here",
                location=place("at"),
            )
        copy = _copy_of(asked, capture)
        with database.connect() as session:
            taken = [
                name for name in copy.names if database.server.find(session.connection, copy.schema, name)
            ]
        if taken:
            raise AnalysisError(
                f"source {capture.source} has a table {taken[0]} already",
                detail="it is the copy of a capture of this name, maybe of another warehouse",
                hint="choose another name for the capture, or drop the table where nobody has it",
            )
        return [f"{copy.name}, a copy of what is captured of {relation.shown}, is kept at the source"]

    def prepare(
        self, declared: DeclaredSource, capture: Capture, table: Table, position: Position | None
    ) -> Position | None:
        with opened(declared, capture, table) as asked:
            copy, database = _copy_of(asked, capture), asked.database
            if position is not None:
                with database.connect() as session:
                    reasons = differences(position["was"], copy.state(session, asked.selection))
                    marks = _marks(copy, session)
                if not _is_unnoted(marks, position):
                    _check_owner(capture, copy, marks, position)
                    if not reasons and marks is not None and _fits(marks, position):
                        return None
                copy.before = position["owner"] or ""
            try:
                was = copy.install(database, asked.selection)
            except SourceError as error:
                raise SourceError(
                    f"the copy of capture {capture.name} cannot be made at the source",
                    detail=error.message,
                    hint=f"{copy.rights}, or keep the copy here: leave out at = 'source'",
                ) from error
            with database.connect() as session:
                marks = copy.marks(session)
            at = {"schema": copy.schema, "name": copy.name}
            return {"copy": at, "owner": marks and marks.owner, "was": was, "stands": None, "whole": True}

    def release(self, declared: DeclaredSource, capture: Capture, position: Position | None) -> None:
        with Database.open(declared) as database:
            if position is None:  # CREATE CAPTURE has not ended
                schema = describe(database, capture.relation or "").schema
                _copy_at(database.server, schema, _name(capture)).remove(database)
                return
            copy = _copy_at(database.server, position["copy"]["schema"], position["copy"]["name"])
            with database.connect() as session:
                marks = _marks(copy, session)
            if not _is_unnoted(marks, position):
                _check_owner(capture, copy, marks, position)
            copy.remove(database)

    def ask(self, tick: Tick, asked: Asked) -> None:
        position = tick.position
        if position is None:
            raise ConflictError(
                f"the copy of capture {tick.capture.name} is not made yet",
                hint=f"where CREATE CAPTURE has not ended, ALTER CAPTURE {tick.capture.name} RESUME makes it",
            )
        copy = _copy_of(asked, tick.capture)
        if position["whole"]:
            _bring_all(tick, asked, copy, position)
            return
        stands, count = _stage(tick, asked, copy, position)
        rows = count if tick.table.has_snapshot else 2 * count  # with the old ones
        if not count:
            tick.move(position)
        elif rows > tick.services.limits.apply_rows:
            _bring_all(tick, asked, copy, position)
        else:
            tick.apply(_shipped(tick, asked, copy, stands), {**position, "stands": stands})
            with asked.database.write(compares=True) as session:
                _settle(tick, asked, copy, session, tick.position or {})


# ---------------------------------------------------------------- steps of a tick


def _bring_all(tick: Tick, asked: Asked, copy: CopyTable, position: Position) -> None:
    """Makes the copy anew, and ships all of it."""
    selection = asked.selection
    if not position["whole"]:
        position = {**position, "whole": True}
        tick.move(position)  # before the copy is one of which nothing is here
    with asked.database.write(compares=True) as session:
        _check_same(tick, asked, copy, session, position)
        copy.marks(session, locked=True)
        copy.relax(session)
        stands = copy.fill(session, selection)
        _check_same(tick, asked, copy, session, position)  # what was read is locked since then
    with asked.database.connect() as session:
        _check_mine(tick, copy.marks(session), stands)
        rows = session.batches(copy.all_rows(selection), tick.columns)
        tick.replace(rows, {**position, "stands": stands, "whole": False})


def _stage(tick: Tick, asked: Asked, copy: CopyTable, position: Position) -> tuple[str, int]:
    """Compares relation and copy, as the copy is after the tick that is durable here; the mark of the differences, and how many
    there are."""
    with asked.database.write(compares=True) as session:
        _check_same(tick, asked, copy, session, position)
        _settle(tick, asked, copy, session, position)
        found = copy.stage(session, asked.selection)
        _check_same(tick, asked, copy, session, position)  # what was read is locked since then
    return found


def _shipped(tick: Tick, asked: Asked, copy: CopyTable, stands: str) -> Mapping[str, pa.Table]:
    """The differences as changes: what is gone first, as a row may have got a key that differs for the source alone."""
    selection = asked.selection
    with asked.database.connect() as session:
        _check_mine(tick, copy.marks(session), stands)
        rows = pa.Table.from_batches(session.batches(copy.changed_rows(selection), tick.columns))
        tick.count(rows.num_rows)
        gone = rows.column(DELETED)
        rows = rows.drop_columns([DELETED])
        came = rows.filter(pc.invert(gone))
        tick.check_unique(came, tick.table)
        if tick.table.has_snapshot:
            parts = [with_operation(rows.filter(gone), DELETE), with_operation(came, UPSERT)]
        else:  # nobody here knows what the rows were
            old, _ = tick.take(session.batches(copy.old_rows(selection), tick.columns), sys.maxsize)
            assert old is not None
            parts = [with_operation(old, _COMPLETE_DELETE), with_operation(came, INSERT)]
    return {tick.table.name: pa.concat_tables(parts)}


def _settle(tick: Tick, asked: Asked, copy: CopyTable, session: Session, position: Position) -> None:
    """Brings the copy to what is durable here. Raises SourceError where it cannot be that."""
    marks = copy.marks(session, locked=True)
    _check_owner(tick.capture, copy, marks, position)
    copy.relax(session)
    if marks is None or not copy.settle(session, marks, asked.selection, position["stands"]):
        raise SourceError(
            f"the copy of capture {tick.capture.name} at the source is of another tick than this warehouse",
            detail="one of the two was restored from a backup, or two warehouses have this capture",
            hint=f"ALTER CAPTURE {tick.capture.name} RESUME makes the copy anew, and compares all rows",
        )


# ---------------------------------------------------------------- what is not as it was


def _check_same(tick: Tick, asked: Asked, copy: CopyTable, session: Session, position: Position) -> None:
    """Raises SourceError where the copy is somebody else's, and where tables or columns are not as they were."""
    _check_owner(tick.capture, copy, _marks(copy, session), position)
    reasons = differences(position["was"], copy.state(session, asked.selection))
    if reasons:
        raise SourceError(
            f"what capture {tick.capture.name} has installed or reads at the source is not as it was",
            detail="; ".join(reasons),
            hint=f"ALTER CAPTURE {tick.capture.name} RESUME makes the copy anew, and compares all rows",
        )


def _check_owner(capture: Capture, copy: CopyTable, marks: Marks | None, position: Position) -> None:
    if marks is not None and marks.owner != position["owner"]:
        raise SourceError(
            f"table {copy.name} at the source is the copy of another capture",
            detail=f"that of capture {capture.name} was dropped, and another one, maybe of another warehouse, has its name",
            hint=f"DROP CAPTURE {capture.name}, and create it by another name; its table stays",
        )


def _is_unnoted(marks: Marks | None, position: Position) -> bool:
    """Whether the copy was made anew for this capture by a process that ended before it had noted whose it is now."""
    return marks is not None and marks.before == position["owner"] and not marks.stands


def _check_mine(tick: Tick, marks: Marks | None, stands: str) -> None:
    """Raises ConflictError where another process has begun a tick of the same capture meanwhile."""
    if marks is None or stands not in (marks.stands, marks.staged):
        raise ConflictError(f"another process runs capture {tick.capture.name}", hint="repeat it")


def _marks(copy: CopyTable, session: Session) -> Marks | None:
    """What the copy says of itself; None also where it is not there."""
    return copy.marks(session) if f"table {copy.names[2]}" in copy.there(session) else None


def _fits(marks: Marks, position: Position) -> bool:
    return bool(position["whole"]) or position["stands"] in (marks.stands, marks.staged)


def _name(capture: Capture) -> str:
    return name_for(capture.name, "copy")


def _copy_of(asked: Asked, capture: Capture) -> CopyTable:
    return _copy_at(asked.database.server, asked.selection.relation.schema, _name(capture))


def _copy_at(server: Server, schema: str | None, name: str) -> CopyTable:
    return COPIES[server.name](server, schema, name)
