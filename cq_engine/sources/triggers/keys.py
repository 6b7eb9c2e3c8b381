"""Logs of keys: which rows were written, in whatever order. What the rows are is read from the table, in the same state.

Nothing depends on the order of the log's numbers, which are given before a commit, nor on what was read before: a key that is
read twice brings nothing the second time. So a position has nothing to remember, and the log loses exactly the rows that were
read. Where the source's transactions end is not known: a tick is one commit, with the time of the newest change.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from cq_engine.sources.methods.relational import Asked
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.keys import to_text
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.tick import DELETE, UPSERT, Tick, wide
from cq_engine.sources.triggers.log import PIECE, Log, Logged, as_changes, instant

__all__ = ["KeyLog"]

Key = tuple[Any, ...]


class KeyLog(Log):
    """A log with the columns `cq_number`, `cq_moment`, and `cq_key_1`, `cq_key_2`, ... of the rows that were written."""

    def key(self, selection: Selection) -> list[str]:
        """The log's columns of the key, in SQL."""
        return [self.server.quoted(f"cq_key_{n}") for n, _ in enumerate(selection.key, 1)]

    def columns(self, selection: Selection) -> str:
        """The log's columns that a trigger fills, in SQL."""
        return ", ".join(["cq_moment", *self.key(selection)])

    def of(self, image: str, selection: Selection) -> list[str]:
        """The key of NEW or OLD, in SQL."""
        return [f"{image}.{self.server.quoted(name)}" for name in selection.key]

    # ------------------------------------------------------------ reading

    def read(self, tick: Tick, asked: Asked, session: Session, read: Any, *, whole: bool) -> Logged:
        del read
        numbers, keys, newest = array("q"), dict[str, Key](), None
        most = tick.services.limits.apply_rows
        for block in session.blocks(self._rows(asked.selection)):
            for number, moment, *key in block:
                numbers.append(number)
                newest = moment if newest is None else max(newest, moment)
                if not whole:
                    keys[to_text(key)] = tuple(key)
            whole = whole or len(keys) > most
        if whole:
            return Logged(None, True, numbers)
        rows, gone = self._now(tick, asked, session, list(keys.values()))
        if newest is None:
            return Logged(rows, True, numbers)
        kinds = [UPSERT] * rows.num_rows + [DELETE] * gone.num_rows
        changes = as_changes(
            pa.concat_tables([rows, gone]), kinds, [0] * len(kinds), [instant(newest)] * len(kinds)
        )
        return Logged(changes, True, numbers)

    def _rows(self, selection: Selection) -> Statement:
        server = self.server
        reads = [server.read(column, sql) for column, sql in zip(selection.key_columns, self.key(selection))]
        return self.plain(f"SELECT cq_number, cq_moment, {', '.join(reads)} FROM {self.table()}")

    def _now(
        self, tick: Tick, asked: Asked, session: Session, keys: Sequence[Key]
    ) -> tuple[pa.Table, pa.Table]:
        """The rows that there are for the keys, and the keys for which there is none, or none that the capture wants."""
        selection = asked.selection
        rows, _ = tick.take(asked.rows_of(session, keys, tick.columns), sys.maxsize)
        assert rows is not None
        names = tuple(selection.names[place] for place in selection.key_places)
        given = Statement("", (), names, selection.relation.shown, tuple(range(len(names))))
        logged = pa.Table.from_batches([session.to_batch(given, tick.columns, keys)])
        gone = logged.filter(pa.array(~tick.among(logged, rows)))
        return rows, wide(gone, tick.columns)

    def clean(self, database: Database, rows: Any) -> None:
        for start in range(0, len(rows), PIECE):
            with database.write() as session:
                session.change(self.deletion(rows[start : start + PIECE]))

    def deletion(self, numbers: Sequence[int]) -> Statement:
        """Deletes the rows of the log that have these numbers, and touches no other."""
        return self.plain(f"DELETE FROM {self.table()} WHERE cq_number IN ({', '.join(map(str, numbers))})")
