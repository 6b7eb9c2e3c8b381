"""Templates at work: queries that differ in constants join one, are refreshed as one, and leave it again.

What joins: a query whose text, but for literals that are compared, is that of an earlier one, with the same mode,
schedule, key and session settings (`alike`). It costs one catalog transaction. What makes a member differ from the
others (it is paused or redefined, another query reads it, its constants make the refresh fail) makes it leave: it takes
its rows of the delta log along and goes on from the template's position as a query of its own (`leave`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa

from cq_engine.algebra.rewrite.pruning import scans
from cq_engine.catalog import groups as catalogued
from cq_engine.catalog.apply import replace_query
from cq_engine.catalog.model import ContinuousQuery, QueryStatus, Template, VersionedTable
from cq_engine.core.errors import CatalogError, CQError, RefreshError
from cq_engine.core.types import arrow_schema
from cq_engine.definition.analysis import compile_definition, shape_of
from cq_engine.definition.start import Start, prepare_start
from cq_engine.groups.detach import own_start
from cq_engine.groups.progress import MemberNews
from cq_engine.groups.signature import compiled_template
from cq_engine.planner.compiled import Compiled
from cq_engine.refresh.frontier import frontier
from cq_engine.refresh.refresh import Refresh
from cq_engine.spark.settings import meaning

if TYPE_CHECKING:
    from cq_engine.lifecycle.registry import Queries

__all__ = ["Templates"]

_log = logging.getLogger(__name__)

TRIALS = 100
"""How often a refresh that failed is computed for a part of the members, to find those that make it fail."""


class Templates:
    """The templates of `queries`. Whoever moves or changes one holds its lock (`Queries.only`)."""

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        self.services = queries.services
        self.news = MemberNews(self.services)
        self.left: Callable[[str, str], None] = lambda _query, _template: None
        """Told of every query that has left a template and is to be scheduled by itself."""
        self._rows: dict[str, tuple[object, dict[int, ContinuousQuery], pa.Table]] = {}
        self._part: dict[int, pa.Table] = {}
        self.services.reader.constants = self._constants

    # ------------------------------------------------------------ looking up

    def find(self, name: str) -> Template:
        """The template; CatalogError where it is gone."""
        found = self.services.catalog.state.templates.get(name)
        if found is None:
            raise CatalogError(f"there is no {name}")
        return found

    def compiled(self, template: Template) -> Compiled:
        """The compiled query over the table of constants, from memory or made again."""
        return self.queries.kept(template.query, lambda: compiled_template(self.services, template))

    def members(self, template: Template) -> dict[int, ContinuousQuery]:
        """The members by their ids."""
        return self._known(template)[0]

    def _known(self, template: Template) -> tuple[dict[int, ContinuousQuery], pa.Table]:
        state = self.services.catalog.state
        found = self._rows.get(template.name)
        if found is None or found[0] is not state.queries:
            members = catalogued.members(state, template)
            found = (state.queries, {query.id: query for query in members}, constants_of(template, members))
            self._rows[template.name] = found
        return found[1], found[2]

    def _constants(self, table: VersionedTable) -> pa.Table:
        """The rows of a table of constants, for the reader."""
        number = table.id
        if number in self._part:
            return self._part[number]
        for template in self.services.catalog.state.templates.values():
            if template.constants.storage.id == number:
                return self._known(template)[1]
        raise CatalogError(f"the template of versioned table {number} is gone")

    @contextmanager
    def only(self, template: Template, members: Sequence[ContinuousQuery]) -> Iterator[None]:
        """Inside, the template has no other members. Whoever asks for this holds the template."""
        number = template.constants.storage.id
        before = self._part.get(number)
        self._part[number] = constants_of(template, members)
        try:
            yield
        finally:
            if before is None:
                del self._part[number]
            else:
                self._part[number] = before

    # ------------------------------------------------------------ refresh

    def refresh(self, name: str, upto: int | None = None) -> Refresh:
        """Processes what is committed for all members, and serves their destinations. Raises RefreshError."""
        catalog = self.services.catalog
        while True:
            with self.queries.only([name]):
                template = self.find(name)
                position = catalog.status(name).position
                done = self._run(template, upto)
                if isinstance(done, Refresh):
                    self.deliver(self.find(name), done)
                    return done
            self._part_with(name, done)
            if name not in catalog.state.templates:
                return Refresh(name, position, position, plan=template.query.verdict)

    def _part_with(self, name: str, guilty: Sequence[tuple[ContinuousQuery, str]]) -> None:
        """Members with which a refresh fails leave; the template is not held, since definitions come first."""
        with self.queries.ddl:
            for member, reason in guilty:
                known = self.services.catalog.state.queries.get(member.name.lower())
                if known is not None and known.id == member.id and known.template == name:
                    _log.warning("continuous query %s leaves %s: %s", member.name, name, reason)
                    self.leave(known, "FAILED", reason)

    def refresh_member(self, query: ContinuousQuery, upto: int | None = None) -> tuple[Refresh, Refresh]:
        """The refresh of the query's template, and of it what concerns the query."""
        assert query.template is not None
        whole = self.refresh(query.template, upto)
        own = self.services.catalog.state.queries.get(query.name.lower())
        if own is None or own.template is None:
            status = self.services.catalog.status(query.name)
            raise RefreshError(
                status.error or f"{query.name} has left its template",
                hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME tries again",
            )
        counts = self.news.counts(query, whole.from_version, whole.to_version)
        inserted, deleted, updated = counts
        return whole, replace(whole, query=query.name, inserted=inserted, deleted=deleted, updated=updated)

    def _run(self, template: Template, upto: int | None) -> Refresh | list[tuple[ContinuousQuery, str]]:
        """The refresh, or the members that make it fail and why."""
        catalog, query = self.services.catalog, template.query
        status = catalog.status(query.name)
        if status.state != "ACTIVE":
            raise RefreshError(
                f"the queries of {query.name} have failed and wait", detail=status.error,
                hint="ALTER CONTINUOUS QUERY one of them RESUME tries again",
            )  # fmt: skip
        self.services.functions.require(query.name, query.functions, catalog.state)
        end = frontier(catalog, query.sources, upto)
        with meaning(self.services.spark(), dict(query.session)):
            try:
                return self._refreshed(template, end)
            except RefreshError as error:
                guilty = self._guilty(template, end)
                if not guilty:
                    text = error.message if not error.detail else f"{error.message} ({error.detail})"
                    self.queries.set_status(query, replace(status, state="FAILED", error=text))
                    raise
                return guilty

    def _refreshed(self, template: Template, end: int) -> Refresh:
        compiled = self.compiled(template)
        self._initialise(template, compiled, end)
        return self.queries.refresher.refresh(template.query, compiled, end)

    def _pending(self, template: Template) -> list[ContinuousQuery]:
        return [query for number, query in self.members(template).items() if number > template.ready]

    def _initialise(self, template: Template, compiled: Compiled, end: int) -> None:
        """Gives new members their rows in the states, at the template's position, before it moves over changes."""
        pending = self._pending(template)
        interval = self.queries.refresher.interval(template.query, compiled, end)
        if not pending or not interval.kinds:
            return
        catalog = self.services.catalog
        try:
            start = self._start(template, template.query, compiled, pending, interval.a)
        except CQError as error:
            raise RefreshError(error.message, detail=error.detail, hint=error.hint) from error
        with catalog.lock, catalog.write(start.attempt) as unit:
            now = replace(self.find(template.name), ready=pending[-1].id)
            unit.set_state(catalogued.with_template(catalog.state, now))
            start.write(unit)
        for _, table in template.query.states:
            self.services.reader.forget(table)

    def _start(
        self,
        template: Template,
        query: ContinuousQuery,
        compiled: Compiled,
        pending: Sequence[ContinuousQuery],
        version: int,
    ) -> Start:
        """The rows of new members in the states; with the first ones also states that have no member."""
        name = template.constants.name
        chosen = [
            each
            for each in compiled.stored
            if not template.ready or any(scan.table == name for scan in scans(each.node))
        ]
        with self.only(template, pending):
            return prepare_start(
                self.services,
                query,
                replace(compiled, stored=tuple(chosen)),
                version,
                snapshot=False,
                more=True,
            )

    # ------------------------------------------------------------ errors

    def _guilty(self, template: Template, end: int) -> list[tuple[ContinuousQuery, str]]:
        """The members with which the refresh fails, by halves; none where it fails without any, or with too many."""
        template, compiled = self.find(template.name), self.compiled(template)
        if self._failure(template, compiled, [], end):
            return []
        found: list[tuple[ContinuousQuery, str]] = []
        parts = [list(self.members(template).values())]
        for _ in range(TRIALS):
            if not parts:
                return found
            part = parts.pop()
            reason = self._failure(template, compiled, part, end)
            if reason and len(part) == 1:
                found.append((part[0], reason))
            elif reason:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
        return []

    def _failure(
        self, template: Template, compiled: Compiled, part: Sequence[ContinuousQuery], end: int
    ) -> str:
        """Why a refresh of these members alone fails; empty where it does not."""
        name = part[0].name if len(part) == 1 else template.name
        query = replace(template.query, name=name)
        refresher = self.queries.refresher
        pending = [each for each in part if each.id > template.ready]
        try:
            if pending:
                position = refresher.interval(template.query, compiled).a
                start = self._start(template, query, compiled, pending, position)
                if start.attempt is not None:
                    start.attempt.abandon()
            with self.only(template, part):
                refresher.tried(query, compiled, refresher.interval(template.query, compiled, end))
        except CQError as error:
            return error.message if not error.detail else f"{error.message} ({error.detail})"
        return ""

    def resume(self, template: Template) -> None:
        """Makes a template that has failed try again."""
        status = self.services.catalog.status(template.name)
        self.queries.set_status(template.query, replace(status, state="ACTIVE", error=""))

    # ------------------------------------------------------------ delivery

    def deliver(self, template: Template, refresh: Refresh | None = None) -> None:
        """Serves the destinations of members that have deltas: of this refresh, or any."""
        with self.queries.only([template.name]):
            self._deliver(template, refresh)

    def _deliver(self, template: Template, refresh: Refresh | None) -> None:
        members = self.members(template)
        delivering = [query for query in members.values() if query.destinations]
        if not delivering:
            return
        touched = (
            self.news.newest_of(template)
            if refresh is None
            else self.news.refreshed(template, refresh.from_version, refresh.to_version)
        )
        for number in sorted(touched):
            if number in members and members[number].destinations:
                self.queries.delivery.deliver(members[number])
        self.news.settle(template, delivering)

    def settle(self, *, whole: bool = False) -> None:
        """Moves all cursors that wait for nothing, so that the next process need not look for what they wait for.

        With `whole` the logs that nobody has looked at are read for this, too: a cursor keeps what comes after it.
        """
        for name in list(self.services.catalog.state.templates):
            with self.queries.only([name]):
                template = self.services.catalog.state.templates.get(name)
                if template is None:
                    continue
                delivering = [query for query in self.members(template).values() if query.destinations]
                if delivering and (whole or self.news.is_known(template)):
                    self.news.settle(template, delivering, now=True)

    # ------------------------------------------------------------ leaving

    def individual(self, query: ContinuousQuery) -> ContinuousQuery:
        """The query by itself: where it is a member of a template, it leaves that."""
        return self.leave(query, "ACTIVE", "") if query.template is not None else query

    def leave(self, query: ContinuousQuery, state: str, error: str) -> ContinuousQuery:
        """Makes a member a query of its own at the template's position, in this state, with its part of the log.

        What it starts from is computed while others commit; the template stands still. Holds `Queries.ddl`. Raises CQError where Spark cannot evaluate the query.
        """
        assert query.template is not None
        catalog, services = self.services.catalog, self.services
        with self.queries.only([query.template]), meaning(services.spark(), dict(query.session)):
            template = self.find(query.template)
            shape = shape_of(services, catalog.state, query.query, dict(query.source_columns))
            compiled = compile_definition(services, shape, query.key if query.declared else None)
            status = catalog.status(query.name)
            found, own, compiled, start = own_start(services, template, query, compiled, status.position)
            after = catalogued.without_empty(replace_query(found, own))
            floor = catalog.floor(query.result.id)
            with catalog.lock, catalog.write(start.attempt) as unit:
                unit.set_state(after)
                start.write(unit)
                if floor:
                    unit.set_floor(own.result, floor)
                unit.set_status(own.name, QueryStatus(status.position, state, error, status.last_refresh))
        self.queries.remember(own, compiled)
        self.left(own.name, query.template)
        return own


def constants_of(template: Template, members: Sequence[ContinuousQuery]) -> pa.Table:
    """The rows of the template's table of constants for these members."""
    schema = arrow_schema(template.constants.storage.columns)
    columns = [pa.array([query.id for query in members], pa.int64())]
    for place, field in enumerate(list(schema)[1:]):
        kind = template.constants.storage.columns[place + 1].type
        values = [_value(query.constants[place], kind) for query in members]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _value(text: str, kind: str) -> object:
    """A literal's value, of which `text` is what the query says."""
    if kind in ("int", "bigint"):
        return int(text)
    if kind.startswith("decimal"):
        return Decimal(text)
    return float(text) if kind == "double" else text
