"""USING LOG WITH (install = true): a log at the source that triggers write, which comes and goes with the capture.

Log and triggers are installed before the first tick, which reads the table and the log's end in one state of the source. What
is durable here is deleted from the log. Where somebody has dropped or changed what is installed, or a column that is captured,
the capture fails; RESUME installs it again, and all rows are compared.

What is known of a change depends on the server: see `PostgreSQLLog` (rows, transactions), and `KeyLog` for SQLite and MariaDB.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import AnalysisError, ConflictError, SourceError
from cq_engine.sources.methods.base import Place
from cq_engine.sources.methods.relational import Asked, Relational, opened
from cq_engine.sources.options import option
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.installed import LAYOUT, differences
from cq_engine.sources.sql.relation import describe
from cq_engine.sources.sql.servers.server import Server
from cq_engine.sources.tick import Tick
from cq_engine.sources.triggers.log import Log, log_name
from cq_engine.sources.triggers.mariadb import MariaDBLog
from cq_engine.sources.triggers.postgresql import PostgreSQLLog
from cq_engine.sources.triggers.sqlite import SQLiteLog

__all__ = ["Triggers"]

_log = logging.getLogger(__name__)

_LOGS: Mapping[str, type[Log]] = {
    "sqlite": SQLiteLog,
    "postgresql": PostgreSQLLog,
    "mariadb": MariaDBLog,
    "mysql": MariaDBLog,
}


class Triggers(Relational):
    """Positions are where the log is (`log`), what was installed (`was`), and what was read of it (`read`); `whole` where all
    rows are to be compared once more."""

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        if option(capture, "install") != "true":
            raise AnalysisError(
                f"USING LOG over a source of type {declared.type} has to say which log"
                if declared.type == "postgresql"
                else f"a source of type {declared.type} has no log of its own that can be read",
                hint="write USING LOG WITH (install = true), and triggers are installed at the source"
                + ("; or slot = 'name', and its log is decoded" if declared.type == "postgresql" else ""),
                location=place("LOG"),
            )
        return super().check(declared, capture, table, place)

    def examine(self, asked: Asked, capture: Capture, place: Place) -> list[str]:
        log, selection = _log_of(asked, capture), asked.selection
        if selection.relation.query is not None or not selection.key:
            raise AnalysisError("USING LOG needs a table with a key", location=place("LOG"))
        with asked.database.connect() as session:
            if asked.database.server.find(session.connection, log.schema, log.name):
                raise AnalysisError(
                    f"source {capture.source} has a table {log.name} already",
                    detail="it is the log of a capture of this name, maybe of another warehouse",
                    hint="choose another name for the capture, or drop the table and what writes to it",
                )
            notes = log.check(session, selection.relation)
        return [f"{log.name} and its triggers are installed at the source", *notes]

    def prepare(
        self, declared: DeclaredSource, capture: Capture, table: Table, position: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        with opened(declared, capture, table) as asked:
            log = _log_of(asked, capture)
            if position is not None:
                with asked.database.connect() as session:
                    log.hold(session, asked.selection.relation)
                    if not differences(position["was"], log.state(session, asked.selection)):
                        return None
            try:
                was = log.install(asked.database, asked.selection)
            except SourceError as error:
                raise SourceError(
                    f"the log of capture {capture.name} cannot be installed at the source",
                    detail=error.message,
                    hint=f"{log.rights}, or capture it USING CHECKSUM",
                ) from error
            at = {"schema": log.schema, "name": log.name}
            return {"log": at, "was": was, "read": None, "whole": _begins_whole(capture, position)}

    def release(self, declared: DeclaredSource, capture: Capture, position: Mapping[str, Any] | None) -> None:
        with Database.open(declared) as database:
            if position is not None:
                schema, name = position["log"]["schema"], position["log"]["name"]
            else:  # CREATE CAPTURE has not ended
                schema, name = describe(database, capture.relation or "").schema, log_name(capture)
            _log_at(database.server, schema, name).remove(database)

    def ask(self, tick: Tick, asked: Asked) -> None:
        position, log = tick.position, _log_of(asked, tick.capture)
        if position is None:
            raise ConflictError(
                f"the log of capture {tick.capture.name} is not installed yet",
                hint=f"where CREATE CAPTURE has not ended, ALTER CAPTURE {tick.capture.name} RESUME installs it",
            )
        with asked.database.connect() as session:
            log.hold(session, asked.selection.relation)
            now = log.state(session, asked.selection)
            _check(tick.capture, position["was"], now)
            other = position["was"][LAYOUT] != now[LAYOUT]
            if other:
                _log.warning(
                    "capture %s: the table was altered or emptied; all rows are compared", tick.capture.name
                )
            found = log.read(tick, asked, session, position["read"], whole=position["whole"] or other)
            reached = {"log": position["log"], "was": now, "read": found.read, "whole": False}
            if found.changes is None:
                tick.replace(asked.whole(session, tick.columns), reached)
        if found.changes is not None:
            tick.apply({tick.table.name: found.changes}, reached, transactional=True)
        if found.rows:
            log.clean(asked.database, found.rows)


def _log_of(asked: Asked, capture: Capture) -> Log:
    return _log_at(asked.database.server, asked.selection.relation.schema, log_name(capture))


def _log_at(server: Server, schema: str | None, name: str) -> Log:
    return _LOGS[server.name](server, schema, name)


def _begins_whole(capture: Capture, position: Mapping[str, Any] | None) -> bool:
    """Whether the first tick reads all rows: not where a new capture wants only what comes."""
    return position is not None or option(capture, "initial") == "snapshot"


def _check(capture: Capture, was: Mapping[str, str], now: Mapping[str, str]) -> None:
    reasons = differences(was, now)
    if reasons:
        raise SourceError(
            f"what capture {capture.name} has installed or reads at the source is not as it was",
            detail="; ".join(reasons),
            hint=f"ALTER CAPTURE {capture.name} RESUME installs it again, and compares all rows",
        )
