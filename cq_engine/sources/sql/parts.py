"""All rows of a selection in ranges of keys, which several processes read at the same time, each over a connection of its own.

Together they read one state of the database: that of a transaction which gives it a name, and is open until all have read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.model import DeclaredSource
from cq_engine.catalog.urls import Address
from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.model import DELETED, Statement

__all__ = ["NotBegun", "Parts", "failure_in"]

_MARK = "cq-source-error:"
_KINDS = (SourceError, SourceUnavailableError)


class NotBegun(SourceError):
    """A process cannot reach the source, or not in the state that it was to read, where another one may."""


@dataclass(frozen=True)
class Parts:
    """What is sent to other processes. The address has the secrets of the source, as those need not have the environment and
    the files that the declaration speaks of: it is not to be stored."""

    declared: DeclaredSource
    address: Address
    snapshot: str
    """The state that is read, by its name; empty where one statement reads whatever there is."""
    statements: tuple[Statement, ...]
    """One of each range."""
    columns: tuple[Column, ...]
    names: tuple[str, ...]
    """What the statements call the columns."""
    rows: int
    """So many that state has, in all ranges, also such as the statements leave out."""
    in_order: bool
    """Whether the warehouse would put the ranges in the same order."""

    def read(
        self, numbers: Iterator[pa.RecordBatch], count: Callable[[int], object] = lambda _: None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges whose numbers come, and no empty batch; `count` is told of each batch's rows.

        Raises RuntimeError, in which `failure_in` finds what a SourceError has said.
        """
        for each in numbers:
            for number in each.column(0).to_pylist():
                for batch in self._range(self.statements[number]):
                    count(len(batch))
                    if len(batch):
                        yield batch

    def _range(self, statement: Statement) -> Iterator[pa.RecordBatch]:
        begun = False
        try:
            with (
                Database.open(self.declared, address=self.address) as database,
                database.connect() as session,
            ):
                for sql in database.server.share(self.snapshot) if self.snapshot else ():
                    session.change(Statement(sql))
                for block in session.blocks(statement):
                    begun = True
                    yield self._fitted(session.to_batch(statement, self.columns, block))
        except SourceError as error:
            raise RuntimeError(_MARK + _told(error, begun=begun)) from None

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if DELETED in batch.schema.names:
            batch = batch.filter(pc.invert(batch.column(DELETED)))
        return batch.select(list(self.names)).rename_columns([column.name for column in self.columns])


def _told(error: SourceError, *, begun: bool) -> str:
    known: Sequence[str] = [type(error).__name__, error.message, error.detail, error.hint]
    return json.dumps([begun, *known])


def failure_in(text: str) -> SourceError | None:
    """The SourceError that `Parts.read` has raised in another process, of whose failure this is the text; None where there is
    none in it. It is NotBegun where the process has read nothing."""
    _, mark, rest = text.partition(_MARK)
    if not mark:
        return None
    begun, name, message, detail, hint = json.JSONDecoder().raw_decode(rest)[0]
    kind = next((each for each in _KINDS if each.__name__ == name), SourceError) if begun else NotBegun
    return kind(message, detail=detail, hint=hint)
