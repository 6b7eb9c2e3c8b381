"""Refreshes of queries: alone or in the order of their dependencies, each followed by its destinations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from cq_engine.catalog.graph import ancestors
from cq_engine.catalog.groups import owner
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.core.errors import RefreshError, said
from cq_engine.definition.registry import Registry
from cq_engine.delivery.delivery import Delivery
from cq_engine.groups.groups import Groups
from cq_engine.refresh.frontier import frontier
from cq_engine.refresh.refresh import Refresh, Refresher
from cq_engine.refresh.transient import is_transient
from cq_engine.spark.settings import meaning, meaning_at_use

__all__ = ["Refreshes"]


class Refreshes:
    """Refreshes queries by name, whether they are by themselves or members of a group; `refreshed` is told of each."""

    def __init__(
        self,
        registry: Registry,
        refresher: Refresher,
        groups: Groups,
        delivery: Delivery,
        refreshed: Callable[[Refresh], None],
    ) -> None:
        self.services = registry.services
        self.registry = registry
        self.refresher = refresher
        self.groups = groups
        self.delivery = delivery
        self._refreshed = refreshed

    def refresh(self, name: str, upto: int | None = None) -> Refresh:
        """Processes what is committed, as far as the queries that it reads have got, and serves the destinations.

        The name is that of a query or a query group; by a member's name it is what the group's refresh did for it.
        Raises CatalogError for an unknown query, RefreshError.
        """
        state = self.services.catalog.state
        if owner(state, name) in state.groups:
            member = state.queries.get(name.lower())
            if member is None:
                return self.groups.refresh(name, upto)
            return self.groups.refresh_member(member, upto)
        with self.registry.hold([name]):
            query, failed = self.registry.find(name), None
            begin = self.services.catalog.status(query.name).position
            result = Refresh(query.name, begin, begin, plan=query.verdict)
            try:
                for step in self._steps(query, upto):
                    result = result.then(step)
            except Exception as error:
                if result.to_version == begin:
                    raise
                failed = error  # after slices that were refreshed
            now = self.delivery.now(query)
            if now is not None:
                self.delivery.deliver(now)
        self._refreshed(result)
        if failed is not None:
            raise failed
        return result

    def prepare(self, name: str, many: bool = False) -> None:
        """Has the plans ready that the next refreshes of a query or query group will run, over few rows or `many`. A refresh
        waits for those for few rows, which it would run itself, and for no others."""
        state = self.services.catalog.state
        name = owner(state, name)
        with nullcontext() if many else self.registry.hold([name]):
            group = state.groups.get(name.lower())
            query = self.registry.find(name) if group is None else group.query
            if self.services.catalog.status(name).state == "ACTIVE":
                compiled = self.registry.compiled(query) if group is None else self.groups.compiled(group)
                with meaning(self.services.spark(), dict(query.session)):
                    self.refresher.prepare(query, compiled, many)

    def bring_up_to_date(self, name: str) -> Refresh:
        """Processes everything committed, in the queries that it reads first; what the query itself did.

        A query that is paused or has failed stays where it is, and holds up those that read it. Raises CatalogError
        for an unknown query, RefreshError.
        """
        query = self.registry.find(name)
        self._check_active(query)
        wanted = target = self.services.catalog.newest_version
        whole: Refresh | None = None
        for _ in range(self.services.limits.refresh_rounds):
            free = self.refresh_sources(query.sources, target)
            done = self.refresh(name, target)
            whole = done if whole is None else whole.then(done)
            if done.to_version >= wanted or not free or self._active(query) is None:
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

    def _check_active(self, query: ContinuousQuery) -> None:
        status = self.services.catalog.status(query.name)
        if status.state == "PAUSED":
            raise RefreshError(f"{query.name} is paused", hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME")
        if status.state == "FAILED":
            raise RefreshError(
                f"{query.name} has failed and waits", detail=status.error,
                hint=f"ALTER CONTINUOUS QUERY {query.name} RESUME tries again",
            )  # fmt: skip

    def _steps(self, query: ContinuousQuery, upto: int | None) -> Iterator[Refresh]:
        """Each followed by its destinations, but the last. A callback may change the query then: what is left is refreshed by its
        new definition, and not at all where it is gone or at rest."""
        self._check_active(query)
        end = frontier(self.services.catalog, query.sources, upto)
        steps: Generator[Refresh, None, None] | None = None
        while True:
            if steps is None:
                self.services.functions.require(query.name, query.functions, self.services.catalog.state)
            with self._failing(query), self._meaning(query):
                steps = steps or self.refresher.steps(query, self.registry.compiled(query), end)
                step = next(steps, None)
            if step is None:
                return
            yield step
            if step.to_version >= end:
                next(steps, None)  # which ends them; settings need not be looked at for it
                return
            self.delivery.deliver(query)  # what is complete does not wait for the rest
            now = self._active(query)
            if now != query:
                steps.close()
                if now is None:
                    return
                query, steps = now, None

    def _active(self, query: ContinuousQuery) -> ContinuousQuery | None:
        """The query as it is defined now; None where it is gone or at rest."""
        now = self.delivery.now(query)
        return now if now is not None and self.services.catalog.status(now.name).state == "ACTIVE" else None

    @contextmanager
    def _failing(self, query: ContinuousQuery) -> Iterator[None]:
        """A block whose error makes the query FAILED, unless it may be gone at the next attempt."""
        try:
            yield
        except Exception as error:
            if not is_transient(error):
                stands = self.services.catalog.status(query.name)  # after the slices that were refreshed
                self.registry.set_status(query, replace(stands, state="FAILED", error=said(error)))
            raise

    def _meaning(self, query: ContinuousQuery) -> AbstractContextManager[object]:
        """The settings under which the query means what it meant at CREATE. Spark is not started for them: a refresh that
        the driver evaluates itself does without."""
        wanted = dict(query.session)
        return (
            meaning(self.services.spark(), wanted) if self.services.spark_runs() else meaning_at_use(wanted)
        )
