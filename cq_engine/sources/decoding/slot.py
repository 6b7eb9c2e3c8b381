"""A replication slot with its publication: made, read, advanced and removed by SQL functions, over an ordinary connection."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.sources.decoding.pgoutput import lsn_number, lsn_text
from cq_engine.sources.decoding.table import LoggedTable, name_of
from cq_engine.sources.methods.base import Place
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import digest
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.selection import Selection

__all__ = ["READS", "WAITS", "Slot", "check_server", "end_of_log", "is_flushed"]

WAITS = 30
"""So many seconds the creation of a slot waits for the transactions that are open then to end."""
READS = 5
"""So many seconds somebody else may read a slot that is to be removed."""
RIGHTS = (
    "the account needs REPLICATION, CREATE on the database and the table as its own, and the server a free slot"
    " (max_replication_slots); transactions that are open for long (pg_stat_activity) keep a slot from being made"
)
_SERVER = "SELECT current_setting('wal_level'), pg_is_in_recovery()"
_FIND = "SELECT CAST(to_jsonb(s) AS text) FROM pg_replication_slots AS s WHERE slot_name = %s"
_DROP = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
    " WHERE slot_name = %s AND plugin = 'pgoutput' AND database = current_database()"
)
_ADVANCE = (
    "SELECT pg_replication_slot_advance(slot_name, CAST(%s AS pg_lsn)) FROM pg_replication_slots"
    " WHERE slot_name = %s AND confirmed_flush_lsn < CAST(%s AS pg_lsn)"
)
_PEEK = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, CAST(%s AS pg_lsn), CAST(%s AS int),"
    " 'proto_version', '1', 'publication_names', %s)"
)
_PUBLISHED = """
SELECT p.oid, CAST(p.xmin AS text), r.oid, CAST(r.xmin AS text)
FROM pg_publication AS p LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = CAST(%s AS oid)
WHERE p.pubname = %s
"""


@dataclass(frozen=True)
class Slot:
    """The slot `name`, and its publication, which is called like it and begins with `cq_`."""

    name: str

    @property
    def publication(self) -> str:
        """The name of the publication."""
        return self.name if self.name.startswith("cq_") else f"cq_{self.name}"

    # ------------------------------------------------------------ what is there

    def find(self, session: Session) -> Mapping[str, Any] | None:
        """The row that `pg_replication_slots` has of it, with the columns that the server's version has."""
        found = session.one(Statement(_FIND, (self.name,)))
        return None if found is None else dict(json.loads(found[0]))

    def is_taken(self, session: Session) -> bool:
        """Whether a slot or a publication of this name is there."""
        sql = "SELECT 1 FROM pg_publication WHERE pubname = %s"
        return self.find(session) is not None or session.one(Statement(sql, (self.publication,))) is not None

    def state(self, session: Session, table: LoggedTable, selection: Selection) -> dict[str, str]:
        """What is read there, each with a text that is another one when it was changed or made anew."""
        state = {f"table {selection.relation.shown}": str(table.oid)}
        found = session.one(Statement(_PUBLISHED, (table.oid, self.publication)))
        if found is not None:
            state[f"publication {self.publication}"] = digest(found[:2])
            if found[2] is not None:
                state[f"the table in publication {self.publication}"] = digest(found[2:])
        for column in selection.columns:
            state[f"column {column.name}"] = selection.relation.column(column.name).declared
        return {**state, **table.layout}

    def troubles(self, session: Session, lsn: int) -> list[str]:
        """Why what comes after `lsn` cannot be read from the slot any more; empty where it can."""
        found = self.find(session)
        if found is None:
            return [f"slot {self.name} is gone: it was dropped, or the server was restored without it"]
        (database,) = session.one(Statement("SELECT CAST(current_database() AS text)")) or ("",)
        if found["plugin"] != "pgoutput" or found["database"] != database:
            return [f"slot {self.name} is another one, of {found['plugin']} in database {found['database']}"]
        reason = found.get("invalidation_reason") or found.get("wal_status")
        if found["restart_lsn"] is None or found.get("wal_status") == "lost" or found.get("conflicting"):
            given_up = f"the server has given up slot {self.name} ({reason}), and removed what it kept for it"
            return [f"{given_up}: see max_slot_wal_keep_size"]
        if lsn_number(found["confirmed_flush_lsn"]) > lsn:
            return [
                f"slot {self.name} is beyond what was read here: it was made anew, or somebody has advanced it"
            ]
        if end_of_log(session) < lsn:
            return ["the log of the server ends before what was read here: it was restored from a backup"]
        return []

    # ------------------------------------------------------------ reading

    def peek(self, session: Session, end: int, most: int | None = None) -> Generator[bytes, None, None]:
        """The messages of transactions that were committed before `end`, and maybe of one behind it: whole transactions, until
        there are `most`."""
        statement = Statement(_PEEK, (self.name, lsn_text(end), most, self.publication))
        for block in session.blocks(statement):
            for (data,) in block:
                yield bytes(data)

    def advance(self, database: Database, lsn: int) -> None:
        """The server may forget what is before `lsn`. Raises SourceError."""
        with database.write() as session:
            session.rows(Statement(_ADVANCE, (lsn_text(lsn), self.name, lsn_text(lsn))))

    # ------------------------------------------------------------ coming and going

    def install(self, database: Database, *selections: Selection, is_partitioned: bool = False) -> int:
        """Makes publication and slot for tables; from where the slot has everything. Raises SourceError, and leaves nothing.

        Changes of partitions are published as those of the whole table.

        The publication comes first: pgoutput looks for it as it was when a change was written.
        """
        try:
            self.remove(database)
            with database.write() as session:
                session.change(Statement("SET LOCAL lock_timeout = '10s'"))
                root = " WITH (publish_via_partition_root = true)" if is_partitioned else ""
                tables = ", ".join(f"ONLY {name_of(each)}" for each in selections)
                made = f"CREATE PUBLICATION {self.publication} FOR TABLE {tables}{root}"
                session.change(Statement(made.replace("%", "%%")))
            with database.write() as session:
                session.change(Statement(f"SET LOCAL statement_timeout = '{WAITS}s'"))
                sql = "SELECT CAST(lsn AS text) FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
                (lsn,) = session.one(Statement(sql, (self.name,))) or ("0/0",)
            return lsn_number(lsn)
        except BaseException as error:
            with suppress(SourceError):
                self.remove(database)
            if not isinstance(error, SourceError):
                raise
            raise SourceError(
                f"slot {self.name} and its publication cannot be made at source {database.name}",
                detail=error.message,
                hint=RIGHTS,
            ) from error

    def remove(self, database: Database) -> None:
        """Removes slot and publication, where they are there. Raises SourceError, also where somebody reads the slot for long."""
        self._wait(database)
        with database.write() as session:
            session.rows(Statement(_DROP, (self.name,)))
        with database.write() as session:
            session.change(Statement(f"DROP PUBLICATION IF EXISTS {self.publication}"))

    def _wait(self, database: Database) -> None:
        """Until nobody reads the slot: a tick does so for moments."""
        until = time.monotonic() + READS
        while time.monotonic() < until:
            with database.connect() as session:
                found = self.find(session)
            if found is None or not found["active"]:
                return
            time.sleep(0.1)


def end_of_log(session: Session) -> int:
    """Where the next record of the log will be: all that can be seen now was written before."""
    (lsn,) = session.one(Statement("SELECT CAST(pg_current_wal_insert_lsn() AS text)")) or ("0/0",)
    return lsn_number(lsn)


def is_flushed(session: Session, lsn: int) -> bool:
    """Whether the log is durable up to here, so that a slot gives all of it."""
    (lsn_now,) = session.one(Statement("SELECT CAST(pg_current_wal_flush_lsn() AS text)")) or ("0/0",)
    return lsn_number(lsn_now) >= lsn


def check_server(session: Session, place: Place = lambda _: None) -> None:
    """Raises AnalysisError where the server's log cannot be decoded."""
    (level, follows) = session.one(Statement(_SERVER)) or ("", False)
    if follows:
        raise AnalysisError(
            "the server only follows another one",
            hint="let the source's url name the server that is written to",
            location=place("LOG"),
        )
    if level != "logical":
        raise AnalysisError(
            f"the server's wal_level is {level}, so that its log cannot be decoded",
            hint="ALTER SYSTEM SET wal_level = logical and a restart of the server, or USING LOG WITH (install = true)",
            location=place("slot"),
        )
