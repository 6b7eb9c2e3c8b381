"""What the methods over databases share: the source is opened, and what a capture wants of it is looked up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.sources.methods.base import Method, Place
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.relation import describe, describe_query
from cq_engine.sources.sql.select import (
    KEYS,
    Key,
    Selection,
    image,
    image_between,
    rows_of,
    selection,
)
from cq_engine.sources.tick import Tick
from cq_engine.sources.whole import Whole

__all__ = ["Asked", "Relational", "opened"]


@dataclass(frozen=True)
class Asked:
    """A database, and what a capture wants of it."""

    database: Database
    selection: Selection

    def rows_of(
        self, session: Session, keys: Sequence[Key], columns: Sequence[Column]
    ) -> Iterator[pa.RecordBatch]:
        """The rows with these keys, asked for in statements of a size that servers like."""
        for start in range(0, len(keys), KEYS):
            yield from session.batches(rows_of(self.selection, keys[start : start + KEYS]), columns)

    def whole(self, session: Session, columns: Sequence[Column]) -> Whole:
        """All rows."""
        chosen = self.selection
        return Whole(
            session, chosen,
            lambda bounds: image_between(chosen, *bounds, order=False),
            lambda: session.batches(image(chosen), columns),
        )  # fmt: skip


class Relational(Method):
    """A method that asks a database in its SQL."""

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        with opened(declared, capture, table) as asked:
            return capture, self.examine(asked, capture, place)

    def examine(self, asked: Asked, capture: Capture, place: Place) -> list[str]:
        """Notes for a person. Raises AnalysisError where the source does not allow the method."""
        del asked, capture, place
        return []

    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        with opened(declared, tick.capture, tick.table) as asked:
            self.ask(tick, asked)

    def ask(self, tick: Tick, asked: Asked) -> None:
        """One tick, with the source open."""
        raise NotImplementedError


@contextmanager
def opened(declared: DeclaredSource, capture: Capture, table: Table) -> Iterator[Asked]:
    """The database of a capture, with what is wanted of it as it is now."""
    with Database.open(declared, keeps=True) as database:
        if capture.method.query is not None:
            relation = describe_query(database, capture.method.query)
        elif capture.relation is not None:
            relation = describe(database, capture.relation)
        else:
            raise AnalysisError(
                f"capture {capture.name} does not say which table it reads",
                hint=f"write FROM {capture.source} TABLE 'name' USING {capture.method.kind}",
            )
        yield Asked(database, selection(capture, relation, table.primary_key or ()))
