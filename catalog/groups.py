"""Query groups in the catalog: which queries are refreshed together, as pure functions of a CatalogState."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cq_engine.catalog.apply import add_query, allocate_id, replace_query
from cq_engine.catalog.change_rows import MEMBER, SEQUENCE
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryGroup, Table, VersionedTable
from cq_engine.core.columns import Column

__all__ = [
    "carry_on",
    "constants_table",
    "group_of",
    "members",
    "owner",
    "owner_of",
    "query_options",
    "with_group",
    "with_member",
    "without_empty",
]

PREFIX = "query group "
"""What the names of groups begin with; a query's name with a space needs backquotes. Earlier groups are `template 12`."""


def query_options(options: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The WITH options of a query, each once and under its name of today: `query_group` was `template` first."""
    return tuple({"query_group" if name == "template" else name: value for name, value in options}.items())


def owner(state: CatalogState, query: str) -> str:
    """The lower-case name under which the status of a query is kept: its query group's, where it is a member of one."""
    found = state.queries.get(query.lower())
    return query.lower() if found is None else owner_of(found)


def owner_of(query: ContinuousQuery) -> str:
    """`owner` of a query whose definition is at hand."""
    return query.name.lower() if query.group is None else query.group


def group_of(state: CatalogState, query: ContinuousQuery) -> QueryGroup | None:
    """The query group that the query is a member of, or None."""
    return None if query.group is None else state.groups[query.group]


def members(state: CatalogState, group: QueryGroup) -> list[ContinuousQuery]:
    """The query group's members in the order of their creation."""
    return [query for query in state.queries.values() if query.group == group.name]


def constants_table(state: CatalogState, types: tuple[str, ...]) -> tuple[CatalogState, Table]:
    """The table of the constants of a new query group, whose columns have these types."""
    state, number = allocate_id(state)
    columns = (
        Column(MEMBER, "bigint", nullable=False),
        *(Column(f"c{n}", kind, nullable=False) for n, kind in enumerate(types)),
    )
    storage = VersionedTable(number, "constants", f"constants_{number}", columns, (MEMBER,))
    return state, Table(storage.name, storage, (MEMBER,))


def with_group(state: CatalogState, group: QueryGroup) -> CatalogState:
    """Adds a query group, or changes it."""
    return replace(state, groups={**state.groups, group.name: group})


def with_member(
    state: CatalogState, group: QueryGroup, query: ContinuousQuery, constants: tuple[str, ...]
) -> tuple[CatalogState, ContinuousQuery]:
    """Makes `query`, which has its id, a member; it takes the place of one of its name."""
    log = VersionedTable(
        group.query.result.id,
        "delta",
        query.name,
        group.pattern.result.columns,
        (SEQUENCE,),
        part=query.id,
    )
    member = replace(query, result=log, states=(), group=group.name, constants=constants)
    known = query.name.lower() in state.queries
    return (replace_query if known else add_query)(state, member), member


def carry_on(before: CatalogState, after: CatalogState) -> CatalogState:
    """`after` with what refreshes have done to query groups meanwhile: `after` may be older than `before` in that.

    Definitions change one after the other, but for `QueryGroup.ready`, which refreshes move, and only ahead.
    """
    kept = {
        name: known
        for name, known in before.groups.items()
        if name in after.groups and after.groups[name].ready < known.ready
    }
    if not kept:
        return after
    moved = {name: replace(after.groups[name], ready=known.ready) for name, known in kept.items()}
    return replace(after, groups={**after.groups, **moved})


def without_empty(state: CatalogState) -> CatalogState:
    """Takes query groups away that have no members."""
    if not state.groups:
        return state
    used = {query.group for query in state.queries.values()}
    kept = {name: group for name, group in state.groups.items() if name in used}
    return state if len(kept) == len(state.groups) else replace(state, groups=kept)
