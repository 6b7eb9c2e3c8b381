"""What of a source cannot be read: the capture stops at it, or it is put aside into a table beside the capture's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import Capture
from cq_engine.core.errors import SourceError
from cq_engine.core.types import arrow_type
from cq_engine.grammar.clauses import ColumnSpec
from cq_engine.grammar.statements import CreateTable
from cq_engine.sources.options import option
from cq_engine.sources.tick import INSERT, with_operation

__all__ = ["DeadLetters", "Layout", "dead_letters_of", "note", "puts_aside", "side_tables"]

Layout = Sequence[tuple[str, str]]
"""Names and types of a table of dead letters: where something stood, why it could not be read, and its text."""


def dead_letters_of(name: str) -> str:
    """The name of the table that takes what a capture cannot read."""
    return f"{name}_dead"


def puts_aside(capture: Capture) -> bool:
    """Whether the capture goes on after what it cannot read."""
    return capture.method.kind == "LOG" and option(capture, "on_poison") == "dead_letter"


def note(capture: Capture) -> list[str]:
    """What CREATE CAPTURE says of it."""
    return [f"what cannot be read of it goes to table {dead_letters_of(capture.name)}"] * puts_aside(capture)


def side_tables(capture: Capture, layout: Layout) -> Sequence[CreateTable]:
    """The table that takes what cannot be read, where the capture has one."""
    columns = tuple(ColumnSpec(*each) for each in layout)
    return [CreateTable(dead_letters_of(capture.name), columns)] * puts_aside(capture)


@dataclass
class DeadLetters:
    """What could not be read, and is not written yet."""

    capture: Capture
    layout: Layout
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def refuse(self, letter: tuple[Any, ...], error: SourceError) -> None:
        """Notes a letter, in the layout's order; raises the error where the capture is to stop."""
        if not puts_aside(self.capture):
            raise error
        self.rows.append(letter)

    def take(self) -> Mapping[str, pa.Table]:
        """The letters as changes of their table, by its name; none are left."""
        if not self.rows:
            return {}
        columns = zip(self.layout, zip(*self.rows))
        made = pa.table({name: pa.array(list(some), arrow_type(kind)) for (name, kind), some in columns})
        self.rows = []
        return {dead_letters_of(self.capture.name): with_operation(made, INSERT)}
