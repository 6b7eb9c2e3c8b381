"""The channel of a source in PostgreSQL's own log, decoded by the server: one slot and one publication, and no triggers.

A token is, as of the log of triggers, the snapshot of a reader and the transactions that were taken beyond it; `lsn` is a place in
the server's log before which all transactions have been taken.

What a reader sees is decided by its snapshot alone. So the log is decoded up to its end as it is behind that snapshot: all that the
snapshot sees was written before. A transaction is new where the reader sees it and the token does not, whatever its place in the log:
one may be seen a moment before another whose commit was logged earlier. Such two have not written the same row, since the later one would
have waited until the earlier one can be seen. The log has 32 bits of a transaction's number, which are completed to the number that is
nearest to the snapshot's.

Nothing is taken of which the server may know nothing after a crash, since numbers of such transactions are given again: a reader
waits until the log is flushed up to that end. Where an open transaction keeps it from being flushed, a message in the log, which
nobody reads, is committed (`pg_logical_emit_message`).

A transaction that a killed server has made durable may be decoded again, and so may what a killed engine has taken, and not advanced over:
the token knows all of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from cq_engine.core.errors import AnalysisError, SourceError, SourceUnavailableError
from cq_engine.sources.decoding.pgoutput import Begin, lsn_number, lsn_text
from cq_engine.sources.decoding.slot import Slot, check_server, end_of_log, is_flushed
from cq_engine.sources.decoding.table import LoggedTable, check_followed, look, name_of
from cq_engine.sources.decoding.values import encoding_of, loads_of
from cq_engine.sources.decoding.visibility import Snapshot
from cq_engine.sources.remote.log import ChannelLog, GapError, Logged, Token, Transaction
from cq_engine.sources.remote.messages import Followed, transactions
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import digest
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.sql.servers.server import Server

__all__ = ["DecodedChannel", "slot_name"]

_PAUSE = 0.01
"""So many seconds between two looks at how far the log is flushed."""
_PATIENT = 5
"""After so many looks the log is made to be flushed."""
_LOOKS = 1_000
_FLUSH = (
    "SET LOCAL synchronous_commit = 'local'",
    "SELECT CAST(pg_logical_emit_message(true, 'cq', '') AS text)",
)


def slot_name(slot: str, capture: str) -> str:
    """The name of a capture's slot, `<slot>_<capture>`, as the server takes it.

    >>> slot_name("cq_shop", "sold_remote"), slot_name("cq_shop", "größe_remote")
    ('cq_shop_sold_remote', 'cq_shop_9bf028c0')
    """
    name = f"{slot}_{capture.lower()}"
    return name if re.fullmatch(r"[a-z0-9_]{1,60}", name) else f"{slot[:51]}_{digest([name])}"


class DecodedChannel(ChannelLog):
    """The time of a transaction is that of its commit. `name` is that of the slot."""

    def __init__(
        self, server: Server, schema: str | None, name: str, selections: Sequence[Selection]
    ) -> None:
        super().__init__(server, schema, name, selections)
        self.slot = Slot(name)

    # ------------------------------------------------------------ at the source

    def check(self, session: Session) -> list[str]:
        encoding_of(session)
        check_server(session)
        for each in self.selections:
            table = look(session, each)
            if table.is_partitioned:
                raise AnalysisError(
                    f"{each.relation.shown} has partitions",
                    detail="no log tells what comes and goes with a partition",
                    hint="CREATE CAPTURE keeps a copy of it; join that",
                )
            check_followed(table, each)
            if not _has_images(table, each):
                raise AnalysisError(
                    f"the log does not have the rows of {each.relation.shown} as they were before a change",
                    detail=f"its REPLICA IDENTITY is {table.identified()}, and the query needs more columns than its key",
                    hint=f"ALTER TABLE {name_of(each)} REPLICA IDENTITY FULL at the source, or USING LOG WITH (install = true)",
                )
        if self.slot.is_taken(session):
            raise AnalysisError(
                f"there is a slot {self.slot.name} or a publication {self.slot.publication} at the source already",
                detail="it is that of a query of this name, maybe of another warehouse",
                hint="choose another name for the query or the slot, or drop slot and publication where nobody reads them",
            )
        made = f"slot {self.slot.name} and publication {self.slot.publication} are made at the source"
        return [f"{made}, which keeps its log until it is read, also while the query is paused"]

    def parts(self, session: Session) -> dict[str, str]:
        parts: dict[str, str] = {}
        for each in self.selections:
            table, shown = look(session, each), each.relation.shown
            state = self.slot.state(session, table, each)
            for name in [name for name in state if name.startswith(("column ", "the table in "))]:
                text = state.pop(name)
                if not name.startswith("column "):
                    state[f"table {shown} in publication {self.slot.publication}"] = text
            identity = "" if _has_images(table, each) else table.identified()
            parts.update({**state, f"REPLICA IDENTITY of {shown}": identity})
        found = self.slot.find(session)
        if found is not None:
            reached = lsn_number(found["confirmed_flush_lsn"] or "0/0")
            parts[f"slot {self.slot.name}"] = "; ".join(self.slot.troubles(session, reached))
        return parts

    def install(self, database: Database) -> dict[str, str]:
        self.slot.install(database, *self.selections)
        try:
            with database.connect() as session:
                return self.state(session)
        except BaseException:
            with suppress(SourceError):
                self.remove(database)
            raise

    def remove(self, database: Database) -> None:
        self.slot.remove(database)

    def hold(self, session: Session) -> None:
        for each in self.selections:
            session.change(self.plain(f"LOCK TABLE {name_of(each)} IN ACCESS SHARE MODE"))

    # ------------------------------------------------------------ reading

    def end(self, session: Session) -> Token:
        snapshot, _ = _now(session)
        found = self.slot.find(session)
        return {
            "snapshot": snapshot,
            "beyond": [],
            "lsn": None if found is None else found["confirmed_flush_lsn"],
        }

    def read(self, session: Session, token: Token, most: int) -> tuple[list[Transaction], Token]:
        snapshot, end = _now(session)
        if snapshot == token["snapshot"] and not token["beyond"]:
            return [], token
        if token["lsn"] is None or self.slot.troubles(session, lsn_number(token["lsn"])):
            raise GapError
        new = _New(Snapshot.parse(snapshot), Snapshot.parse(token["snapshot"]), frozenset(token["beyond"]))
        tables = self._followed(session)
        with closing(self.slot.peek(session, end)) as messages:
            found = list(transactions(messages, tables, encoding_of(session), new, most))
        now = {"snapshot": snapshot, "beyond": [], "lsn": lsn_text(min(end, new.unseen or end))}
        return list(_with_tokens(found, new.now, token, now)), now

    def _followed(self, session: Session) -> list[Followed]:
        tables = [(look(session, each), each) for each in self.selections]
        return [Followed(table, each, loads_of(session, table, each)) for table, each in tables]

    def clean(self, database: Database, token: Token) -> None:
        if token["lsn"] is not None:
            self.slot.advance(database, lsn_number(token["lsn"]))


def _has_images(table: LoggedTable, selection: Selection) -> bool:
    """Whether the log has the columns that are needed of rows before they are changed."""
    return {column.name for column in selection.columns} <= table.identity_columns


def _now(session: Session) -> tuple[str, int]:
    """What the session sees, and a place in the log before which all of that was written, and which is flushed."""
    (snapshot,) = session.one(Statement("SELECT CAST(txid_current_snapshot() AS text)")) or ("",)
    end = end_of_log(session)
    for number in range(_LOOKS):
        if is_flushed(session, end):
            return str(snapshot), end
        if number == _PATIENT:
            with session.database.write() as writing:
                for sql in _FLUSH:
                    writing.change(Statement(sql))
        time.sleep(_PAUSE)
    raise SourceUnavailableError(
        f"source {session.database.name} does not make its log durable", hint="it is tried again"
    )


@dataclass
class _New:
    """Whether a transaction is new: the reader sees it, and the token does not."""

    now: Snapshot
    before: Snapshot
    beyond: frozenset[int]
    unseen: int | None = None
    """The place in the log of the first commit that the reader does not see."""

    def __call__(self, begin: Begin) -> bool:
        number = self.now.number(begin.xid)
        if not self.now.sees(number):
            self.unseen = begin.commit_lsn if self.unseen is None else self.unseen
            return False
        return not self.before.sees(number) and number not in self.beyond


def _with_tokens(
    found: Sequence[tuple[Begin, list[Logged]]], snapshot: Snapshot, token: Token, now: Token
) -> Iterator[Transaction]:
    beyond = list(token["beyond"])
    for place, (begin, changes) in enumerate(found, 1):
        beyond.append(snapshot.number(begin.xid))
        at = now if place == len(found) else {**token, "beyond": list(beyond)}
        yield Transaction(tuple(changes), begin.committed, at)
