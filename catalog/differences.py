"""What a new state of the definitions changes of the one before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from cq_engine.catalog.model import (
    Capture,
    CatalogState,
    ContinuousQuery,
    DeclaredDestination,
    DeclaredSource,
    QueryGroup,
    SqlFunction,
    Table,
    VersionedTable,
)

__all__ = ["StateDiff", "diff", "differences", "only_readiness", "tables_of", "versioned_tables"]

_Definition = TypeVar("_Definition")
_Stored = Table | ContinuousQuery | QueryGroup


@dataclass(frozen=True)
class StateDiff:
    """What a new state changes. `gone` are ids of versioned tables."""

    put_tables: tuple[Table, ...]
    put_queries: tuple[ContinuousQuery, ...]
    removed_tables: tuple[str, ...]
    removed_queries: tuple[str, ...]
    forgotten_queries: tuple[str, ...]
    """Removed, or replaced by another query of the same name: status, cursors and refreshes go."""
    gone: frozenset[int]
    put_functions: tuple[SqlFunction, ...] = ()
    removed_functions: tuple[str, ...] = ()
    put_groups: tuple[QueryGroup, ...] = ()
    removed_groups: tuple[str, ...] = ()
    put_storage: tuple[VersionedTable, ...] = ()
    """The versioned tables of what is put."""
    put_destinations: tuple[DeclaredDestination, ...] = ()
    removed_destinations: tuple[str, ...] = ()
    put_sources: tuple[DeclaredSource, ...] = ()
    removed_sources: tuple[str, ...] = ()
    put_captures: tuple[Capture, ...] = ()
    removed_captures: tuple[str, ...] = ()
    """Their statuses go."""


def diff(old: CatalogState, state: CatalogState) -> StateDiff:
    """What `state` changes of `old`. Definitions that are the same object are not compared."""
    tables = differences(old.tables, state.tables)
    queries = differences(old.queries, state.queries)
    groups = differences(old.groups, state.groups)
    functions = differences(old.functions, state.functions)
    destinations = differences(old.destinations, state.destinations)
    sources = differences(old.sources, state.sources)
    captures = differences(old.captures, state.captures)
    before: list[VersionedTable] = []
    after: list[VersionedTable] = []
    pairs: list[tuple[str, _Stored | None, _Stored | None]] = [*tables, *queries, *groups]
    for _, was, now in pairs:
        before += [] if was is None else tables_of(was)
        after += [] if now is None else tables_of(now)
    replaced = [n for n, was, now in queries if was and (now is None or now.id != was.id)]
    return StateDiff(
        _put(tables),
        _put(queries),
        _removed_names(tables),
        _removed_names(queries),
        (*replaced, *_removed_names(groups)),
        frozenset(t.id for t in before) - frozenset(t.id for t in after),
        _put(functions),
        _removed_names(functions),
        _put(groups),
        _removed_names(groups),
        tuple(after),
        _put(destinations),
        _removed_names(destinations),
        _put(sources),
        _removed_names(sources),
        _put(captures),
        _removed_names(captures),
    )


def differences(
    before: Mapping[str, _Definition], after: Mapping[str, _Definition]
) -> list[tuple[str, _Definition | None, _Definition | None]]:
    """What differs: (name, definition in `before`, definition in `after`), with None where there is none."""
    pairs: list[tuple[str, _Definition | None, _Definition | None]] = []
    new = 0
    for name, now in after.items():
        was = before.get(name)
        if was is not now:
            new += was is None
            if was != now:
                pairs.append((name, was, now))
    if len(before) + new > len(after):
        pairs += [(name, was, None) for name, was in before.items() if name not in after]
    return pairs


def only_readiness(state: CatalogState, diff: StateDiff) -> bool:
    """Whether nothing changes but how far query groups are (`QueryGroup.ready`), which no definition builds on."""
    known = [state.groups.get(group.name) for group in diff.put_groups]
    same = all(a is not None and replace(a, ready=b.ready) == b for a, b in zip(known, diff.put_groups))
    return same and diff == StateDiff(
        (), (), (), (), (), frozenset(), put_groups=diff.put_groups, put_storage=diff.put_storage
    )


def _put(pairs: list[tuple[str, _Definition | None, _Definition | None]]) -> tuple[_Definition, ...]:
    return tuple(now for _, _, now in pairs if now is not None)


def _removed_names(pairs: list[tuple[str, _Definition | None, _Definition | None]]) -> tuple[str, ...]:
    return tuple(name for name, _, now in pairs if now is None)


def versioned_tables(state: CatalogState) -> Mapping[int, VersionedTable]:
    """Every versioned table of a state by id: base tables; delta logs, stored blocks and results of queries."""
    definitions: list[_Stored] = [
        *state.tables.values(),
        *state.queries.values(),
        *state.groups.values(),
    ]
    return {table.id: table for each in definitions for table in tables_of(each)}


def tables_of(definition: Table | ContinuousQuery | QueryGroup) -> list[VersionedTable]:
    """The versioned tables of a definition. A query group's member has none of its own."""
    if isinstance(definition, Table):
        return [definition.storage]
    query = definition.query if isinstance(definition, QueryGroup) else definition
    if query.group is not None:
        return []
    found = [query.result, *(stored for _, stored in query.states)]
    return found if query.relation is None else [*found, query.relation.storage]
