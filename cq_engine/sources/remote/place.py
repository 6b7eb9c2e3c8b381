"""What a table that stays at its source stands for there: its relation, and which of its columns compare alike on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cq_engine.catalog.model import CatalogState, Table
from cq_engine.catalog.sources import find_source
from cq_engine.core.columns import Column
from cq_engine.grammar.clauses import CapturedColumn
from cq_engine.sources.sql.database import Database
from cq_engine.sources.sql.model import Relation, SourceColumn
from cq_engine.sources.sql.relation import describe
from cq_engine.sources.sql.selection import Selection

__all__ = ["INTEGERS", "Place", "comparable", "family", "opened", "selection_of"]

INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
"""Types of whole numbers, and how many bits a positive value has."""


def family(kind: str) -> str:
    """Types of one family have the same values, as far as they have them: `integer`, `decimal`, or the type itself."""
    kind = kind.lower()
    if kind in INTEGERS:
        return "integer"
    return "decimal" if kind.startswith("decimal") else kind


_ALIKE = {"integer", "decimal", "string", "date", "boolean", "timestamp_ntz", "timestamp"}
_ALIKE_IN_SQLITE = {"integer", "string"}
"""The rest is text or floating point there, in whatever form it was written."""


_TEXT = {
    "postgresql": ("text", "character"),
    "sqlite": ("char", "clob", "text"),
    "mariadb": ("char", "text"),
    "mysql": ("char", "text"),
}
"""By server, what stands in the declarations of its types of text: others become text here, and are compared otherwise there."""


def comparable(relation: Relation, source: SourceColumn, column: Column) -> bool:
    """Whether a source can be asked for values of a column, and takes all for equal that the warehouse does: so it is where both
    have the values in the same way. Collations of a source may take more for equal, never less."""
    kind = family(column.type)
    if kind != family(source.type) or kind not in (
        _ALIKE_IN_SQLITE if relation.server == "sqlite" else _ALIKE
    ):
        return False
    return kind != "string" or any(word in source.declared.lower() for word in _TEXT.get(relation.server, ()))


@dataclass(frozen=True)
class Place:
    """A table that stays at its source, with that source open."""

    table: Table
    database: Database
    selection: Selection
    """All columns of the table, under its names."""

    def source_column(self, name: str) -> SourceColumn:
        """The source's column that a column of the table stands for."""
        return self.selection.relation.column(name)


def selection_of(database: Database, table: Table, columns: Sequence[Column] | None = None) -> Selection:
    """What `columns` of the table, by default all, are at its source. Raises SourceError where the relation or a column is gone."""
    assert table.remote is not None
    relation = describe(database, table.remote.relation)
    chosen = table.columns if columns is None else columns
    captured = tuple(CapturedColumn(relation.column(c.name).name, c.name) for c in chosen)
    return Selection(
        relation, captured, tuple(relation.column(name).name for name in table.primary_key or ())
    )


@contextmanager
def opened(state: CatalogState, table: Table, *, keeps: bool = True) -> Iterator[Place]:
    """The table's source. Raises SourceError where the relation or a column is not there any more."""
    assert table.remote is not None
    with Database.open(find_source(state, table.remote.source), keeps=keeps) as database:
        yield Place(table, database, selection_of(database, table))
