"""All rows of a source's relation, of which executors read a range each where they are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError
from cq_engine.core.limits import Limits
from cq_engine.sources.bulk import Batches
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.model import CHECKSUM, Statement
from cq_engine.sources.sql.parts import Parts
from cq_engine.sources.sql.select import Bounds, count, splits
from cq_engine.sources.sql.selection import Selection

__all__ = ["Whole"]


class Whole:
    """All rows of a selection as `session` sees them: batch by batch, or in parts.

    `statement` asks for the rows in a range of keys, and `batches` gives all of them through this process. The session must
    be open as long as anybody reads.
    """

    def __init__(
        self,
        session: Session,
        selection: Selection,
        statement: Callable[[Bounds], Statement],
        batches: Callable[[], Batches],
    ) -> None:
        self._session = session
        self._selection = selection
        self._statement = statement
        self._batches = batches
        self.in_parts = False
        """Whether the rows were read in parts, and did not pass through this process."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches())

    def parts(self, limits: Limits, columns: Sequence[Column]) -> Parts | None:
        """The rows in ranges of keys, for the columns in this order.

        None where they are fewer than `Limits.load_rows`; where the source cannot show one state to several connections; and
        where no index finds ranges of the key. Raises SourceError.
        """
        if not self.is_large(limits) or not all(can(column.type, Use.EXCHANGED) for column in columns):
            return None
        snapshot = self._snapshot()
        if snapshot is None:
            return None
        rows = count(self._session, self._selection)
        ranges = splits(self._session, self._selection, rows, limits.load_connections)
        statements = tuple(self._statement(each) for each in ranges)
        asked = {name.lower(): name for name in statements[0].names}
        database = self._session.database
        return Parts(
            database.declared, database.address, snapshot, statements, tuple(columns),
            tuple(asked.get(column.name.lower(), CHECKSUM) for column in columns), rows, self._selection.is_ordered,
        )  # fmt: skip

    def is_large(self, limits: Limits) -> bool:
        """Whether the source can be read in parts, and has so many rows that it should be. Raises SourceError."""
        can_be = limits.load_connections > 1 and self._session.database.server.snapshot and self._has_ranges()
        if not can_be:
            return False
        known = self._selection.relation.rows
        rows = count(self._session, self._selection, limits.load_rows) if known is None else known
        return rows >= limits.load_rows

    def _has_ranges(self) -> bool:
        """Whether every row is in a range of the key, and an index finds those of one."""
        relation, key = self._selection.relation, self._selection.key
        is_table = relation.query is None and bool(key)
        every = not any(column.nullable for column in self._selection.key_columns)
        return is_table and every and any(index.columns[: len(key)] == key for index in relation.indexes)

    def _snapshot(self) -> str | None:
        """The name of the state that the session sees; None where the server, or one that only speaks its language, gives none:
        it is asked over another connection first, as a failure ends the transaction."""
        sql = self._session.database.server.snapshot
        try:
            with self._session.database.connect() as other:
                other.one(Statement(sql))
        except SourceError:
            return None
        found = self._session.one(Statement(sql))
        return None if found is None else str(found[0])
