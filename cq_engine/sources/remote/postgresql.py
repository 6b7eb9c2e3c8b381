"""The log of a view in PostgreSQL: by the source's transactions, each with its number.

A token is the snapshot of a reader and the transactions that were taken beyond it. What is new is what the snapshot did not see,
however late a transaction has committed. Transactions stand in the order of their greatest numbers, in which each may have
taken place (`sources/triggers/postgresql.py` says why). Rows are logged as text of the whole row, which no other definition of
the table makes fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from cq_engine.core.errors import AnalysisError
from cq_engine.sources.remote.log import GapError, Logged, Token, Transaction, TriggeredLog
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import digest
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.triggers.log import PIECE, Log
from cq_engine.sources.triggers.postgresql import SETTINGS, PostgreSQLLog

__all__ = ["PostgreSQLChannel"]

_BODY = """BEGIN
  INSERT INTO {log} (cq_transaction, cq_moment, cq_table, cq_operation, cq_old, cq_new)
  VALUES (txid_current(), clock_timestamp(), CAST(TG_ARGV[0] AS int), left(TG_OP, 1),
          CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'INSERT' THEN CAST(OLD AS text) END,
          CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN CAST(NEW AS text) END);
  RETURN NULL;
END"""
_COLUMNS = """
  cq_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cq_transaction bigint NOT NULL,
  cq_moment timestamptz NOT NULL, cq_table int NOT NULL, cq_operation text NOT NULL, cq_old text, cq_new text
"""
_TRIGGERS = """
SELECT t.tgname, t.oid, CAST(t.xmin AS text), t.tgenabled, pg_get_triggerdef(t.oid), p.oid, CAST(p.xmin AS text)
FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = to_regclass(?) AND t.tgname IN (?, ?) AND t.tgenabled IN ('A', 'O')
"""
_OWNS = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(?)"


class PostgreSQLChannel(TriggeredLog):
    """The time of a transaction is that of its last change."""

    rights = "grant the account CREATE on the schema and TRIGGER and SELECT on the tables"

    def single(self, schema: str | None) -> Log:
        return PostgreSQLLog(self.server, schema, self.name)

    def check(self, session: Session) -> list[str]:
        for each in self.selections:
            name = self.table_of(each)
            kind = session.one(
                self.plain("SELECT CAST(relkind AS text) FROM pg_class WHERE oid = to_regclass(?)", name)
            )
            if kind == ("p",):
                raise AnalysisError(
                    f"{each.relation.shown} has partitions",
                    detail="no log tells what comes and goes with a partition",
                    hint="CREATE CAPTURE keeps a copy of it; join that",
                )
        return super().check(session)

    def create(self, session: Session) -> list[str]:
        log = self.table()
        body = _BODY.format(log=log)
        quote = "$cq$" if "$cq$" not in body else "$cq_log$"
        made = [
            f"CREATE TABLE {log} ({_COLUMNS})",
            f"CREATE FUNCTION {log}() RETURNS trigger {SETTINGS} AS {quote}{body}{quote}",
        ]
        for place, each in enumerate(self.selections):
            table, calls = self.table_of(each), f"EXECUTE PROCEDURE {log}('{place}')"
            rows, truncate = map(self.server.quoted, self._names(place))
            made += [
                f"CREATE TRIGGER {rows} AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW {calls}",
                f"CREATE TRIGGER {truncate} AFTER TRUNCATE ON {table} FOR EACH STATEMENT {calls}",
            ]
            if session.one(self.plain(_OWNS, table)) == (True,):
                made += [f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}" for name in (rows, truncate)]
        return made

    def drop(self, session: Session) -> list[str]:
        """The function takes the triggers along, which only the owners of the tables could drop."""
        del session
        return [
            "SET LOCAL lock_timeout = '10s'",
            f"DROP FUNCTION IF EXISTS {self.table()}() CASCADE",
            f"DROP TABLE IF EXISTS {self.table()}",
        ]

    def parts(self, session: Session) -> dict[str, str]:
        parts = {}
        for place, each in enumerate(self.selections):
            found = session.rows(self.plain(_TRIGGERS, self.table_of(each), *self._names(place)))
            parts.update({f"trigger {name}": digest(rest) for name, *rest in sorted(found)})
        (log,) = session.one(self.plain("SELECT CAST(to_regclass(?) AS oid)", self.table())) or (None,)
        if log is not None:
            parts[f"table {self.name}"] = str(log)
        return parts

    def hold(self, session: Session) -> None:
        for each in self.selections:
            session.change(self.plain(f"LOCK TABLE {self.table_of(each)} IN ACCESS SHARE MODE"))

    def _names(self, place: int) -> tuple[str, str]:
        return f"{self.name}_{place}", f"{self.name}_{place}_truncate"

    # ------------------------------------------------------------ reading

    def end(self, session: Session) -> Token:
        (now,) = session.one(self.plain("SELECT CAST(txid_current_snapshot() AS text)")) or ("",)
        return {"snapshot": now, "beyond": []}

    def read(self, session: Session, token: Token, most: int) -> tuple[list[Transaction], Token]:
        now = self.end(session)
        rows: list[tuple[int, int, datetime, Logged]] = []
        if session.one(self.plain(f"SELECT 1 FROM {self.table()} WHERE {_new(token)} LIMIT 1")) is None:
            return [], now
        for place, each in enumerate(self.selections):
            for row in self._rows(session, place, each, token):
                rows.append(row)
                if len(rows) > most:
                    raise GapError
        return list(_transactions(rows, token, now)), now

    def _rows(
        self, session: Session, place: int, each: Selection, token: Token
    ) -> Iterator[tuple[int, int, datetime, Logged]]:
        """Number, transaction, time and change of what is new of a table."""
        server, kind, count = self.server, self.table_of(each), len(each.columns)
        known = "cq_number, cq_transaction, cq_moment, cq_operation"
        inner = (
            f"SELECT {known}, CAST(cq_old AS {kind}) AS cq_old, CAST(cq_new AS {kind}) AS cq_new FROM {self.table()}"
            f" WHERE cq_table = {place} AND {_new(token)} OFFSET 0"
        )
        values = [
            server.read(each.relation.column(c.name), f"(l.{image}).{server.quoted(c.name)}")
            for image in ("cq_old", "cq_new")
            for c in each.columns
        ]
        sql = f"SELECT {known}, {', '.join(values)} FROM ({inner}) AS l ORDER BY cq_number"
        for block in session.blocks(self.plain(sql)):
            for number, transaction, moment, operation, *images in block:
                if operation == "T":
                    raise GapError
                before = None if operation == "I" else tuple(images[:count])
                after = None if operation == "D" else tuple(images[count:])
                yield number, transaction, moment, Logged(place, before, after)

    def clean(self, database: Database, token: Token) -> None:
        table, deleted = self.table(), PIECE
        some = f"SELECT cq_number FROM {table} WHERE NOT ({_new(token)}) ORDER BY cq_number LIMIT {PIECE}"
        while deleted == PIECE:
            with database.write() as session:
                deleted = session.change(self.plain(f"DELETE FROM {table} WHERE cq_number IN ({some})"))


def _new(token: Token) -> str:
    """A condition: a row of the log is behind the token."""
    unseen = f"NOT txid_visible_in_snapshot(cq_transaction, '{token['snapshot']}')"
    beyond = ", ".join(map(str, token["beyond"]))
    return f"{unseen} AND cq_transaction NOT IN ({beyond})" if beyond else unseen


def _transactions(
    rows: Sequence[tuple[int, int, datetime, Logged]], token: Token, now: Token
) -> Iterator[Transaction]:
    last: dict[int, tuple[int, datetime]] = {}
    changes: dict[int, list[Logged]] = {}
    for number, transaction, moment, change in sorted(rows, key=lambda row: row[0]):
        _, latest = last.get(transaction, (0, moment))
        last[transaction] = (number, max(latest, moment))
        changes.setdefault(transaction, []).append(change)
    order = sorted(last, key=lambda transaction: last[transaction][0])
    beyond: list[Any] = list(token["beyond"])
    for transaction in order:
        beyond.append(transaction)
        at: Token = now if transaction == order[-1] else {**token, "beyond": list(beyond)}
        yield Transaction(tuple(changes[transaction]), last[transaction][1], at)
