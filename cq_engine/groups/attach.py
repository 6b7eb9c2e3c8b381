"""CREATE CONTINUOUS QUERY where an earlier query differs in constants only: the new one joins a template."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from cq_engine.catalog import groups as catalogued
from cq_engine.catalog.apply import allocate_id
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryStatus, Template
from cq_engine.core import faults
from cq_engine.core.errors import AnalysisError, RefreshError
from cq_engine.definition.analysis import define, session_settings
from cq_engine.definition.rules import notes, with_destinations
from cq_engine.definition.start import Start, keep_difference
from cq_engine.grammar import CreateContinuousQuery, format_statement
from cq_engine.groups.signature import Form, form_of, formed, moves_together, template_option
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.query_group import NotTemplated
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
        """Creates the query as a member of a template; the message, or None where it is to be a query of its own.

        A template is made for the second query of a form, or for the first WITH (template = 'on'); then, where none
        can be made, AnalysisError says why. Holds `Queries.ddl`.
        """
        option = template_option(statement.options)
        if not self._may_join(statement, option):
            if option == "on":
                raise AnalysisError(
                    f"{statement.name} cannot share a template",
                    detail="it starts from a version, has other options, or nothing is committed yet",
                    hint="leave out template = 'on' to have it refreshed by itself",
                )
            return None
        words = read_words(statement.query)
        session = session_settings(self.services.spark())
        form = form_of(words, statement.mode, statement.when, statement.primary_key, session)
        template = self._known(form, words.literals)
        if template is None:
            if option != "on" and (form in self._refused or not self._seen(form, words.literals)):
                return None
            try:
                template, compiled = self._formed(statement)
            except NotTemplated as reason:
                self._refused.add(form)
                if option == "on":
                    raise AnalysisError(
                        f"{statement.name} cannot share a template", detail=str(reason),
                        hint="leave out template = 'on' to have it refreshed by itself",
                    ) from reason  # fmt: skip
                return None
            self._places[form] = template.places
            if option != "on" and not self._seen(form, words.literals):
                return None
            self.queries.remember(template.query, compiled)
            return self._create_first(template, statement, _chosen(template, words))
        return self._create(template, statement, _chosen(template, words))

    def _may_join(self, statement: CreateContinuousQuery, option: str) -> bool:
        catalog = self.services.catalog
        others = [value for name, value in statement.options if name not in ("template", "refresh")]
        plain = not others and dict(statement.options).get("refresh", "auto").lower() == "auto"
        start = statement.start.point in ("NOW", "SNAPSHOT") and catalog.newest_version > 0
        together = moves_together(statement.when) or option == "on"
        return option in ("auto", "on") and plain and start and together

    # ------------------------------------------------------------ forms

    def _known(self, form: Form, literals: Sequence[Constant]) -> Template | None:
        """The template of this form whose other literals are these."""
        state = self.services.catalog.state
        for template in state.templates.values():
            found, pattern = self._form(template)
            fixed = (place for place in range(len(literals)) if place not in template.places)
            if found != form or any(literals[place].value != pattern[place].value for place in fixed):
                continue
            if (
                _same_sources(state, template)
                and self.services.catalog.status(template.name).state == "ACTIVE"
            ):
                return template
        return None

    def _form(self, template: Template) -> tuple[Form, tuple[Constant, ...]]:
        if template.name not in self._forms:
            words, query = read_words(template.pattern.query), template.pattern
            key = query.key if query.declared else None
            form = form_of(words, query.mode, query.when, key, query.session)
            self._forms[template.name] = form, words.literals
        return self._forms[template.name]

    def _seen(self, form: Form, literals: Sequence[Constant]) -> bool:
        """Whether a query of this form is there, with the same literals where it is known which are no constants."""
        places = self._places.get(form, range(len(literals)))
        fixed = [place for place in range(len(literals)) if place not in places]
        for query in self.services.catalog.state.queries.values():
            if query.template is not None or template_option(query.options) == "off":
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

    def _formed(self, statement: CreateContinuousQuery) -> tuple[Template, Compiled]:
        """A new template, which is not in the catalog before its first member is, and its plan."""
        catalog = self.services.catalog
        state, pattern, own = define(self.services, catalog.state, statement)
        state, template, compiled = formed(self.services, state, pattern, own)
        if template.name in state.queries:
            raise NotTemplated(f"a query is called {template.name}")
        return template, compiled

    # ------------------------------------------------------------ the member

    def _create(
        self, template: Template, statement: CreateContinuousQuery, constants: tuple[str, ...]
    ) -> str | None:
        """The new member of a template of the catalog; None where that cannot be taken to what is committed now.

        Others go on committing meanwhile: their commits are the first deltas.
        """
        catalog = self.services.catalog
        begun = catalog.newest_version
        if self._behind(template, begun):
            try:
                self.queries.refresh(template.name)
            except RefreshError:
                return None
        with self.queries.only([template.name]), ExitStack() as held:
            now = catalog.state.templates.get(template.name)
            if now is None or catalog.status(now.name).state != "ACTIVE" or self._behind(now, begun):
                return None
            with catalog.lock:
                version = max(begun, catalog.status(now.name).position)
                held.enter_context(self.services.read_holds.held(version))
            return self._added(catalog.state, now, statement, constants, version)

    def _create_first(
        self, template: Template, statement: CreateContinuousQuery, constants: tuple[str, ...]
    ) -> str:
        """The first member of a template that is not in the catalog yet."""
        with ExitStack() as held:
            with self.services.catalog.lock:
                version = self.services.catalog.newest_version
                held.enter_context(self.services.read_holds.held(version))
            state, template = self._with_new(template, version)
            return self._added(state, template, statement, constants, version)

    def _with_new(self, template: Template, version: int) -> tuple[CatalogState, Template]:
        """The state with a new template that starts at `version`, and the template."""
        state = self.services.catalog.state
        tables = (template.query.result, *(table for _, table in template.query.states))
        state = replace(state, next_id=max(state.next_id, 1 + max(table.id for table in tables)))
        template = replace(
            template,
            query=replace(template.query, created_version=version),
            pattern=replace(template.pattern, created_version=version),
        )
        return catalogued.with_template(state, template), template

    def _behind(self, template: Template, newest: int) -> bool:
        """Whether the template's tables have changes after its position, up to the version `newest`."""
        catalog = self.services.catalog
        position = catalog.status(template.name).position
        numbers = (catalog.state.tables[name].storage.id for name in template.query.sources)
        return any(catalog.changes(number, position + 1, newest) for number in numbers)

    def _added(
        self,
        state: CatalogState,
        template: Template,
        statement: CreateContinuousQuery,
        constants: tuple[str, ...],
        version: int,
    ) -> str:
        """Creates the member at `version`, at which the template is, or gets to without changes."""
        catalog = self.services.catalog
        state, query, made = self._member(state, template, statement, constants, version)
        snapshot = statement.start.point == "SNAPSHOT"
        start = self._snapshot(template, query, version) if snapshot else Start(version)
        known = template.name in catalog.state.templates
        faults.point("create.computed")
        with catalog.lock, catalog.write(start.attempt) as unit:
            unit.set_state(state)
            start.write(unit)
            if not known or catalog.status(template.name).position < version:
                unit.set_status(template.name, QueryStatus(version, "ACTIVE", "", self.services.now()))
            self.queries.delivery.begin(unit, query, version - 1 if snapshot else version)
        faults.point("create.after_catalog")
        if snapshot:
            self.queries.templates.news.joined(query, version)
        said = [f"continuous query {query.name} created: {query.verdict}, refreshed with others like it"]
        return "\n  ".join([*said, *query.reasons, *notes(self.services, query, made)])

    def _member(
        self,
        state: CatalogState,
        template: Template,
        statement: CreateContinuousQuery,
        constants: tuple[str, ...],
        version: int,
    ) -> tuple[CatalogState, ContinuousQuery, list[str]]:
        state, number = allocate_id(state)
        query = replace(
            template.pattern, name=statement.name, id=number, statement=format_statement(statement),
            query=statement.query, markers=statement.markers, destinations=statement.destinations,
            options=statement.options, created_version=version,
        )  # fmt: skip
        query, state, made = with_destinations(self.queries.delivery, query, state)
        state, query = catalogued.with_member(state, template, query, constants)
        return state, query, made

    def _snapshot(self, template: Template, query: ContinuousQuery, version: int) -> Start:
        """The member's result as I rows of the shared log."""
        templates, services = self.queries.templates, self.services
        compiled = templates.compiled(template)
        start = Start(version)
        shared = replace(template.query, name=query.name)
        with meaning(services.spark(), dict(template.query.session)), templates.only(template, [query]):
            result = result_at(services, compiled, version)
            rows = difference(services, result.limit(0), result, compiled.key, version)
            keep_difference(services, start, shared, rows)
        return start


def _same_sources(state: CatalogState, template: Template) -> bool:
    """Whether the tables have the columns that they had for the template: else a `*` would mean others."""
    for name, columns in template.pattern.source_columns:
        table = state.tables.get(name)
        if table is None or tuple(c.name for c in table.columns) != columns:
            return False
    return True


def _chosen(template: Template, words: Words) -> tuple[str, ...]:
    """The text's constants."""
    return tuple(words.literals[place].value for place in template.places)
