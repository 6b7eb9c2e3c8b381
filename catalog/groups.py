"""Templates in the catalog: which queries are refreshed together, as pure functions of a CatalogState."""

from __future__ import annotations

from dataclasses import replace

from cq_engine.catalog.apply import add_query, allocate_id, replace_query
from cq_engine.catalog.model import (
    MEMBER,
    SEQUENCE,
    CatalogState,
    ContinuousQuery,
    Table,
    Template,
    VersionedTable,
)
from cq_engine.core.columns import Column

__all__ = [
    "carried_on",
    "constants_table",
    "members",
    "owner",
    "template_of",
    "with_member",
    "with_template",
    "without_empty",
]

PREFIX = "template "
"""What the names of templates begin with; a query's name with a space needs backquotes, and has a letter before it."""


def owner(state: CatalogState, query: str) -> str:
    """The lower-case name under which the status of a query is kept: its template's, where it is a member of one."""
    found = state.queries.get(query.lower())
    return query.lower() if found is None or found.template is None else found.template


def template_of(state: CatalogState, query: ContinuousQuery) -> Template | None:
    """The template that the query is a member of, or None."""
    return None if query.template is None else state.templates[query.template]


def members(state: CatalogState, template: Template) -> list[ContinuousQuery]:
    """The template's members in the order of their creation."""
    return [query for query in state.queries.values() if query.template == template.name]


def constants_table(state: CatalogState, types: tuple[str, ...]) -> tuple[CatalogState, Table]:
    """The table of the constants of a new template, whose columns have these types."""
    state, number = allocate_id(state)
    columns = (
        Column(MEMBER, "bigint", nullable=False),
        *(Column(f"c{n}", kind, nullable=False) for n, kind in enumerate(types)),
    )
    storage = VersionedTable(number, "constants", f"constants_{number}", columns, (MEMBER,))
    return state, Table(storage.name, storage, (MEMBER,))


def with_template(state: CatalogState, template: Template) -> CatalogState:
    """Adds a template, or changes it."""
    return replace(state, templates={**state.templates, template.name: template})


def with_member(
    state: CatalogState, template: Template, query: ContinuousQuery, constants: tuple[str, ...]
) -> tuple[CatalogState, ContinuousQuery]:
    """Makes `query`, which has its id, a member; it takes the place of one of its name."""
    log = VersionedTable(
        template.query.result.id,
        "delta",
        query.name,
        template.pattern.result.columns,
        (SEQUENCE,),
        part=query.id,
    )
    member = replace(query, result=log, states=(), template=template.name, constants=constants)
    known = query.name.lower() in state.queries
    return (replace_query if known else add_query)(state, member), member


def carried_on(before: CatalogState, after: CatalogState) -> CatalogState:
    """`after` with what refreshes have done to templates meanwhile: `after` may be older than `before` in that.

    Definitions change one after the other, but for `Template.ready`, which refreshes move, and only ahead.
    """
    kept = {
        name: known
        for name, known in before.templates.items()
        if name in after.templates and after.templates[name].ready < known.ready
    }
    if not kept:
        return after
    moved = {name: replace(after.templates[name], ready=known.ready) for name, known in kept.items()}
    return replace(after, templates={**after.templates, **moved})


def without_empty(state: CatalogState) -> CatalogState:
    """Takes templates away that have no members."""
    if not state.templates:
        return state
    used = {query.template for query in state.queries.values()}
    kept = {name: template for name, template in state.templates.items() if name in used}
    return state if len(kept) == len(state.templates) else replace(state, templates=kept)
