"""Query groups at work: queries that differ in constants join one, are refreshed as one, and leave it again.

What joins: a query whose text, but for literals that are compared, is that of an earlier one, with the same mode,
schedule, key and session settings (`alike`). It costs one catalog transaction. What makes a member differ from the
others (it is paused or redefined, another query reads it, its constants make the refresh fail) makes it leave: it takes
its rows of the delta log along and goes on from the query group's position as a query of its own (`leave`).
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
from cq_engine.catalog.model import ContinuousQuery, QueryGroup, QueryStatus, VersionedTable
from cq_engine.core.errors import CatalogError, CQError, RefreshError
from cq_engine.core.types import arrow_schema
from cq_engine.definition.analysis import compile_definition, shape_of
from cq_engine.definition.start import Start, prepare_start
from cq_engine.groups.detach import own_start
from cq_engine.groups.progress import MemberNews
from cq_engine.groups.signature import compile_group
from cq_engine.planner.compiled import Compiled
from cq_engine.refresh.frontier import frontier
from cq_engine.refresh.refresh import Refresh
from cq_engine.spark.settings import meaning

if TYPE_CHECKING:
    from cq_engine.lifecycle.registry import Queries

__all__ = ["Groups"]

_log = logging.getLogger(__name__)


class Groups:
    """The groups of `queries`. Whoever moves or changes one holds its lock (`Queries.only`)."""

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        self.services = queries.services
        self.news = MemberNews(self.services)
        self.left: Callable[[str, str], None] = lambda _query, _template: None
        """Told of every query that has left a query group and is to be scheduled by itself."""
        self._rows: dict[str, tuple[object, dict[int, ContinuousQuery], pa.Table]] = {}
        self._part: dict[int, pa.Table] = {}
        self.services.reader.constants = self._constants

    # ------------------------------------------------------------ looking up

    def find(self, name: str) -> QueryGroup:
        """The query group; CatalogError where it is gone."""
        found = self.services.catalog.state.groups.get(name)
        if found is None:
            raise CatalogError(f"there is no {name}")
        return found

    def compiled(self, group: QueryGroup) -> Compiled:
        """The compiled query over the table of constants, from memory or made again."""
        return self.queries.kept(group.query, lambda: compile_group(self.services, group))

    def members(self, group: QueryGroup) -> dict[int, ContinuousQuery]:
        """The members by their ids."""
        return self._known(group)[0]

    def _known(self, group: QueryGroup) -> tuple[dict[int, ContinuousQuery], pa.Table]:
        state = self.services.catalog.state
        found = self._rows.get(group.name)
        if found is None or found[0] is not state.queries:
            members = catalogued.members(state, group)
            found = (state.queries, {query.id: query for query in members}, constants_of(group, members))
            self._rows[group.name] = found
        return found[1], found[2]

    def _constants(self, table: VersionedTable) -> pa.Table:
        """The rows of a table of constants, for the reader."""
        number = table.id
        if number in self._part:
            return self._part[number]
        for group in self.services.catalog.state.groups.values():
            if group.constants.storage.id == number:
                return self._known(group)[1]
        raise CatalogError(f"the query group of versioned table {number} is gone")

    @contextmanager
    def only(self, group: QueryGroup, members: Sequence[ContinuousQuery]) -> Iterator[None]:
        """Inside, the query group has no other members. Whoever asks for this holds the group."""
        number = group.constants.storage.id
        before = self._part.get(number)
        self._part[number] = constants_of(group, members)
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
                group = self.find(name)
                position = catalog.status(name).position
                done = self._run(group, upto)
                if isinstance(done, Refresh):
                    self.deliver(self.find(name), done)
                    return done
            self._part_with(name, done)
            if name not in catalog.state.groups:
                return Refresh(name, position, position, plan=group.query.verdict)

    def _part_with(self, name: str, guilty: Sequence[tuple[ContinuousQuery, str]]) -> None:
        """Members with which a refresh fails leave; the query group is not held, since definitions come first."""
        with self.queries.ddl:
            for member, reason in guilty:
                known = self.services.catalog.state.queries.get(member.name.lower())
                if known is not None and known.id == member.id and known.group == name:
                    _log.warning("continuous query %s leaves %s: %s", member.name, name, reason)
                    self.leave(known, "FAILED", reason)

    def refresh_member(self, query: ContinuousQuery, upto: int | None = None) -> tuple[Refresh, Refresh]:
        """The refresh of the query's group, and of it what concerns the query."""
        assert query.group is not None
        whole = self.refresh(query.group, upto)
        own = self.services.catalog.state.queries.get(query.name.lower())
        if own is None or own.group is None:
            status = self.services.catalog.status(query.name)
            raise RefreshError(
                status.error or f"{query.name} has left its query group",
                hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME tries again",
            )
        counts = self.news.counts(query, whole.from_version, whole.to_version)
        inserted, deleted, updated = counts
        return whole, replace(whole, query=query.name, inserted=inserted, deleted=deleted, updated=updated)

    def _run(self, group: QueryGroup, upto: int | None) -> Refresh | list[tuple[ContinuousQuery, str]]:
        """The refresh, or the members that make it fail and why."""
        catalog, query = self.services.catalog, group.query
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
                return self._refreshed(group, end)
            except RefreshError as error:
                guilty = self._guilty(group, end)
                if not guilty:
                    text = error.message if not error.detail else f"{error.message} ({error.detail})"
                    self.queries.set_status(query, replace(status, state="FAILED", error=text))
                    raise
                return guilty

    def _refreshed(self, group: QueryGroup, end: int) -> Refresh:
        compiled = self.compiled(group)
        self._initialise(group, compiled, end)
        return self.queries.refresher.refresh(group.query, compiled, end)

    def _pending(self, group: QueryGroup) -> list[ContinuousQuery]:
        return [query for number, query in self.members(group).items() if number > group.ready]

    def _initialise(self, group: QueryGroup, compiled: Compiled, end: int) -> None:
        """Gives new members their rows in the states, at the query group's position, before it moves over changes."""
        pending = self._pending(group)
        interval = self.queries.refresher.interval(group.query, compiled, end)
        if not pending or not interval.kinds:
            return
        catalog = self.services.catalog
        try:
            start = self._start(group, group.query, compiled, pending, interval.a)
        except CQError as error:
            raise RefreshError(error.message, detail=error.detail, hint=error.hint) from error
        with catalog.lock, catalog.write(start.attempt) as unit:
            now = replace(self.find(group.name), ready=pending[-1].id)
            unit.set_state(catalogued.with_group(catalog.state, now))
            start.write(unit)
        for _, table in group.query.states:
            self.services.reader.forget(table)

    def _start(
        self,
        group: QueryGroup,
        query: ContinuousQuery,
        compiled: Compiled,
        pending: Sequence[ContinuousQuery],
        version: int,
    ) -> Start:
        """The rows of new members in the states; with the first ones also states that have no member."""
        name = group.constants.name
        chosen = [
            each
            for each in compiled.stored
            if not group.ready or any(scan.table == name for scan in scans(each.node))
        ]
        with self.only(group, pending):
            return prepare_start(
                self.services,
                query,
                replace(compiled, stored=tuple(chosen)),
                version,
                snapshot=False,
                more=True,
            )

    # ------------------------------------------------------------ errors

    def _guilty(self, group: QueryGroup, end: int) -> list[tuple[ContinuousQuery, str]]:
        """The members with which the refresh fails, by halves; none where it fails without any, or with too many."""
        group, compiled = self.find(group.name), self.compiled(group)
        if self._failure(group, compiled, [], end):
            return []
        found: list[tuple[ContinuousQuery, str]] = []
        parts = [list(self.members(group).values())]
        for _ in range(self.services.limits.guilty_trials):
            if not parts:
                return found
            part = parts.pop()
            reason = self._failure(group, compiled, part, end)
            if reason and len(part) == 1:
                found.append((part[0], reason))
            elif reason:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
        return []

    def _failure(
        self, group: QueryGroup, compiled: Compiled, part: Sequence[ContinuousQuery], end: int
    ) -> str:
        """Why a refresh of these members alone fails; empty where it does not."""
        name = part[0].name if len(part) == 1 else group.name
        query = replace(group.query, name=name)
        refresher = self.queries.refresher
        pending = [each for each in part if each.id > group.ready]
        try:
            if pending:
                position = refresher.interval(group.query, compiled).a
                start = self._start(group, query, compiled, pending, position)
                if start.attempt is not None:
                    start.attempt.abandon()
            with self.only(group, part):
                refresher.dry_run(query, compiled, refresher.interval(group.query, compiled, end))
        except CQError as error:
            return error.message if not error.detail else f"{error.message} ({error.detail})"
        return ""

    def resume(self, group: QueryGroup) -> None:
        """Makes a query group that has failed try again."""
        status = self.services.catalog.status(group.name)
        self.queries.set_status(group.query, replace(status, state="ACTIVE", error=""))

    # ------------------------------------------------------------ delivery

    def deliver(self, group: QueryGroup, refresh: Refresh | None = None) -> None:
        """Serves the destinations of members that have deltas: of this refresh, or any."""
        with self.queries.only([group.name]):
            self._deliver(group, refresh)

    def _deliver(self, group: QueryGroup, refresh: Refresh | None) -> None:
        members = self.members(group)
        delivering = [query for query in members.values() if query.destinations]
        if not delivering:
            return
        touched = (
            self.news.newest_of(group)
            if refresh is None
            else self.news.refreshed(group, refresh.from_version, refresh.to_version)
        )
        for number in sorted(touched):
            if number in members and members[number].destinations:
                self.queries.delivery.deliver(members[number])
        self.news.settle(group, delivering)

    def settle(self, *, whole: bool = False) -> None:
        """Moves all cursors that wait for nothing, so that the next process need not look for what they wait for.

        With `whole` the logs that nobody has looked at are read for this, too: a cursor keeps what comes after it.
        """
        for name in list(self.services.catalog.state.groups):
            with self.queries.only([name]):
                group = self.services.catalog.state.groups.get(name)
                if group is None:
                    continue
                delivering = [query for query in self.members(group).values() if query.destinations]
                if delivering and (whole or self.news.is_known(group)):
                    self.news.settle(group, delivering, now=True)

    # ------------------------------------------------------------ leaving

    def individual(self, query: ContinuousQuery) -> ContinuousQuery:
        """The query by itself: where it is a member of a query group, it leaves that."""
        return self.leave(query, "ACTIVE", "") if query.group is not None else query

    def leave(self, query: ContinuousQuery, state: str, error: str) -> ContinuousQuery:
        """Makes a member a query of its own at the query group's position, in this state, with its part of the log.

        What it starts from is computed while others commit; the query group stands still. Holds `Queries.ddl`. Raises CQError where Spark cannot evaluate the query.
        """
        assert query.group is not None
        catalog, services = self.services.catalog, self.services
        with self.queries.only([query.group]), meaning(services.spark(), dict(query.session)):
            group = self.find(query.group)
            shape = shape_of(services, catalog.state, query.query, dict(query.source_columns))
            compiled = compile_definition(services, shape, query.key if query.declared else None)
            status = catalog.status(query.name)
            found, own, compiled, start = own_start(services, group, query, compiled, status.position)
            after = catalogued.without_empty(replace_query(found, own))
            floor = catalog.floor(query.result.id)
            with catalog.lock, catalog.write(start.attempt) as unit:
                unit.set_state(after)
                start.write(unit)
                if floor:
                    unit.set_floor(own.result, floor)
                unit.set_status(own.name, QueryStatus(status.position, state, error, status.last_refresh))
        self.queries.remember(own, compiled)
        self.left(own.name, query.group)
        return own


def constants_of(group: QueryGroup, members: Sequence[ContinuousQuery]) -> pa.Table:
    """The rows of the query group's table of constants for these members."""
    schema = arrow_schema(group.constants.storage.columns)
    columns = [pa.array([query.id for query in members], pa.int64())]
    for place, field in enumerate(list(schema)[1:]):
        kind = group.constants.storage.columns[place + 1].type
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
