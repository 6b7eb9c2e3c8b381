"""CREATE CONTINUOUS QUERY where an earlier query differs in constants only: the new one is attached to a query group."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import ExitStack
from dataclasses import replace

from cq_engine.catalog.apply import allocate_id
from cq_engine.catalog.groups import with_group, with_member
from cq_engine.catalog.model import PARTIAL, CatalogState, ContinuousQuery, QueryGroup, QueryStatus
from cq_engine.core import faults
from cq_engine.core.errors import AnalysisError, RefreshError
from cq_engine.core.keeping import keep
from cq_engine.definition.analysis import define, session_settings
from cq_engine.definition.rules import notes, with_destinations
from cq_engine.definition.start import Start, keep_difference, wide
from cq_engine.grammar import CreateContinuousQuery, format_statement
from cq_engine.groups.groups import Groups
from cq_engine.groups.signature import Signature, group_option, make_group, moves_together, signature_of
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.query_group import NotGrouped
from cq_engine.planner.words import Constant, Words, read_words
from cq_engine.refresh.recompute import difference, result_at
from cq_engine.spark.settings import meaning

__all__ = ["Attacher"]

_Known = tuple[Signature, tuple[Constant, ...]]


class Attacher:
    """Recognises new queries. What it knows of texts is kept in memory and can be made again from the catalog."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.registry = groups.registry
        self.delivery = groups.delivery
        self.services = groups.services
        self._single: dict[int, _Known] = {}
        self._places: dict[Signature, tuple[int, ...]] = {}
        self._patterns: dict[str, _Known] = {}
        self._refused: set[Signature] = set()

    def attach(self, statement: CreateContinuousQuery) -> str | None:
        """Creates the query as a member of a query group; the message, or None where it is to be a query of its own.

        A query group is made for the second query of a signature, or for the first WITH (query_group = 'on'); then,
        where none can be made, AnalysisError says why. Holds `Registry.ddl`.
        """
        option = group_option(statement.options)
        if not self._may_attach(statement, option):
            if option == "on":
                raise _refusal(
                    statement,
                    "it starts from a version, has other options or a destination that is its result, or nothing is committed yet",
                )
            return None
        words = read_words(statement.query)
        session = session_settings(self.services.spark())
        signature = signature_of(words, statement.mode, statement.when, statement.primary_key, session)
        group = self._find_group(signature, words.literals)
        if group is not None:
            return self._create(group, statement, _constants(group, words))
        if option != "on" and (signature in self._refused or not self._has_alike(signature, words.literals)):
            return None
        try:
            group, compiled = self._make_group(statement)
        except NotGrouped as reason:
            self._refused.add(signature)
            if option == "on":
                raise _refusal(statement, str(reason)) from reason
            return None
        self._places[signature] = group.places
        if option != "on" and not self._has_alike(signature, words.literals):
            return None
        self.registry.remember(group.query, compiled)
        return self._create_first(group, statement, _constants(group, words))

    def _may_attach(self, statement: CreateContinuousQuery, option: str) -> bool:
        catalog = self.services.catalog
        others = [value for name, value in statement.options if name not in ("query_group", "refresh")]
        plain = not others and dict(statement.options).get("refresh", "auto").lower() == "auto"
        start = statement.start.point in ("NOW", "SNAPSHOT") and catalog.newest_version > 0
        together = moves_together(statement.when) or option == "on"
        alone = self.delivery.includes_result(statement.destinations)
        return option in ("auto", "on") and plain and start and together and not alone

    def forget_gone(self) -> None:
        """Takes what is known of texts that no query has out of memory."""
        state = self.services.catalog.state
        keep(self._single, {query.id for query in state.queries.values()})
        keep(self._patterns, {group.name for group in state.groups.values()})
        there = {signature for signature, _ in (*self._single.values(), *self._patterns.values())}
        keep(self._places, there)
        self._refused &= there

    # ------------------------------------------------------------ signatures

    def _find_group(self, signature: Signature, literals: Sequence[Constant]) -> QueryGroup | None:
        """The query group of this signature whose other literals are these."""
        state = self.services.catalog.state
        for group in state.groups.values():
            if group.name not in self._patterns:
                self._patterns[group.name] = _read(group.pattern)
            found, pattern = self._patterns[group.name]
            if found != signature or not _agree(literals, pattern, group.places):
                continue
            if _same_sources(state, group) and self.services.catalog.status(group.name).state == "ACTIVE":
                return group
        return None

    def _has_alike(self, signature: Signature, literals: Sequence[Constant]) -> bool:
        """Whether a query of this signature is there, with the same literals where it is known which are no constants."""
        places = self._places.get(signature, range(len(literals)))
        for query in self.services.catalog.state.queries.values():
            if query.group is not None or group_option(query.options) == "off":
                continue
            if query.id not in self._single:
                self._single[query.id] = _read(query)
            found, others = self._single[query.id]
            if found == signature and _agree(literals, others, places):
                return True
        return False

    def _make_group(self, statement: CreateContinuousQuery) -> tuple[QueryGroup, Compiled]:
        """A new query group, which is not in the catalog before its first member is, and its plan."""
        catalog = self.services.catalog
        state, pattern, own = define(self.services, catalog.state, statement)
        if own.verdict == PARTIAL:
            raise NotGrouped("it is maintained from partial changes")
        state, group, compiled = make_group(self.services, state, pattern, own)
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
                self.groups.refresh(group.name)
            except RefreshError:
                return None
        with self.registry.hold([group.name]), ExitStack() as held:
            now = catalog.state.groups.get(group.name)
            if now is None or catalog.status(now.name).state != "ACTIVE" or self._behind(now, begun):
                return None
            with catalog.lock:
                version = max(begun, catalog.status(now.name).position)
                held.enter_context(self.services.read_holds.held(version))
            return self._add_member(catalog.state, now, statement, constants, version)

    def _create_first(
        self, group: QueryGroup, statement: CreateContinuousQuery, constants: tuple[str, ...]
    ) -> str:
        """The first member of a query group that is not in the catalog yet."""
        with ExitStack() as held:
            with self.services.catalog.lock:
                version = self.services.catalog.newest_version
                held.enter_context(self.services.read_holds.held(version))
            state, group = self._with_new(group, version)
            return self._add_member(state, group, statement, constants, version)

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
        return with_group(state, group), group

    def _behind(self, group: QueryGroup, newest: int) -> bool:
        """Whether the query group's tables have changes after its position, up to the version `newest`."""
        catalog = self.services.catalog
        position = catalog.status(group.name).position
        numbers = (catalog.state.tables[name].storage.id for name in group.query.sources)
        return any(catalog.changes(number, position + 1, newest) for number in numbers)

    def _add_member(
        self,
        state: CatalogState,
        group: QueryGroup,
        statement: CreateContinuousQuery,
        constants: tuple[str, ...],
        version: int,
    ) -> str:
        """Creates the member at `version`, at which the query group is, or gets to without changes."""
        catalog = self.services.catalog
        state, number = allocate_id(state)
        query = replace(
            group.pattern, name=statement.name, id=number, statement=format_statement(statement),
            query=statement.query, markers=statement.markers, destinations=statement.destinations,
            options=statement.options, created_version=version,
        )  # fmt: skip
        query, state, made = with_destinations(self.delivery, query, state)
        state, query = with_member(state, group, query, constants)
        snapshot = statement.start.point == "SNAPSHOT"
        start = self._snapshot(group, query, version) if snapshot else Start(version)
        known = group.name in catalog.state.groups
        faults.point("create.computed")
        with catalog.lock, catalog.write(start.attempt) as unit:
            unit.set_state(state)
            start.write(unit)
            if not known or catalog.status(group.name).position < version:
                unit.set_status(group.name, QueryStatus(version, "ACTIVE", "", self.services.now()))
            self.delivery.begin(unit, query, version - 1 if snapshot else version)
        faults.point("create.after_catalog")
        if snapshot:
            self.groups.progress.note_snapshot(query, version)
        said = [f"continuous query {query.name} created: {query.verdict}, refreshed with others like it"]
        return "\n  ".join([*said, *query.reasons, *notes(self.services, query, made)])

    def _snapshot(self, group: QueryGroup, query: ContinuousQuery, version: int) -> Start:
        """The member's result as I rows of the shared log."""
        services = self.services
        compiled = self.groups.compiled(group)
        start = Start(version)
        shared = replace(group.query, name=query.name)
        settings = meaning(services.spark(), dict(group.query.session))
        with settings, self.groups.constants.only(group, [query]), wide(services, start, compiled):
            result = result_at(services, compiled, version)
            rows = difference(services, None, result, compiled.key, version, start.parts)
            keep_difference(services, start, shared, rows)
        return start


def _read(query: ContinuousQuery) -> _Known:
    """The signature of a definition, and its literals."""
    words = read_words(query.query)
    key = query.key if query.declared else None
    return signature_of(words, query.mode, query.when, key, query.session), words.literals


def _agree(literals: Sequence[Constant], others: Sequence[Constant], places: Container[int]) -> bool:
    """Whether two texts of one signature have the same literals, but for those at `places`."""
    pairs = enumerate(zip(literals, others))
    return all(place in places or one.value == other.value for place, (one, other) in pairs)


def _same_sources(state: CatalogState, group: QueryGroup) -> bool:
    """Whether the tables have the columns that they had for the query group: else a `*` would mean others."""
    for name, columns in group.pattern.source_columns:
        table = state.tables.get(name)
        if table is None or tuple(c.name for c in table.columns) != columns:
            return False
    return True


def _constants(group: QueryGroup, words: Words) -> tuple[str, ...]:
    """The text's constants."""
    return tuple(words.literals[place].value for place in group.places)


def _refusal(statement: CreateContinuousQuery, why: str) -> AnalysisError:
    return AnalysisError(
        f"{statement.name} cannot be in a query group",
        detail=why,
        hint="leave out query_group = 'on' to have it refreshed by itself",
    )
