"""The life of continuous queries: looked up, refreshed in the order of their dependencies, delivered, altered, dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from cq_engine.catalog import apply
from cq_engine.catalog.graph import ancestors
from cq_engine.catalog.groups import owner, query_options, without_empty
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryStatus
from cq_engine.context.services import Services
from cq_engine.core.errors import RefreshError
from cq_engine.definition.analysis import compile_definition, shape_of
from cq_engine.definition.rules import check_options, with_destinations
from cq_engine.delivery.delivery import Delivery
from cq_engine.grammar import AlterContinuousQuery, CreateContinuousQuery, DropContinuousQuery, DropTable
from cq_engine.groups.groups import Groups
from cq_engine.lifecycle.definitions import Definitions
from cq_engine.planner.compiled import Compiled
from cq_engine.refresh.frontier import frontier
from cq_engine.refresh.refresh import Refresh, Refresher
from cq_engine.spark.settings import meaning

__all__ = ["Queries"]


class Queries:
    """All continuous queries of an engine. Refreshes of one query never overlap; different queries may run at once.

    `refreshed` is told of every refresh. Locks are taken in this order: definitions, queries by their ids, the catalog.
    """

    def __init__(
        self, services: Services, delivery: Delivery, refreshed: Callable[[Refresh], None] = lambda _: None
    ) -> None:
        self.services = services
        self.delivery = delivery
        self.refresher = Refresher(services)
        self.definitions = Definitions(self)
        self.ddl = threading.RLock()
        """Held by whoever changes definitions."""
        self.groups = Groups(self)
        delivery.newest = self.groups.news.newest
        self._refreshed = refreshed
        self._compiled: dict[int, Compiled] = {}
        self._locks: dict[int, threading.RLock] = {}
        self._guard = threading.Lock()

    # ------------------------------------------------------------ looking up

    def find(self, name: str) -> ContinuousQuery:
        """The definition. Raises CatalogError."""
        return apply.find_query(self.services.catalog.state, name)

    def compiled(self, query: ContinuousQuery) -> Compiled:
        """The compiled definition, from memory or made again."""

        def compiled() -> Compiled:
            state = self.services.catalog.state
            shape = shape_of(self.services, state, query.query, dict(query.source_columns))
            declared = query.key if query.declared else None
            full = dict(query.options).get("refresh") == "full"
            return compile_definition(self.services, shape, declared, full=full)

        return self.kept(query, compiled)

    def kept(self, query: ContinuousQuery, compiled: Callable[[], Compiled]) -> Compiled:
        """What is remembered of a query, or else what `compiled` gives."""
        if query.id not in self._compiled:
            self._compiled[query.id] = compiled()
        return self._compiled[query.id]

    def remember(self, query: ContinuousQuery, compiled: Compiled) -> None:
        """What `compiled` gives from now on."""
        self._compiled[query.id] = compiled

    @contextmanager
    def only(self, names: Iterable[str]) -> Iterator[None]:
        """Holds queries: nobody else refreshes, alters or drops them meanwhile. Names of no query are left out.

        Of a member of a query group, the query group is held."""
        state = self.services.catalog.state
        owners = {owner(state, name) for name in names}
        found = {state.queries[name].id for name in owners if name in state.queries}
        found |= {state.groups[name].query.id for name in owners if name in state.groups}
        with self._guard:
            locks = [self._locks.setdefault(number, threading.RLock()) for number in sorted(found)]
        with ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            yield

    # ------------------------------------------------------------ refresh and delivery

    def refresh(self, name: str, upto: int | None = None) -> Refresh:
        """Processes what is committed, as far as the queries that it reads have got, and serves the destinations.

        Raises CatalogError for an unknown query, RefreshError.
        """
        state = self.services.catalog.state
        if owner(state, name) in state.groups:
            return self._refresh_group(name, upto)
        with self.only([name]):
            query = self.find(name)
            result = self._run(query, upto)
            self.deliver(query)
        self._refreshed(result)
        return result

    def _refresh_group(self, name: str, upto: int | None) -> Refresh:
        """The refresh of a query group; by a member's name what it does for that member."""
        query = self.services.catalog.state.queries.get(name.lower())
        if query is None:
            whole = own = self.groups.refresh(name, upto)
        else:
            whole, own = self.groups.refresh_member(query, upto)
        self._refreshed(whole)
        return own

    def bring_up_to_date(self, name: str) -> Refresh:
        """Processes everything committed, in the queries that it reads first; what the query itself did.

        A query that is paused or has failed stays where it is, and holds up those that read it. Raises CatalogError
        for an unknown query, RefreshError.
        """
        query = self.find(name)
        self._check_active(query)
        wanted = target = self.services.catalog.newest_version
        whole: Refresh | None = None
        for _ in range(self.services.limits.refresh_rounds):
            free = self.refresh_sources(query.sources, target)
            done = self.refresh(name, target)
            whole = done if whole is None else _joined(whole, done)
            if done.to_version >= wanted or not free:
                break
            target = self.services.catalog.newest_version
        assert whole is not None
        return whole

    def refresh_sources(self, sources: Iterable[str], upto: int | None = None) -> bool:
        """Refreshes the queries whose results reach `sources`, each after those that it reads.

        False where one of them is paused or has failed. Raises RefreshError.
        """
        catalog = self.services.catalog
        free = True
        for each in ancestors(catalog.state, sources):
            if catalog.status(each.name).state == "ACTIVE":
                self.refresh(each.name, upto)
            else:
                free = False
        return free

    def _check_active(self, query: ContinuousQuery) -> QueryStatus:
        status = self.services.catalog.status(query.name)
        if status.state == "PAUSED":
            raise RefreshError(f"{query.name} is paused", hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME")
        if status.state == "FAILED":
            raise RefreshError(
                f"{query.name} has failed and waits", detail=status.error,
                hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME tries again",
            )  # fmt: skip
        return status

    def _run(self, query: ContinuousQuery, upto: int | None) -> Refresh:
        status = self._check_active(query)
        self.services.functions.require(query.name, query.functions, self.services.catalog.state)
        end = frontier(self.services.catalog, query.sources, upto)
        try:
            with meaning(self.services.spark(), dict(query.session)):
                return self.refresher.refresh(query, self.compiled(query), end)
        except RefreshError as error:
            text = error.message if not error.detail else f"{error.message} ({error.detail})"
            failed = QueryStatus(status.position, "FAILED", text, status.last_refresh)
            self.set_status(query, failed)
            raise

    def deliver(self, query: ContinuousQuery) -> None:
        """Serves every destination from the delta log; a failing one delays only itself."""
        self.delivery.deliver(query)

    def set_status(self, query: ContinuousQuery, status: QueryStatus) -> None:
        """Where the query stands and what state it is in."""
        with self.services.catalog.write() as unit:
            unit.set_status(query.name, status)

    # ------------------------------------------------------------ CREATE, ALTER and DROP

    def create(self, statement: CreateContinuousQuery) -> str:
        """CREATE CONTINUOUS QUERY; the message for a person."""
        with self.ddl:
            return self.definitions.create(statement)

    def alter(self, statement: AlterContinuousQuery) -> str:
        """ALTER CONTINUOUS QUERY ... PAUSE | RESUME [FROM ...] | SET ... | AS query"""
        with self.ddl:
            query = self.find(statement.name)
            if query.group is not None:
                if statement.action == "RESUME" and statement.start is None:
                    return self._resumed(query)
                if statement.action != "SET" or statement.when is not None or statement.options:
                    query = self.groups.individual(query)
            if statement.query is not None:
                return self.definitions.redefine(query, statement.query)
            if statement.action == "RESUME" and statement.start is not None:
                return self.definitions.restart(query, statement.start)
            with self.only([query.name]), self.services.catalog.lock:
                return self._altered(self.find(statement.name), statement)

    def _resumed(self, query: ContinuousQuery) -> str:
        """RESUME of a member: where its query group has failed, all of its members go on."""
        assert query.group is not None
        with self.only([query.name]):
            self.groups.resume(self.groups.find(query.group))
        return f"{query.name} goes on from version {self.services.catalog.status(query.name).position}"

    def _altered(self, query: ContinuousQuery, statement: AlterContinuousQuery) -> str:
        catalog = self.services.catalog
        status = catalog.status(query.name)
        if statement.action == "PAUSE":
            self.set_status(query, replace(status, state="PAUSED", error=""))
            return f"{query.name} is paused at version {status.position}"
        if statement.action == "RESUME":
            self.set_status(query, replace(status, state="ACTIVE", error=""))
            return f"{query.name} goes on from version {status.position}"
        changed = replace(
            query,
            when=statement.when or query.when,
            markers=statement.markers or query.markers,
            destinations=query.destinations if statement.destinations is None else statement.destinations,
            options=query_options((*query.options, *statement.options)),
        )
        check_options(changed)
        changed, state, _ = with_destinations(self.delivery, changed, catalog.state)
        with catalog.write() as unit:
            unit.set_state(apply.replace_query(state, changed))
            self.delivery.change(unit, query, changed, status.position)
        return f"{query.name} altered"

    def drop(self, statement: DropContinuousQuery) -> str:
        """DROP CONTINUOUS QUERY [RESTRICT | CASCADE]. Raises CatalogError where others read it and CASCADE is not said."""
        if statement.if_exists and statement.name.lower() not in self.services.catalog.state.queries:
            return f"there is no continuous query {statement.name}"
        name = self.find(statement.name).name
        gone = self._remove(lambda state: apply.drop_query(state, name, statement.cascade))
        return f"continuous query {name} dropped{_with_it(g for g in gone if g != name)}"

    def drop_table(self, statement: DropTable) -> str:
        """DROP TABLE [RESTRICT | CASCADE]. Raises CatalogError where it is used and CASCADE is not said."""
        if statement.if_exists and statement.name.lower() not in self.services.catalog.state.tables:
            return f"there is no table {statement.name}"
        name = apply.find_table(self.services.catalog.state, statement.name).name
        gone = self._remove(lambda state: apply.drop_table(state, statement))
        return f"table {name} dropped{_with_it(gone)}"

    def tidy(self) -> None:
        """Takes results away that are kept for nobody: a process may have ended while it created a query."""
        catalog = self.services.catalog
        with self.ddl, catalog.lock:
            state = apply.without_unread(catalog.state)
            if state is not catalog.state:
                with catalog.write() as unit:
                    unit.set_state(state)

    def _remove(self, change: Callable[[CatalogState], CatalogState]) -> list[str]:
        """Puts a smaller state into effect; the names of the queries that are gone."""
        catalog = self.services.catalog
        with self.ddl:
            left = change(catalog.state).queries
            gone = [query for name, query in catalog.state.queries.items() if name not in left]
            with self.only(query.name for query in gone), catalog.lock, catalog.write() as unit:
                unit.set_state(without_empty(change(catalog.state)))
        for query in gone:
            self._compiled.pop(query.id, None)
        return [query.name for query in gone]


def _with_it(names: Iterable[str]) -> str:
    found = ", ".join(names)
    return f", and with it {found}" if found else ""


def _joined(first: Refresh, second: Refresh) -> Refresh:
    return replace(
        second,
        from_version=first.from_version,
        inserted=first.inserted + second.inserted,
        deleted=first.deleted + second.deleted,
        updated=first.updated + second.updated,
        seconds=first.seconds + second.seconds,
    )
