"""What every method of capture has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import AnalysisError, Location, did_you_mean
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.tick import Tick

__all__ = ["Method", "Place", "as_named", "as_spelled", "check_key_filled"]

Place = Callable[[str], Location | None]
"""Where a word stands in the statement."""


def as_spelled(capture: Capture, names: Iterable[str], what: str, place: Place) -> Capture:
    """The capture with the source's columns as `what`, the source, writes their names.

    Raises AnalysisError for one that is not among `names`.
    """
    known = {name.lower(): name for name in names}
    columns = []
    for each in capture.columns:
        if each.name.lower() not in known:
            raise AnalysisError(
                f"{what} has no column {each.name}",
                hint=did_you_mean(each.name, known.values(), f"it has {', '.join(known.values())}"),
                location=place(each.name),
            )
        columns.append(replace(each, name=known[each.name.lower()]))
    return replace(capture, columns=tuple(columns))


def as_named(batch: pa.RecordBatch, capture: Capture, more: Sequence[str] = ()) -> pa.RecordBatch:
    """The captured columns of a source's rows under the names of the capture's table, and `more` under their own."""
    picked = batch.select([*(each.name for each in capture.columns), *more])
    return picked.rename_columns([*(each.target for each in capture.columns), *more])


def check_key_filled(capture: Capture, table: Table, hint: str) -> None:
    """Raises AnalysisError where a column of the table's key is none of those that the capture fills."""
    filled = {each.target.lower() for each in capture.columns}
    missing = [name for name in table.primary_key or () if name.lower() not in filled]
    if missing:
        raise AnalysisError(
            f"the capture does not fill the key column {missing[0]}",
            detail="changes find their rows by it",
            hint=hint,
        )


class Method(ABC):
    """How a capture finds what has changed at its source. One object for all captures: what moves is in their positions."""

    needs_key = True
    """Whether changes find their rows by the primary key of the table."""

    @abstractmethod
    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        """The capture as it is to be stored, and notes for a person.

        Raises AnalysisError where source or table do not allow the method, SourceError where the source cannot be read.
        """

    def side_tables(self, capture: Capture, table: Table) -> Sequence[CreateTable]:
        """Tables that the method keeps beside the capture's own; they go with the capture."""
        del capture, table
        return ()

    def prepare(
        self, declared: DeclaredSource, capture: Capture, table: Table, position: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Makes the source ready: for a new capture, and for one that failed, which has got to `position`. Returns the
        position to go on from; None for where it is. Raises SourceError, and leaves nothing at the source then."""
        del declared, capture, table, position
        return None

    def release(self, declared: DeclaredSource, capture: Capture, position: Mapping[str, Any] | None) -> None:
        """Removes from the source what `prepare` has put there. Raises SourceError."""
        del declared, capture, position

    @abstractmethod
    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        """One tick. Raises SourceError where the source cannot be read."""
