"""What queries have in common that can be refreshed as one, and the query group that is made of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from sqlglot.errors import SqlglotError

from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import PlanError
from cq_engine.catalog.apply import allocate_id
from cq_engine.catalog.change_rows import MEMBER, SEQUENCE
from cq_engine.catalog.groups import PREFIX, constants_table
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryGroup, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.definition.analysis import Shape, allocate_states, shape_of, types_over
from cq_engine.destinations.pairs import MARKERS
from cq_engine.grammar import Cron, OnCommit, OnDml, StartWithPeriod, When
from cq_engine.planner.compiled import Compiled, lowered_query
from cq_engine.planner.query_group import NotGrouped, compile_members, constant_places
from cq_engine.planner.select_list import select_list
from cq_engine.planner.words import Words, read_words

__all__ = ["Signature", "compile_group", "group_option", "make_group", "moves_together", "signature_of"]

Signature = Hashable
"""What the members of one query group have in common, but for some of the literals."""


def group_option(options: Sequence[tuple[str, str]]) -> str:
    """The option query_group: auto, on or off."""
    return dict(options).get("query_group", "auto").lower()


def moves_together(when: When) -> bool:
    """Whether queries with this schedule are due at the same moments, whenever they were created."""
    return isinstance(when, (OnCommit, OnDml, Cron, StartWithPeriod))


def signature_of(
    words: Words,
    mode: str,
    when: When,
    key: Sequence[str] | None,
    session: Sequence[tuple[str, str]],
) -> Signature:
    """The signature of a query with this text, mode, schedule, declared key and session settings."""
    declared = None if key is None else tuple(name.lower() for name in key)
    return (words.words, mode, when, declared, tuple(session))


def make_group(
    services: Services, state: CatalogState, pattern: ContinuousQuery, own: Compiled
) -> tuple[CatalogState, QueryGroup, Compiled]:
    """A query group for queries like `pattern`, which `own` is the plan of; the state with the ids that it uses.

    Raises NotGrouped.
    """
    if own.node is None or own.key_checked:
        raise NotGrouped("it is recomputed in full" if own.node is None else "its key has to be checked")
    if any(table.storage.kind != "base" for table in own.sources.values()):
        raise NotGrouped("it reads other continuous queries")
    shape, words, offset = _read(services, state, pattern)
    types = types_over(services, shape.sources)
    literals = [replace(each, start=each.start + offset) for each in words.literals]
    try:
        lowered, _, _ = lowered_query(shape.text, shape.columns, shape.sources, types, Names())
        places = constant_places(lowered, literals, types)
        if not places:
            raise NotGrouped("nothing is compared with a constant")
        state, table = constants_table(state, tuple(literals[place].type for place in places))
        if table.name in shape.sources:
            raise NotGrouped(f"a table is called {table.name}")
        starts = {literals[place].start: number for number, place in enumerate(places)}
        compiled = compile_members(
            shape.text, shape.columns, shape.sources, pattern.key, starts, table,
            types_over(services, {**shape.sources, table.name: table}),
        )  # fmt: skip
    except (NotLowered, SqlglotError, PlanError, AnalysisError) as error:
        raise NotGrouped(str(error).splitlines()[0]) from error
    if compiled.verdict != pattern.verdict:
        raise NotGrouped(f"all together would be {compiled.verdict}")
    state, number = allocate_id(state)
    state, log_id = allocate_id(state)
    state, states = allocate_states(state, compiled, f"query_group_{number}")
    columns = (*pattern.result.columns, Column(MEMBER, "bigint"))
    query = replace(
        pattern,
        name=f"{PREFIX}{number}",
        id=number,
        statement="",
        result=VersionedTable(log_id, "delta", f"query_group_{number}", columns, (SEQUENCE,)),
        key=compiled.key,
        markers=MARKERS,
        destinations=(),
        options=(),
        states=states,
        reasons=compiled.reasons,
        outputs=(),
    )
    return state, QueryGroup(query, replace(pattern, options=()), table, places), compiled


def compile_group(services: Services, group: QueryGroup) -> Compiled:
    """The plan of a query group from its definition."""
    pattern = group.pattern
    shape, words, offset = _read(services, services.catalog.state, pattern)
    starts = {words.literals[place].start + offset: number for number, place in enumerate(group.places)}
    return compile_members(
        shape.text, shape.columns, shape.sources, pattern.key, starts, group.constants,
        types_over(services, {**shape.sources, group.constants.name: group.constants}),
    )  # fmt: skip


def _read(services: Services, state: CatalogState, pattern: ContinuousQuery) -> tuple[Shape, Words, int]:
    """The pattern analysed, its words, and how far its text is moved in the text that is planned."""
    shape = shape_of(services, state, pattern.query, dict(pattern.source_columns))
    offset = shape.text.index(select_list(pattern.query).stripped)
    return shape, read_words(pattern.query), offset
