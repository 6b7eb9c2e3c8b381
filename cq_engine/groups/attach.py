"""CREATE CONTINUOUS QUERY where an earlier query differs in constants only: the new one joins a query group."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from cq_engine.catalog import groups as catalogued
from cq_engine.catalog.apply import allocate_id
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryGroup, QueryStatus
from cq_engine.core import faults
from cq_engine.core.errors import AnalysisError, RefreshError
from cq_engine.definition.analysis import define, session_settings
from cq_engine.definition.rules import notes, with_destinations
from cq_engine.definition.start import Start, keep_difference
from cq_engine.grammar import CreateContinuousQuery, format_statement
from cq_engine.groups.signature import Form, form_of, formed, group_option, moves_together
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.query_group import NotGrouped
from cq_engine.planner.words import Constant, Words, read_words
from cq_engine.refresh.recompute import difference, result_at
from cq_engine.spark.settings import meaning

if TYPE_CHECKING:
    from cq_engine.lifecycle.registry import Queries

__all__ = ["Joining"]


class Joining:
    """Recognises new queries. What it knows of texts is kept in memory and can be made again from the catalog."""

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        self.services = queries.services
        self._single: dict[int, tuple[Form, tuple[Constant, ...]]] = {}
        self._places: dict[Form, tuple[int, ...]] = {}
        self._forms: dict[str, tuple[Form, tuple[Constant, ...]]] = {}
        self._refused: set[Form] = set()

    def joined(self, statement: CreateContinuousQuery) -> str | None:
        """Creates the query as a member of a query group; the message, or None where it is to be a query of its own.

        A query group is made for the second query of a form, or for the first WITH (query_group = 'on'); then, where none
        can be made, AnalysisError says why. Holds `Queries.ddl`.
        """
        option = group_option(statement.options)
        if not self._may_join(statement, option):
            if option == "on":
                raise AnalysisError(
                    f"{statement.name} cannot be in a query group",
                    detail="it starts from a version, has other options, or nothing is committed yet",
                    hint="leave out query_group = 'on' to have it refreshed by itself",
                )
            return None
        words = read_words(statement.query)
        session = session_settings(self.services.spark())
        form = form_of(words, statement.mode, statement.when, statement.primary_key, session)
        group = self._known(form, words.literals)
        if group is None:
            if option != "on" and (form in self._refused or not self._seen(form, words.literals)):
                return None
            try:
                group, compiled = self._formed(statement)
            except NotGrouped as reason:
                self._refused.add(form)
                if option == "on":
                    raise AnalysisError(
                        f"{statement.name} cannot be in a query group", detail=str(reason),
                        hint="leave out query_group = 'on' to have it refreshed by itself",
                    ) from reason  # fmt: skip
                return None
            self._places[form] = group.places
            if option != "on" and not self._seen(form, words.literals):
                return None
            self.queries.remember(group.query, compiled)
            return self._create_first(group, statement, _chosen(group, words))
        return self._create(group, statement, _chosen(group, words))

    def _may_join(self, statement: CreateContinuousQuery, option: str) -> bool:
        catalog = self.services.catalog
        others = [value for name, value in statement.options if name not in ("query_group", "refresh")]
        plain = not others and dict(statement.options).get("refresh", "auto").lower() == "auto"
        start = statement.start.point in ("NOW", "SNAPSHOT") and catalog.newest_version > 0
        together = moves_together(statement.when) or option == "on"
        return option in ("auto", "on") and plain and start and together

    # ------------------------------------------------------------ forms

    def _known(self, form: Form, literals: Sequence[Constant]) -> QueryGroup | None:
        """The query group of this form whose other literals are these."""
        state = self.services.catalog.state
        for group in state.groups.values():
            found, pattern = self._form(group)
            fixed = (place for place in range(len(literals)) if place not in group.places)
            if found != form or any(literals[place].value != pattern[place].value for place in fixed):
                continue
            if _same_sources(state, group) and self.services.catalog.status(group.name).state == "ACTIVE":
                return group
        return None

    def _form(self, group: QueryGroup) -> tuple[Form, tuple[Constant, ...]]:
        if group.name not in self._forms:
            words, query = read_words(group.pattern.query), group.pattern
            key = query.key if query.declared else None
            form = form_of(words, query.mode, query.when, key, query.session)
            self._forms[group.name] = form, words.literals
        return self._forms[group.name]

    def _seen(self, form: Form, literals: Sequence[Constant]) -> bool:
        """Whether a query of this form is there, with the same literals where it is known which are no constants."""
        places = self._places.get(form, range(len(literals)))
        fixed = [place for place in range(len(literals)) if place not in places]
        for query in self.services.catalog.state.queries.values():
            if query.group is not None or group_option(query.options) == "off":
                continue
            if query.id not in self._single:
                words = read_words(query.query)
                key = query.key if query.declared else None
                known = form_of(words, query.mode, query.when, key, query.session)
                self._single[query.id] = known, words.literals
            found, others = self._single[query.id]
            if found == form and all(literals[place].value == others[place].value for place in fixed):
                return True
        return False

    def _formed(self, statement: CreateContinuousQuery) -> tuple[QueryGroup, Compiled]:
        """A new query group, which is not in the catalog before its first member is, and its plan."""
        catalog = self.services.catalog
        state, pattern, own = define(self.services, catalog.state, statement)
        state, group, compiled = formed(self.services, state, pattern, own)
        if group.name in state.queries:
            raise NotGrouped(f"a query is called {group.name}")
        return group, compiled

    # ------------------------------------------------------------ the member

    def _create(
        self, group: QueryGroup, statement: CreateContinuousQuery, constants: tuple[str, ...]
    ) -> str | None:
        """The new member of a query group of the catalog; None where that cannot be taken to what is committed now.

        Others go on committing meanwhile: their commits are the first deltas.
        """
        catalog = self.services.catalog
        begun = catalog.newest_version
        if self._behind(group, begun):
            try:
                self.queries.refresh(group.name)
            except RefreshError:
                return None
        with self.queries.only([group.name]), ExitStack() as held:
            now = catalog.state.groups.get(group.name)
            if now is None or catalog.status(now.name).state != "ACTIVE" or self._behind(now, begun):
                return None
            with catalog.lock:
                version = max(begun, catalog.status(now.name).position)
                held.enter_context(self.services.read_holds.held(version))
            return self._added(catalog.state, now, statement, constants, version)

    def _create_first(
        self, group: QueryGroup, statement: CreateContinuousQuery, constants: tuple[str, ...]
    ) -> str:
        """The first member of a query group that is not in the catalog yet."""
        with ExitStack() as held:
            with self.services.catalog.lock:
                version = self.services.catalog.newest_version
                held.enter_context(self.services.read_holds.held(version))
            state, group = self._with_new(group, version)
            return self._added(state, group, statement, constants, version)

    def _with_new(self, group: QueryGroup, version: int) -> tuple[CatalogState, QueryGroup]:
        """The state with a new query group that starts at `version`, and the group."""
        state = self.services.catalog.state
        tables = (group.query.result, *(table for _, table in group.query.states))
        state = replace(state, next_id=max(state.next_id, 1 + max(table.id for table in tables)))
        group = replace(
            group,
            query=replace(group.query, created_version=version),
            pattern=replace(group.pattern, created_version=version),
        )
        return catalogued.with_group(state, group), group

    def _behind(self, group: QueryGroup, newest: int) -> bool:
        """Whether the query group's tables have changes after its position, up to the version `newest`."""
        catalog = self.services.catalog
        position = catalog.status(group.name).position
        numbers = (catalog.state.tables[name].storage.id for name in group.query.sources)
        return any(catalog.changes(number, position + 1, newest) for number in numbers)

    def _added(
        self,
        state: CatalogState,
        group: QueryGroup,
        statement: CreateContinuousQuery,
        constants: tuple[str, ...],
        version: int,
    ) -> str:
        """Creates the member at `version`, at which the query group is, or gets to without changes."""
        catalog = self.services.catalog
        state, query, made = self._member(state, group, statement, constants, version)
        snapshot = statement.start.point == "SNAPSHOT"
        start = self._snapshot(group, query, version) if snapshot else Start(version)
        known = group.name in catalog.state.groups
        faults.point("create.computed")
        with catalog.lock, catalog.write(start.attempt) as unit:
            unit.set_state(state)
            start.write(unit)
            if not known or catalog.status(group.name).position < version:
                unit.set_status(group.name, QueryStatus(version, "ACTIVE", "", self.services.now()))
            self.queries.delivery.begin(unit, query, version - 1 if snapshot else version)
        faults.point("create.after_catalog")
        if snapshot:
            self.queries.groups.news.joined(query, version)
        said = [f"continuous query {query.name} created: {query.verdict}, refreshed with others like it"]
        return "\n  ".join([*said, *query.reasons, *notes(self.services, query, made)])

    def _member(
        self,
        state: CatalogState,
        group: QueryGroup,
        statement: CreateContinuousQuery,
        constants: tuple[str, ...],
        version: int,
    ) -> tuple[CatalogState, ContinuousQuery, list[str]]:
        state, number = allocate_id(state)
        query = replace(
            group.pattern, name=statement.name, id=number, statement=format_statement(statement),
            query=statement.query, markers=statement.markers, destinations=statement.destinations,
            options=statement.options, created_version=version,
        )  # fmt: skip
        query, state, made = with_destinations(self.queries.delivery, query, state)
        state, query = catalogued.with_member(state, group, query, constants)
        return state, query, made

    def _snapshot(self, group: QueryGroup, query: ContinuousQuery, version: int) -> Start:
        """The member's result as I rows of the shared log."""
        groups, services = self.queries.groups, self.services
        compiled = groups.compiled(group)
        start = Start(version)
        shared = replace(group.query, name=query.name)
        with meaning(services.spark(), dict(group.query.session)), groups.only(group, [query]):
            result = result_at(services, compiled, version)
            rows = difference(services, result.limit(0), result, compiled.key, version)
            keep_difference(services, start, shared, rows)
        return start


def _same_sources(state: CatalogState, group: QueryGroup) -> bool:
    """Whether the tables have the columns that they had for the query group: else a `*` would mean others."""
    for name, columns in group.pattern.source_columns:
        table = state.tables.get(name)
        if table is None or tuple(c.name for c in table.columns) != columns:
            return False
    return True


def _chosen(group: QueryGroup, words: Words) -> tuple[str, ...]:
    """The text's constants."""
    return tuple(words.literals[place].value for place in group.places)
