"""What a source has: relations, their columns and indexes; and a statement that asks for some of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import NumericType
from sqlglot import exp

from cq_engine.core.columns import INTERNAL, Column
from cq_engine.core.errors import SourceError, did_you_mean
from cq_engine.core.types import spark_type

__all__ = [
    "CHECKSUM",
    "DELETED",
    "NOW",
    "TIMESTAMP",
    "Index",
    "Relation",
    "SourceColumn",
    "Statement",
    "is_number",
    "quoted",
]

CHECKSUM = f"{INTERNAL}checksum"
"""Of a row: text of which two differ where the rows do."""
DELETED = f"{INTERNAL}deleted"
"""Of a row: whether it is marked deleted, or does not belong to the selection any more."""
NOW = f"{INTERNAL}now"
"""Of no row: the source's own clock."""
TIMESTAMP = f"{INTERNAL}timestamp"
"""Of a row: the timestamp that its last write has set, as the source has it."""


@dataclass(frozen=True)
class SourceColumn:
    """A column of a source's relation."""

    name: str
    declared: str
    """The type in the source's words, such as `numeric(10,2)`; empty where it has none."""
    type: str
    """The type of Spark that has its values, as DDL text."""
    nullable: bool = True
    collation: str | None = None
    """Of text, where the source says it."""
    ordered: bool = False
    """True where the source compares its values as the warehouse does: numbers, times, and text byte by byte."""

    @property
    def column(self) -> Column:
        """A column of the warehouse that takes its values."""
        return Column(self.name, self.type, self.nullable)


@dataclass(frozen=True)
class Index:
    """An index over whole columns and all rows: by which ones rows are found, and which ones it has besides."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    included: tuple[str, ...] = ()


@dataclass(frozen=True)
class Relation:
    """A table, a view, or the query of a capture, as it is at the source now."""

    server: str
    """The name of the server whose SQL asks for it: sqlite, postgresql, mariadb, or that of a dialect."""
    dialect: str
    """SQLGlot's name of its SQL."""
    name: str
    columns: tuple[SourceColumn, ...]
    schema: str | None = None
    key: tuple[str, ...] = ()
    """The columns of its primary key; empty where it has none."""
    indexes: tuple[Index, ...] = ()
    """That of the primary key is among them, where there is one."""
    rows: int | None = None
    """About so many; None where the source does not know."""
    query: str | None = None
    """The text of a query that has no name at the source."""

    @property
    def shown(self) -> str:
        """The name for a person."""
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def column(self, name: str) -> SourceColumn:
        """The column of this name, in whatever case where that is clear. Raises SourceError."""
        exact = [c for c in self.columns if c.name == name]
        near = exact or [c for c in self.columns if c.name.lower() == name.lower()]
        if len(near) == 1:
            return near[0]
        names = [c.name for c in self.columns]
        raise SourceError(
            f"{self.shown} has no column {name}" if not near else f"{self.shown} has several columns {name}",
            hint=did_you_mean(name, names, f"it has {', '.join(names)}")
            if not near
            else f"write {' or '.join(c.name for c in near)}",
        )


@dataclass(frozen=True)
class Statement:
    """SQL of one source, its parameters, and the names of the columns that it gives."""

    sql: str
    parameters: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    relation: str = ""
    """As a person knows it."""
    key: tuple[int, ...] = ()
    """The places, among `names`, of what identifies a row."""


def is_number(kind: str) -> bool:
    """Whether a type of Spark is one of numbers."""
    return isinstance(spark_type(kind), NumericType)


def quoted(name: str, dialect: str) -> str:
    """A name as the dialect quotes it."""
    return exp.to_identifier(name, quoted=True).sql(dialect=dialect)
