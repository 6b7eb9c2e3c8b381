"""USING CHECKSUM (Carnes & Hanson §3.3 TLCS): keys and checksums of all rows travel, then the rows whose checksum is another.

The checksums of the rows that were captured are kept here, in a table beside the capture's own. They are written after the
rows, or with them, so that none of them ever stands for a row that is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from cq_engine.catalog.model import Capture, Table
from cq_engine.core.arrays import is_in
from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError
from cq_engine.grammar.clauses import ColumnSpec, PrimaryKeySpec
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.bulk import key_error, spool
from cq_engine.sources.methods.base import Place
from cq_engine.sources.methods.relational import Asked, Relational
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.keys import from_text, to_text
from cq_engine.sources.sql.model import CHECKSUM, Statement
from cq_engine.sources.sql.partitions import members
from cq_engine.sources.sql.select import keys_and_checksums
from cq_engine.sources.tick import DELETE, UPSERT, Tick, wide, with_operation
from cq_engine.sources.whole import Whole
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.identities import find_places
from cq_engine.storage.rows import conform
from cq_engine.transactions.transaction import Transaction

__all__ = ["Checksum"]

_KEPT = "checksum"
_NATIVE = "_native"
"""The key as the source has given it, as text."""
Key = tuple[Any, ...]


class Checksum(Relational):
    """Has no position: what it compares with are the checksums of the last tick."""

    def examine(self, asked: Asked, capture: Capture, place: Place) -> list[str]:
        del place
        keys_and_checksums(asked.selection, capture.method.column)
        return []

    def side_tables(self, capture: Capture, table: Table) -> Sequence[CreateTable]:
        """`<capture>_checksums`: the key, and the checksum of the row that was captured."""
        types = {column.name.lower(): column.type for column in table.columns}
        key = table.primary_key or ()
        columns = [ColumnSpec(name, types[name.lower()], nullable=False) for name in key]
        columns.append(ColumnSpec(_KEPT, "STRING"))
        return [CreateTable(_side(capture), tuple(columns), PrimaryKeySpec(key))]

    def ask(self, tick: Tick, asked: Asked) -> None:
        most = tick.services.limits.pending_rows
        with asked.database.connect() as session:
            if tick.status.last is None and asked.whole(session, tick.columns).is_large(tick.services.limits):
                self._anew(tick, asked, session)
                return
            sums, rest = tick.take(_sums(tick, asked, session), most, _as_taken(tick))
            kept = tick.own_rows(tick.beside(_side(tick.capture)))
            if sums is None or kept is None:
                changed, gone = _compared(tick, rest if sums is None else sums.to_batches())
            else:
                tick.check_unique(sums, tick.table)
                changed, gone = _differing(tick, sums, kept)
            if changed.num_rows > most or gone.num_rows > most:
                self._anew(tick, asked, session)
                return
            rows = _fetched(tick, asked, session, changed)
        tick.apply(_changes(tick, rows, changed, gone), {})

    def _anew(self, tick: Tick, asked: Asked, session: Session) -> None:
        """All rows travel, and then, in the same state of the source, their checksums.

        PostgreSQL reads the partitions that there are when a statement begins, whatever its transaction has seen before.
        """
        before = members(asked.database, asked.selection.relation)

        def reached() -> Mapping[str, Any]:
            if members(asked.database, asked.selection.relation) != before:
                raise SourceError(
                    f"partitions of {asked.selection.relation.shown} have come or gone while they were read",
                    hint="repeat it: the next tick compares all rows",
                )
            return {}

        tick.replace(asked.whole(session, tick.columns), {})
        column = tick.capture.method.column
        every = keys_and_checksums(asked.selection, column)
        batches = session.batches
        sums = Whole(
            session, asked.selection,
            lambda bounds: keys_and_checksums(asked.selection, column, *bounds),
            lambda: (b.rename_columns(_names(every)) for b in batches(every, tick.table.columns)),
        )  # fmt: skip
        tick.replace(sums, reached, tick.beside(_side(tick.capture)))


def _side(capture: Capture) -> str:
    return f"{capture.name}_checksums"


def _as_taken(tick: Tick) -> tuple[Column, ...]:
    side = tick.beside(_side(tick.capture))
    return (*side.columns, Column(_NATIVE, "string"))


def _names(statement: Statement) -> list[str]:
    """What the table of checksums calls what a statement gives."""
    return [_KEPT if name == CHECKSUM else name for name in statement.names]


def _sums(tick: Tick, asked: Asked, session: Session) -> Iterator[pa.RecordBatch]:
    """Keys, checksums and keys as text."""
    statement = keys_and_checksums(asked.selection, tick.capture.method.column)
    places = [n for n, name in enumerate(statement.names) if name != CHECKSUM]
    for block in session.blocks(statement):
        batch = session.to_batch(statement, tick.table.columns, block).rename_columns(_names(statement))
        native = [to_text([row[place] for place in places]) for row in block]
        yield batch.append_column(_NATIVE, pa.array(native, pa.string()))


def _differing(tick: Tick, sums: pa.Table, kept: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The keys whose checksum is new or another, and those that are gone: both in memory."""
    side = tick.beside(_side(tick.capture))
    theirs, ours = tick.key_numbers(sums, kept, side)
    places = find_places(theirs, ours)
    was = kept.column(_KEPT).take(pa.array(places, mask=places < 0))
    same = (places >= 0) & (
        np.asarray(was.to_pylist(), object) == np.asarray(sums.column(_KEPT).to_pylist(), object)
    )
    gone = ~is_in(ours, theirs)
    return sums.filter(pa.array(~same)), kept.select(list(side.storage.identity)).filter(pa.array(gone))


def _compared(tick: Tick, batches: Any) -> tuple[pa.Table, pa.Table]:
    """The same by Spark, for many rows; not more than the driver takes and one."""
    side, most = tick.beside(_side(tick.capture)), tick.services.limits.pending_rows + 1
    transaction = Transaction(tick.services)
    try:
        frame = spool(transaction, side, batches, _as_taken(tick), tick.count, tick.capture.name)
        kept = transaction.view(side)
        key = [quote(name) for name in side.primary_key or ()]
        on = [f.col(f"t.{name}") == f.col(f"k.{name}") for name in key]
        changed = frame.alias("t").join(
            kept.alias("k"), [*on, f.col("t.checksum").eqNullSafe(f.col("k.checksum"))], "left_anti"
        )
        gone = kept.alias("k").join(frame.alias("t"), on, "left_anti").select(*key)
        return to_arrow(changed.limit(most)), to_arrow(gone.limit(most))
    finally:
        transaction.rollback()


def _fetched(tick: Tick, asked: Asked, session: Session, changed: pa.Table) -> pa.Table:
    """The rows whose checksums have changed, as the source has them in the same state."""
    keys: list[Key] = [from_text(text) for text in changed.column(_NATIVE).to_pylist()]
    rows, _ = tick.take(asked.rows_of(session, keys, tick.columns), max(1, len(keys)))
    if rows is None:
        raise key_error(tick.capture.table)
    return rows


def _changes(tick: Tick, rows: pa.Table, changed: pa.Table, gone: pa.Table) -> Mapping[str, pa.Table]:
    side = tick.beside(_side(tick.capture))
    keys = wide(gone, tick.columns)
    known = conform(changed.select([column.name for column in side.columns]), side.columns)
    return {
        tick.table.name: pa.concat_tables([with_operation(rows, UPSERT), with_operation(keys, DELETE)]),
        side.name: pa.concat_tables(
            [with_operation(known, UPSERT), with_operation(wide(gone, side.columns), DELETE)]
        ),
    }
