"""The life of continuous queries: created, refreshed, delivered, altered, dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from cq_engine.catalog import apply
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryStatus, Table
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.destinations import check, columns_for
from cq_engine.errors import AnalysisError, CatalogError, RefreshError
from cq_engine.grammar import (
    AlterContinuousQuery,
    ColumnSpec,
    CreateContinuousQuery,
    CreateTable,
    DestinationRef,
    DropContinuousQuery,
    StartFrom,
)
from cq_engine.planner.compiled import Compiled
from cq_engine.runtime.creation import prepare_start, scalar_states
from cq_engine.runtime.definition import compile_definition, define, shape_of
from cq_engine.runtime.delivery import Delivery
from cq_engine.runtime.refresh import Refresh, Refresher
from cq_engine.runtime.services import Services
from cq_engine.runtime.settings import meaning

__all__ = ["Queries"]


class Queries:
    """All continuous queries of an engine. Refreshes of one query never overlap; different queries may run at once."""

    def __init__(self, services: Services, delivery: Delivery) -> None:
        self.services = services
        self.delivery = delivery
        self.refresher = Refresher(services)
        self._compiled: dict[int, Compiled] = {}
        self._locks: dict[int, threading.RLock] = {}
        self._guard = threading.Lock()

    # ------------------------------------------------------------ looking up

    def find(self, name: str) -> ContinuousQuery:
        """The definition. Raises CatalogError."""
        return apply.find_query(self.services.catalog.state, name)

    def compiled(self, query: ContinuousQuery) -> Compiled:
        """The compiled definition, from memory or made again."""
        if query.id not in self._compiled:
            state = self.services.catalog.state
            shape = shape_of(self.services, state, query.query, dict(query.source_columns))
            declared = query.key if query.declared else None
            full = dict(query.options).get("refresh") == "full"
            self._compiled[query.id] = compile_definition(self.services, shape, declared, full=full)
        return self._compiled[query.id]

    @contextmanager
    def only(self, query: ContinuousQuery) -> Iterator[None]:
        """Holds the query: nobody else refreshes, alters or drops it meanwhile."""
        with self._guard:
            lock = self._locks.setdefault(query.id, threading.RLock())
        with lock:
            yield

    # ------------------------------------------------------------ CREATE

    def create(self, statement: CreateContinuousQuery) -> str:
        """CREATE CONTINUOUS QUERY; the message for a person."""
        catalog = self.services.catalog
        known = catalog.state.queries.get(statement.name.lower())
        if known is not None and statement.if_not_exists:
            return f"continuous query {known.name} exists"
        if (known is not None and not statement.or_replace) or statement.name.lower() in catalog.state.tables:
            raise CatalogError(
                f"{statement.name} exists already",
                hint="choose another name, or CREATE OR REPLACE CONTINUOUS QUERY",
            )
        with catalog.lock:
            before = catalog.state
            if known is not None:  # the old one goes in the transaction that brings the new one
                before = apply.drop_query(before, known.name)
            state, query, compiled = define(self.services, before, statement)
            _check_options(query)
            version = self._start_version(statement.start, compiled)
            query = replace(query, created_version=version, declared=statement.primary_key is not None)
            query, state, made = self._with_destinations(query, state)
            state = apply.add_query(state, query)
            start = prepare_start(
                self.services, query, compiled, version, statement.start.point == "SNAPSHOT"
            )
            with catalog.write(start.attempt) as unit:
                if version > catalog.newest_version:
                    unit.add_commit(version, self._now())
                unit.set_state(state)
                start.write(unit)
                unit.set_status(query.name, QueryStatus(version, "ACTIVE", "", self.services.now()))
                self.delivery.begin(
                    unit, query, version - 1 if statement.start.point == "SNAPSHOT" else version
                )
        self._compiled[query.id] = compiled
        notes = [f"continuous query {query.name} created: {query.verdict}", *query.reasons]
        notes += [f"destination table {name} created" for name in made]
        if query.verdict == "FULL":
            notes.append(
                "warning: every refresh runs the whole query, once for each commit that touches its tables"
            )
        if query.mode == "COMPRESSED":
            notes.append("compressed: what comes and goes between two refreshes is not seen")
        return "\n  ".join(notes)

    def _now(self) -> datetime:
        newest = self.services.catalog.newest_timestamp
        now = self.services.clock.now()
        return now if newest is None or now >= newest else newest

    def _start_version(self, start: StartFrom, compiled: Compiled) -> int:
        """The version the query starts from; 1 more than there is where its first state needs a commit to stand at."""
        newest = self.services.catalog.newest_version
        if start.point == "VERSION":
            assert start.version is not None
            if start.version > newest:
                raise AnalysisError(
                    f"START FROM VERSION {start.version}: there is no such commit yet",
                    hint=f"the newest commit version is {newest}",
                )
            for table in compiled.sources.values():
                if start.version < table.created_version:
                    raise AnalysisError(
                        f"START FROM VERSION {start.version}: table {table.name} did not exist",
                        hint=f"it was created at version {table.created_version}",
                    )
            return start.version
        needs_row = start.point == "SNAPSHOT" or scalar_states(compiled.states)
        return 1 if newest == 0 and needs_row else newest

    def _with_destinations(
        self, query: ContinuousQuery, state: CatalogState
    ) -> tuple[ContinuousQuery, CatalogState, list[str]]:
        """Destinations with their kinds settled; tables that do not exist are added to the state."""
        settled, made = [], []
        for ref in query.destinations:
            kind = self.delivery.kind_of(ref)
            settled.append(DestinationRef(ref.name, kind))
            if kind != "TABLE":
                continue
            table = state.tables.get(ref.name.lower())
            if table is None:
                columns = tuple(ColumnSpec(c.name, c.type) for c in columns_for(query))
                state = apply.create_table(state, CreateTable(ref.name, columns), query.created_version)
                created = apply.find_table(state, ref.name)
                state = replace(
                    state, tables={**state.tables, ref.name.lower(): replace(created, created_by=query.name)}
                )
                made.append(ref.name)
            else:
                check(query, table)
                _no_cycle(query, table)
        return replace(query, destinations=tuple(settled)), state, made

    # ------------------------------------------------------------ refresh and delivery

    def refresh(self, name: str) -> Refresh:
        """Processes everything committed and brings the table destinations up to date. Raises RefreshError."""
        query = self.find(name)
        with self.only(query):
            result = self._refreshed(query)
            self.deliver(query)
        return result

    def _refreshed(self, query: ContinuousQuery) -> Refresh:
        status = self.services.catalog.status(query.name)
        if status.state == "PAUSED":
            raise RefreshError(f"{query.name} is paused", hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME")
        if status.state == "FAILED":
            raise RefreshError(
                f"{query.name} has failed and waits", detail=status.error,
                hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME tries again",
            )  # fmt: skip
        try:
            with meaning(self.services.spark(), dict(query.session)):
                return self.refresher.refresh(query, self.compiled(query))
        except RefreshError as error:
            text = error.message if not error.detail else f"{error.message} ({error.detail})"
            failed = QueryStatus(status.position, "FAILED", text, status.last_refresh)
            with self.services.catalog.write() as unit:
                unit.set_status(query.name, failed)
            raise

    def deliver(self, query: ContinuousQuery) -> None:
        """Serves every destination from the delta log; a failing one delays only itself."""
        self.delivery.deliver(query)

    # ------------------------------------------------------------ ALTER and DROP

    def drop(self, statement: DropContinuousQuery) -> str:
        """DROP CONTINUOUS QUERY."""
        catalog = self.services.catalog
        if statement.if_exists and statement.name.lower() not in catalog.state.queries:
            return f"there is no continuous query {statement.name}"
        query = self.find(statement.name)
        with self.only(query), catalog.lock, catalog.write() as unit:
            unit.set_state(apply.drop_query(catalog.state, statement.name, statement.cascade))
        self._compiled.pop(query.id, None)
        return f"continuous query {query.name} dropped"

    def alter(self, statement: AlterContinuousQuery) -> str:
        """ALTER CONTINUOUS QUERY ... PAUSE | RESUME [FROM ...] | SET ..."""
        catalog = self.services.catalog
        query = self.find(statement.name)
        with self.only(query), catalog.lock:
            status = catalog.status(query.name)
            if statement.action == "PAUSE":
                self._set_status(query, replace(status, state="PAUSED", error=""))
                return f"{query.name} is paused at version {status.position}"
            if statement.action == "RESUME":
                if statement.start is None:
                    self._set_status(query, replace(status, state="ACTIVE", error=""))
                    return f"{query.name} goes on from version {status.position}"
                return self._restart(query, statement.start)
            changed = replace(
                query,
                when=statement.when or query.when,
                markers=statement.markers or query.markers,
                destinations=query.destinations if statement.destinations is None else statement.destinations,
                options=tuple({**dict(query.options), **dict(statement.options)}.items()),
            )
            _check_options(changed)
            changed, state, _ = self._with_destinations(changed, catalog.state)
            with catalog.write() as unit:
                unit.set_state(apply.replace_query(state, changed))
                self.delivery.change(unit, query, changed)
            return f"{query.name} altered"

    def _set_status(self, query: ContinuousQuery, status: QueryStatus) -> None:
        with self.services.catalog.write() as unit:
            unit.set_status(query.name, status)

    def _restart(self, query: ContinuousQuery, start: StartFrom) -> str:
        """RESUME FROM: the states are built again at a later version; the interval between is skipped."""
        catalog = self.services.catalog
        compiled = self.compiled(query)
        before = catalog.status(query.name).position
        version = self._start_version(start, compiled)
        if version < before:
            raise AnalysisError(
                f"{query.name} has processed version {before}; it cannot go back to {version}",
                hint="create another query with START FROM VERSION",
            )
        state, query_again = self._fresh_states(catalog.state, query)
        snapshot = start.point == "SNAPSHOT"
        if (
            snapshot and version == before
        ):  # destinations have had this version, and would not look at it again
            version = catalog.newest_version + 1
        begun = prepare_start(self.services, query_again, compiled, version, snapshot)
        with catalog.write(begun.attempt) as unit:
            if version > catalog.newest_version:
                unit.add_commit(version, self._now())
            unit.set_state(apply.replace_query(state, query_again))
            begun.write(unit)
            unit.set_status(query.name, QueryStatus(version, "ACTIVE", "", self.services.clock.now()))
            self._record_skip(unit, query, before, version)
        skipped = f"; versions {before + 1} to {version} are skipped" if version > before else ""
        return f"{query.name} goes on from version {version}{skipped}"

    def _fresh_states(
        self, state: CatalogState, query: ContinuousQuery
    ) -> tuple[CatalogState, ContinuousQuery]:
        states = []
        for label, table in query.states:
            state, number = apply.allocate_id(state)
            states.append((label, replace(table, id=number)))
        return state, replace(query, states=tuple(states))

    def _record_skip(self, unit: UnitOfWork, query: ContinuousQuery, a: int, b: int) -> None:
        from cq_engine.catalog.model import RefreshRecord

        unit.add_refresh(RefreshRecord(query.name, a, b, 0, 0, 0, "SKIPPED", 0.0, self.services.clock.now()))


def _check_options(query: ContinuousQuery) -> None:
    options = dict(query.options)
    wanted = options.get("refresh", "auto").lower()
    if wanted not in ("auto", "incremental", "full"):
        raise AnalysisError(f"option refresh = {wanted} is unknown", hint="it is auto, incremental or full")
    if wanted == "incremental" and query.verdict == "FULL":
        raise AnalysisError(
            f"{query.name} cannot be maintained incrementally", detail="; ".join(query.reasons),
            hint="leave out refresh = 'incremental' to have it recomputed in full",
        )  # fmt: skip


def _no_cycle(query: ContinuousQuery, table: Table) -> None:
    if table.name.lower() in query.sources:
        raise AnalysisError(
            f"{query.name} would deliver into {table.name}, which it reads",
            hint="choose another destination; every delivery would cause another",
        )
