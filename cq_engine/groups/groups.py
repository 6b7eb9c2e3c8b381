"""Query groups at work: queries that differ in constants are attached to one, refreshed as one, and detached again.

Attached is a query whose text, but for literals that are compared, is that of an earlier one, with the same mode,
schedule, key and session settings (`signature`). It costs one catalog transaction. What makes a member differ from the
others (it is paused or redefined, another query reads it, its constants make the refresh fail) detaches it: it takes its
rows of the delta log along and goes on from the group's position as a query of its own (`detach`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from cq_engine.algebra.rewrite.pruning import scans
from cq_engine.catalog.groups import with_group
from cq_engine.catalog.model import ContinuousQuery, QueryGroup
from cq_engine.core.errors import CatalogError, CQError, RefreshError, said
from cq_engine.definition.registry import Registry
from cq_engine.definition.start import Start, prepare_start
from cq_engine.delivery.delivery import Delivery
from cq_engine.groups.constants import Constants
from cq_engine.groups.detach import detach
from cq_engine.groups.progress import Progress
from cq_engine.groups.signature import compile_group
from cq_engine.planner.compiled import Compiled
from cq_engine.refresh.frontier import frontier
from cq_engine.refresh.refresh import Refresh, Refresher
from cq_engine.refresh.transient import is_transient
from cq_engine.spark.settings import meaning

__all__ = ["Groups"]

_log = logging.getLogger(__name__)


class Groups:
    """The query groups of an engine. Whoever moves or changes one holds it (`Registry.hold`).

    Args:
        registry: knows the queries.
        refresher: refreshes one query.
        delivery: serves the members' destinations.
        constants: the members and their constants.
        progress: which members have deltas.
        refreshed: told of every refresh of a group.
        detached: told of every query that goes on by itself, by its name and the group's.
    """

    def __init__(
        self,
        registry: Registry,
        refresher: Refresher,
        delivery: Delivery,
        constants: Constants,
        progress: Progress,
        *,
        refreshed: Callable[[Refresh], None],
        detached: Callable[[str, str], None],
    ) -> None:
        self.services = registry.services
        self.registry = registry
        self.refresher = refresher
        self.delivery = delivery
        self.constants = constants
        self.progress = progress
        self._refreshed = refreshed
        self._detached = detached

    # ------------------------------------------------------------ looking up

    def find(self, name: str) -> QueryGroup:
        """The query group; CatalogError where it is gone."""
        found = self.services.catalog.state.groups.get(name)
        if found is None:
            raise CatalogError(f"there is no {name}")
        return found

    def compiled(self, group: QueryGroup) -> Compiled:
        """The compiled query over the table of constants, from memory or made again."""
        return self.registry.recall(group.query, lambda: compile_group(self.services, group))

    def members(self, group: QueryGroup) -> dict[int, ContinuousQuery]:
        """The members by their ids."""
        return self.constants.members(group)

    # ------------------------------------------------------------ refresh

    def refresh(self, name: str, upto: int | None = None) -> Refresh:
        """Processes what is committed for all members, and serves their destinations. Raises RefreshError."""
        done = self._refresh(name, upto)
        self._refreshed(done)
        return done

    def _refresh(self, name: str, upto: int | None) -> Refresh:
        catalog = self.services.catalog
        begin = catalog.status(name).position
        while True:
            with self.registry.hold([name]):
                group = self.find(name)
                position = catalog.status(name).position
                try:
                    done = self._run(group, upto)
                except Exception:
                    self._deliver_since(name, position)
                    raise
                if isinstance(done, Refresh):
                    self.deliver(self.find(name), done)
                    return replace(done, from_version=min(begin, done.from_version))
                self._deliver_since(name, position)
            self._detach_guilty(name, done)
            if name not in catalog.state.groups:
                return Refresh(name, position, position, plan=group.query.verdict)

    def _deliver_since(self, name: str, position: int) -> None:
        """Serves the destinations with the slices that were refreshed before a refresh failed."""
        now = self.services.catalog.status(name).position
        if now > position:
            self.deliver(self.find(name), Refresh(name, position, now))

    def _detach_guilty(self, name: str, guilty: Sequence[tuple[ContinuousQuery, str]]) -> None:
        """Members with which a refresh fails go; the query group is not held, since definitions come first."""
        with self.registry.ddl:
            for member, reason in guilty:
                known = self.services.catalog.state.queries.get(member.name.lower())
                if known is not None and known.id == member.id and known.group == name:
                    _log.warning("continuous query %s is detached from %s: %s", member.name, name, reason)
                    self._detach(known, "FAILED", reason)

    def refresh_member(self, query: ContinuousQuery, upto: int | None = None) -> Refresh:
        """The refresh of the query's group, and of it what concerns the query."""
        assert query.group is not None
        whole = self.refresh(query.group, upto)
        own = self.services.catalog.state.queries.get(query.name.lower())
        if own is None or own.group is None:
            status = self.services.catalog.status(query.name)
            raise RefreshError(
                status.error or f"{query.name} was detached from its query group",
                hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME tries again",
            )
        inserted, deleted, updated = self.progress.counts(query, whole.from_version, whole.to_version)
        return replace(whole, query=query.name, inserted=inserted, deleted=deleted, updated=updated)

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
                compiled = self.compiled(group)
                self._initialise(group, compiled, end)
                return self.refresher.refresh(query, compiled, end)
            except Exception as error:
                if is_transient(error):
                    raise
                guilty = self._guilty(group, end) if isinstance(error, RefreshError) else []
                if not guilty:
                    stands = catalog.status(query.name)  # after the slices that were refreshed
                    self.registry.set_status(query, replace(stands, state="FAILED", error=said(error)))
                    raise
                return guilty

    def _pending(self, group: QueryGroup) -> list[ContinuousQuery]:
        return [query for number, query in self.members(group).items() if number > group.ready]

    def _initialise(self, group: QueryGroup, compiled: Compiled, end: int) -> None:
        """Gives new members their rows in the states, at the query group's position, before it moves over changes."""
        pending = self._pending(group)
        interval = self.refresher.interval(group.query, compiled, end)
        if not pending or not interval.kinds:
            return
        catalog = self.services.catalog
        try:
            start = self._start(group, group.query, compiled, pending, interval.a)
        except CQError as error:
            raise RefreshError(error.message, detail=error.detail, hint=error.hint) from error
        with catalog.lock, catalog.write(start.attempt) as unit:
            now = replace(self.find(group.name), ready=pending[-1].id)
            unit.set_state(with_group(catalog.state, now))
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
        with self.constants.only(group, pending):
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
        refresher = self.refresher
        pending = [each for each in part if each.id > group.ready]
        try:
            if pending:
                position = refresher.interval(group.query, compiled).a
                start = self._start(group, query, compiled, pending, position)
                if start.attempt is not None:
                    start.attempt.abandon()
            with self.constants.only(group, part):
                refresher.dry_run(query, compiled, refresher.interval(group.query, compiled, end))
        except CQError as error:
            if is_transient(error):
                raise
            return said(error)
        return ""

    def resume(self, group: QueryGroup) -> None:
        """Makes a query group that has failed try again."""
        status = self.services.catalog.status(group.name)
        self.registry.set_status(group.query, replace(status, state="ACTIVE", error=""))

    # ------------------------------------------------------------ delivery

    def deliver(self, group: QueryGroup, refresh: Refresh | None = None) -> None:
        """Serves the destinations of members that have deltas: of this refresh, or any."""
        with self.registry.hold([group.name]):
            self._deliver(group, refresh)

    def _deliver(self, group: QueryGroup, refresh: Refresh | None) -> None:
        members = self.members(group)
        delivering = [query for query in members.values() if query.destinations]
        if not delivering:
            return
        touched = (
            self.progress.newest_of(group)
            if refresh is None
            else self.progress.note_refresh(group, refresh.from_version, refresh.to_version)
        )
        for number in sorted(touched):
            if number in members and members[number].destinations:
                self.delivery.deliver(members[number])
        self.progress.settle(group, delivering)

    def settle(self, *, whole: bool = False) -> None:
        """Moves all cursors that wait for nothing, so that the next process need not look for what they wait for.

        With `whole` the logs that nobody has looked at are read for this, too: a cursor keeps what comes after it.
        """
        for name in list(self.services.catalog.state.groups):
            with self.registry.hold([name]):
                group = self.services.catalog.state.groups.get(name)
                if group is None:
                    continue
                delivering = [query for query in self.members(group).values() if query.destinations]
                if delivering and (whole or self.progress.is_known(group)):
                    self.progress.settle(group, delivering, now=True)

    # ------------------------------------------------------------ detaching

    def detach(self, query: ContinuousQuery) -> ContinuousQuery:
        """The query by itself: where it is a member of a group, it is detached. Holds `Registry.ddl`."""
        return self._detach(query, "ACTIVE", "") if query.group is not None else query

    def _detach(self, query: ContinuousQuery, state: str, error: str) -> ContinuousQuery:
        assert query.group is not None
        own = detach(self.registry, query, state, error)
        self._detached(own.name, query.group)
        return own
