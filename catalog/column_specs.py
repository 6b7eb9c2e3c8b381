"""The columns that a statement names: as a table has them, and as it is called by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    REFRESH_TIME,
    ROW_ID,
    SEQUENCE,
)
from cq_engine.core.capabilities import key_problem
from cq_engine.core.columns import INTERNAL, Column
from cq_engine.core.errors import CatalogError, did_you_mean
from cq_engine.core.types import canonical_type
from cq_engine.grammar.clauses import ColumnSpec

__all__ = ["RESERVED", "columns_of", "resolve_names"]

RESERVED = frozenset({ROW_ID, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP, SEQUENCE, REFRESH_TIME})
"""Column names that the engine adds to change rows."""


def columns_of(table: str, specs: Sequence[ColumnSpec], key: Iterable[str]) -> tuple[Column, ...]:
    """The columns as the table has them: those of its key are never NULL. Raises CatalogError, AnalysisError."""
    in_key = {name.lower() for name in key}
    seen: set[str] = set()
    columns = []
    for spec in specs:
        if spec.name.lower() in seen:
            raise CatalogError(
                f"table {table} has two columns {spec.name}", detail="names are compared without case"
            )
        if spec.name.lower() in RESERVED:
            raise CatalogError(
                f"column {spec.name} of table {table} has a name that change rows need",
                hint=f"choose another; reserved are {', '.join(sorted(RESERVED))}",
            )
        if spec.name.lower().startswith(INTERNAL):
            raise CatalogError(
                f"column {spec.name} of table {table} begins with {INTERNAL}",
                hint="choose another name; names with this beginning are the engine's",
            )
        seen.add(spec.name.lower())
        kind = canonical_type(spec.type)
        nullable = spec.nullable and spec.name.lower() not in in_key
        columns.append(Column(spec.name, kind, nullable, spec.comment))
    return tuple(columns)


def resolve_names(table: str, columns: Sequence[Column], names: Sequence[str], what: str) -> tuple[str, ...]:
    """`names` as the table writes them, checked to be columns that can be ordered and stand once."""
    by_name = {c.name.lower(): c for c in columns}
    found: list[str] = []
    for name in names:
        column = by_name.get(name.lower())
        if column is None:
            raise CatalogError(
                f"{what}: table {table} has no column {name}",
                hint=did_you_mean(name, (c.name for c in columns)),
            )
        problem = key_problem(column.type)
        if problem:
            raise CatalogError(
                f"{what}: column {column.name} of table {table} is {column.type}, which no key can be",
                detail=problem,
            )
        if column.name in found:
            raise CatalogError(f"{what}: column {column.name} of table {table} is named twice")
        found.append(column.name)
    return tuple(found)
