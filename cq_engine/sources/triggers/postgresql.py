"""Triggers in PostgreSQL: whole rows, by the source's transactions.

A row of the log has the number of its transaction, and a position the snapshot of the tick before: what is new is what that
snapshot did not see, however late a transaction has committed. Of two transactions that have written the same row, the later
one has waited for the earlier one to commit, and all its numbers from then on are greater. So transactions are put in the order of their greatest
numbers, in which each may have taken place.

Rows are logged as text of the whole row, which no other definition of the table makes fail. While a tick reads, nobody can
alter the table.

Partitions may have the columns of their table in another order, so that their rows are logged as JSON, by name. The trigger for
rows is there in each of them, also in those that come later. Nobody tells what a partition has that comes or goes, or is emptied by
itself: where other ones are there, or one has been written anew, all rows are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from cq_engine.core.errors import AnalysisError
from cq_engine.sources.methods.relational import Asked
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import LAYOUT, digest
from cq_engine.sources.sql.model import Relation, Statement
from cq_engine.sources.sql.partitions import partitions
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.tick import DELETE, UPSERT, Tick
from cq_engine.sources.triggers.log import PIECE, Log, Logged, as_changes

__all__ = ["SETTINGS", "PostgreSQLLog"]

_BODY = """BEGIN
  INSERT INTO {log} (cq_transaction, cq_moment, cq_operation, cq_old, cq_new)
  VALUES (txid_current(), clock_timestamp(), left(TG_OP, 1),
          CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'INSERT' THEN CAST({old} AS text) END,
          CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN CAST({new} AS text) END);
  RETURN NULL;
END"""
_COLUMNS = """
  cq_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cq_transaction bigint NOT NULL,
  cq_moment timestamptz NOT NULL, cq_operation text NOT NULL, cq_old text, cq_new text
"""
SETTINGS = (
    "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'iso_8601'"
    " SET TimeZone = 'UTC' SET extra_float_digits = 3"
)
_TRIGGERS = """
SELECT t.tgname, t.oid, CAST(t.xmin AS text), t.tgenabled, pg_get_triggerdef(t.oid), p.oid, CAST(p.xmin AS text)
FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = to_regclass(?) AND t.tgname IN (?, ?) AND t.tgenabled IN ('A', 'O')
"""
_KIND = "SELECT CAST(relkind AS text), relhassubclass FROM pg_class WHERE oid = to_regclass(?)"
_CLONES = """
SELECT tgrelid, oid, CAST(xmin AS text), CAST(tgenabled AS text) FROM pg_trigger
WHERE tgrelid = ANY (CAST(? AS oid[])) AND tgname = ? AND tgenabled IN ('A', 'O')
"""
"""The trigger for rows in each partition."""


@dataclass
class _Changes:
    """Changes of the source's transactions, in the order of the log."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    last: dict[int, tuple[int, datetime]] = field(default_factory=dict)
    """Of each transaction its greatest number and its latest time."""

    def add(self, operation: str, row: tuple[Any, ...], transaction: int) -> None:
        self.rows.append(row)
        self.operations.append(operation)
        self.transactions.append(transaction)

    def as_table(self, tick: Tick, session: Session, selection: Selection) -> pa.Table:
        """The changes, with their transactions in the order of their greatest numbers."""
        given = Statement("", (), selection.names, selection.relation.shown, selection.key_places)
        rows = pa.Table.from_batches([session.to_batch(given, tick.columns, self.rows)])
        places = {name: place for place, name in enumerate(sorted(self.last, key=lambda n: self.last[n][0]))}
        times = [self.last[transaction][1] for transaction in self.transactions]
        return as_changes(rows, self.operations, [places[name] for name in self.transactions], times)


class PostgreSQLLog(Log):
    """The time of a transaction is that of its last change. Triggers fire for rows that are replicated to the table, too,
    where the account owns it."""

    rights = "grant the account CREATE on the schema and TRIGGER and SELECT on the table"

    def check(self, session: Session, relation: Relation) -> list[str]:
        name = self.qualified(relation.name)
        found = session.one(self.plain(_KIND, name))
        is_partitioned = self._is_partitioned(session, relation)
        if found is None or (not is_partitioned and (found[0] != "r" or found[1])):
            raise AnalysisError(
                f"{relation.shown} is no table, or one that others inherit from",
                detail="triggers log the rows of a table of its own, or of its partitions",
                hint="capture it USING COPY or CHECKSUM, or each part by itself",
            )
        foreign = [each.name for each in partitions(session, name) if each.kind not in "rp"]
        if foreign:
            raise AnalysisError(
                f"partition {foreign[0]} of {relation.shown} is no table of this server",
                detail="nobody logs what is written to it elsewhere",
                hint="capture the table USING COPY or CHECKSUM, or its other partitions each by itself",
            )
        documents = [column.name for column in relation.columns if column.declared in ("json", "jsonb")]
        if is_partitioned and documents:
            raise AnalysisError(
                f"triggers cannot log {documents[0]} of {relation.shown} as it is",
                detail="rows of partitions are logged as JSON, in which the JSON null is no value and text is written otherwise",
                hint="capture it from a slot, WITH (slot = 'name'), or USING COPY or CHECKSUM",
            )
        return ["where partitions come or go, all rows are compared"] if is_partitioned else []

    def create(self, session: Session, selection: Selection) -> list[str]:
        log, table = self.table(), self.qualified(selection.relation.name)
        row = "to_json({})" if self._is_partitioned(session, selection.relation) else "{}"
        body = _BODY.format(log=log, old=row.format("OLD"), new=row.format("NEW"))
        quote = "$cq$" if "$cq$" not in body else "$cq_log$"
        each, truncate = map(self.server.quoted, self._names())
        calls = f"EXECUTE PROCEDURE {log}()"
        made = [
            f"CREATE TABLE {log} ({_COLUMNS})",
            f"CREATE FUNCTION {log}() RETURNS trigger {SETTINGS} AS {quote}{body}{quote}",
            f"CREATE TRIGGER {each} AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW {calls}",
            f"CREATE TRIGGER {truncate} AFTER TRUNCATE ON {table} FOR EACH STATEMENT {calls}",
        ]
        owns = self.plain(
            "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(?)", table
        )
        if session.one(owns) == (True,):
            made += [f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}" for name in (each, truncate)]
        return made

    def drop(self) -> list[str]:
        """The function takes the triggers along, which only the owner of the table could drop."""
        return [
            "SET LOCAL lock_timeout = '10s'",
            f"DROP FUNCTION IF EXISTS {self.table()}() CASCADE",
            f"DROP TABLE IF EXISTS {self.table()}",
        ]

    def parts(self, session: Session, relation: Relation) -> dict[str, str]:
        triggers = session.rows(self.plain(_TRIGGERS, self.qualified(relation.name), *self._names()))
        parts = {f"trigger {name}": digest(rest) for name, *rest in sorted(triggers)}
        (log,) = session.one(self.plain("SELECT CAST(to_regclass(?) AS oid)", self.table())) or (None,)
        if log is not None:
            parts[f"table {self.name}"] = str(log)
        members = partitions(session, self.qualified(relation.name))
        if members:
            clones = {
                oid: rest
                for oid, *rest in session.rows(self.plain(_CLONES, [m.oid for m in members], self.name))
            }
            parts[LAYOUT] = digest([*members, *sorted(clones.items())])
            if any(each.has_rows and each.oid not in clones for each in members):
                parts.pop(f"trigger {self.name}", None)
        return parts

    def _is_partitioned(self, session: Session, relation: Relation) -> bool:
        found = session.one(self.plain(_KIND, self.qualified(relation.name)))
        return found is not None and found[0] == "p"

    def hold(self, session: Session, relation: Relation) -> None:
        session.change(self.plain(f"LOCK TABLE {self.qualified(relation.name)} IN ACCESS SHARE MODE"))

    def _names(self) -> tuple[str, str]:
        return self.name, f"{self.name}_truncate"

    # ------------------------------------------------------------ reading

    def read(self, tick: Tick, asked: Asked, session: Session, read: Any, *, whole: bool) -> Logged:
        (now,) = session.one(self.plain("SELECT CAST(txid_current_snapshot() AS text)")) or ("",)
        is_empty = session.one(self.plain(f"SELECT 1 FROM {self.table()} LIMIT 1")) is None
        done = None if is_empty else now
        if whole:
            return Logged(None, now, done)
        changes, most = _Changes(), tick.services.limits.apply_rows
        if is_empty:
            return Logged(changes.as_table(tick, session, asked.selection), now, done)
        for row in self._rows(asked.selection, session, read):
            if row[3] == "T" or len(changes.rows) > most:
                return Logged(None, now, done)
            tick.read += 1
            _add(changes, asked.selection, row)
        return Logged(changes.as_table(tick, session, asked.selection), now, done)

    def _rows(self, selection: Selection, session: Session, read: str | None) -> Iterator[tuple[Any, ...]]:
        """Number, transaction, time, operation, whether the capture wants the new row, the old key, and the new row."""
        server, relation = self.server, selection.relation
        kind = self.qualified(relation.name)
        new = f"NOT txid_visible_in_snapshot(cq_transaction, '{read}')" if read else "true"
        known = ["cq_number", "cq_transaction", "cq_moment", "cq_operation"]
        inner = (
            f"SELECT {', '.join(known)}, {_as_row('cq_old', kind)} AS cq_old, {_as_row('cq_new', kind)} AS cq_new"
            f" FROM {self.table()} WHERE {new} OFFSET 0"
        )
        every = [f"(l.cq_new).{server.quoted(c.name)}" for c in relation.columns]
        old = [f"(l.cq_old).{server.quoted(name)} AS cq_old_{n}" for n, name in enumerate(selection.key)]
        named = f"SELECT {', '.join([*(f'l.{name}' for name in known), *old, *every])} FROM ({inner}) AS l"
        inside = f"({selection.where}\n)" if selection.where is not None else "true"
        wanted = [
            *known,
            f"CASE WHEN cq_operation = 'D' THEN false ELSE COALESCE({inside}, false) END",
            *(server.read(c, f"cq_old_{n}") for n, c in enumerate(selection.key_columns)),
            *(
                server.read(relation.column(c.name), server.quoted(c.name)) for c in selection.columns
            ),
        ]  # fmt: skip
        sql = (
            f"SELECT {', '.join(wanted)} FROM ({named}) AS {server.quoted(relation.name)} ORDER BY cq_number"
        )
        for block in session.blocks(self.plain(sql)):
            yield from block

    def clean(self, database: Database, rows: Any) -> None:
        table = self.table()
        some = (
            f"SELECT cq_number FROM {table} WHERE txid_visible_in_snapshot(cq_transaction, '{rows}')"
            f" ORDER BY cq_number LIMIT {PIECE}"
        )
        deleted = PIECE
        while deleted == PIECE:
            with database.write() as session:
                deleted = session.change(self.plain(f"DELETE FROM {table} WHERE cq_number IN ({some})"))


def _as_row(column: str, kind: str) -> str:
    """A row of the log, which is JSON or the text of a row, as one of the table."""
    from_json = f"json_populate_record(CAST(NULL AS {kind}), CAST({column} AS json))"
    return f"CASE WHEN left({column}, 1) = '{{' THEN {from_json} ELSE CAST({column} AS {kind}) END"


def _add(changes: _Changes, selection: Selection, row: tuple[Any, ...]) -> None:
    """What a row of the log changes: where its key has changed, two rows."""
    number, transaction, moment, operation, wanted, *values = row
    before = tuple(values[: len(selection.key)])
    new = tuple(values[len(selection.key) :])
    after = tuple(new[place] for place in selection.key_places)
    _, latest = changes.last.get(transaction, (0, moment))
    changes.last[transaction] = (number, max(latest, moment))
    if operation == "D" or (operation == "U" and before != after):
        changes.add(DELETE, _with_key(selection, before), transaction)
    if wanted:
        changes.add(UPSERT, new, transaction)
    elif operation != "D":
        changes.add(DELETE, _with_key(selection, after), transaction)


def _with_key(selection: Selection, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of which only the key is known."""
    values = dict(zip(selection.key_places, key))
    return tuple(values.get(place) for place in range(len(selection.columns)))
