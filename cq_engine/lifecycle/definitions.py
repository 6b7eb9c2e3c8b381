"""Definitions that come and change: CREATE, OR REPLACE, ALTER ... AS and RESUME FROM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cq_engine.catalog import apply
from cq_engine.catalog.graph import upstreams
from cq_engine.catalog.groups import query_options
from cq_engine.catalog.model import CatalogState, ContinuousQuery, QueryStatus
from cq_engine.core import faults
from cq_engine.core.errors import AnalysisError, CatalogError, RefreshError
from cq_engine.definition.analysis import define
from cq_engine.definition.rules import (
    check_options,
    commit_time,
    notes,
    start_version,
    with_destinations,
    without,
)
from cq_engine.definition.start import Start, keep_relation, prepare_start
from cq_engine.grammar import CreateContinuousQuery, StartFrom
from cq_engine.groups.attach import Joining
from cq_engine.lifecycle.redefinition import redefined, restarted
from cq_engine.query.references import find_references
from cq_engine.spark.settings import meaning

if TYPE_CHECKING:
    from cq_engine.lifecycle.registry import Queries

__all__ = ["Definitions"]


class Definitions:
    """Changes the definitions of `queries`, whose `ddl` lock the caller holds."""

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        self.services = queries.services
        self.delivery = queries.delivery
        self.joining = Joining(queries)

    # ------------------------------------------------------------ CREATE

    def create(self, statement: CreateContinuousQuery) -> str:
        """CREATE CONTINUOUS QUERY; the message for a person."""
        statement = replace(statement, options=query_options(statement.options))
        catalog = self.services.catalog
        known = catalog.state.queries.get(statement.name.lower())
        if known is not None and statement.if_not_exists:
            return f"continuous query {known.name} exists"
        if known is not None and not statement.or_replace:
            raise CatalogError(
                f"{statement.name} exists already",
                hint="choose another name, or CREATE OR REPLACE CONTINUOUS QUERY",
            )
        if known is None:
            joined = self.joining.joined(statement)
            if joined is not None:
                return joined
        else:
            known = self.queries.groups.individual(known)
        if known is not None and statement.start == StartFrom():
            self._try_refresh(known)
        with self._sources_kept(statement, known):
            if known is None:
                return self._created(statement, None, "")
            if statement.start != StartFrom():
                return self._created(statement, known, "")
            with catalog.lock:
                message, why = redefined(self.queries, known, statement, "ACTIVE")
            return message or self._created(statement, known, why)

    def _try_refresh(self, query: ContinuousQuery) -> None:
        """Brings a query that is to be redefined up to date; where it cannot, the difference covers what is missing."""
        if self.services.catalog.status(query.name).state == "ACTIVE":
            try:
                self.queries.bring_up_to_date(query.name)
            except RefreshError:
                return

    @contextmanager
    def _sources_kept(
        self, statement: CreateContinuousQuery, known: ContinuousQuery | None
    ) -> Iterator[None]:
        """The queries that `statement` reads stand still, up to date, and their results are kept as tables.

        What is kept and then read by nobody goes again.
        """
        catalog = self.services.catalog
        names = [reference.name for reference in find_references(statement.query)]
        self.queries.refresh_sources(names, statement.start.version)
        above = [query.name for query in upstreams(catalog.state, names)]
        for name in above:
            self.queries.groups.individual(self.queries.find(name))
        with self.queries.only([*above, *([known.name] if known else [])]):
            try:
                self._keep_results(statement, above)
                yield
            except BaseException:
                self.queries.tidy()
                raise

    def _keep_results(self, statement: CreateContinuousQuery, names: Sequence[str]) -> None:
        """Gives the queries `names` their tables, with the results at their positions."""
        catalog = self.services.catalog
        missing = [name for name in names if self.queries.find(name).relation is None]
        if not missing:
            return
        first = catalog.newest_version == 0  # a result needs a commit to stand at
        positions = {name: 1 if first else catalog.status(name).position for name in missing}
        for name, position in positions.items():
            if position == 0:
                raise AnalysisError(
                    f"{name} is {catalog.status(name).state} and has processed nothing yet",
                    hint=f"ALTER CONTINUOUS QUERY {name} RESUME and REFRESH it first",
                )

        def related() -> CatalogState:
            state = catalog.state
            for name, position in positions.items():
                state = apply.with_relation(state, apply.find_query(state, name), position)
            return state

        define(self.services, related(), statement)  # what is wrong is said before anything is stored
        with catalog.lock, catalog.write() as unit:
            if first:
                unit.add_commit(1, commit_time(self.services))
            unit.set_state(related())
            for name, position in positions.items():
                unit.set_status(name, replace(catalog.status(name), position=position))
        for name in missing:
            query = self.queries.find(name)
            start = Start(catalog.status(name).position)
            with meaning(self.services.spark(), dict(query.session)):
                keep_relation(self.services, start, query, self.queries.compiled(query), start.version)
            with catalog.lock, catalog.write(start.attempt) as unit:
                start.write(unit)

    def _created(self, statement: CreateContinuousQuery, known: ContinuousQuery | None, why: str) -> str:
        """A new query; in the place of `known`, which goes in the same transaction, where there is one.

        What it starts from is computed at a version that is chosen first, while others go on committing: their
        commits are its first deltas. Definitions cannot change meanwhile.
        """
        catalog = self.services.catalog
        with ExitStack() as held:
            if catalog.newest_version == 0:  # the query may make commit 1, which nobody else must take
                held.enter_context(catalog.lock)
            before = catalog.state if known is None else without(catalog.state, known, why)
            state, query, compiled = define(self.services, before, statement)
            check_options(query)
            with catalog.lock:
                version = start_version(self.services, statement.start, query, compiled)
                held.enter_context(self.services.read_holds.held(version))
            query = replace(query, created_version=version)
            query, state, made = with_destinations(self.delivery, query, state)
            state = apply.without_unread(apply.add_query(state, query))
            snapshot = statement.start.point == "SNAPSHOT"
            start = prepare_start(self.services, query, compiled, version, snapshot)
            faults.point("create.computed")
            with catalog.lock, catalog.write(start.attempt) as unit:
                if version > catalog.newest_version:
                    unit.add_commit(version, commit_time(self.services))
                unit.set_state(state)
                start.write(unit)
                unit.set_status(query.name, QueryStatus(version, "ACTIVE", "", self.services.now()))
                self.delivery.begin(unit, query, version - 1 if snapshot else version)
            faults.point("create.after_catalog")
        self.queries.remember(query, compiled)
        said = [
            f"continuous query {query.name} {'created' if known is None else 'replaced'}: {query.verdict}"
        ]
        said += [*query.reasons, *notes(self.services, query, made)]
        if known is not None:
            said.append(
                f"it starts from version {version} with a new delta log, without the difference to the old result"
                + (f": {why}" if why else "")
            )
        return "\n  ".join(said)

    # ------------------------------------------------------------ another query

    def redefine(self, query: ContinuousQuery, text: str) -> str:
        """ALTER CONTINUOUS QUERY ... AS. Raises AnalysisError where the new result cannot be compared with the old."""
        catalog = self.services.catalog
        statement = CreateContinuousQuery(
            query.name, text, query.key if query.declared else None, query.mode, query.markers, query.when,
            query.destinations, options=query.options,
        )  # fmt: skip
        self._try_refresh(query)
        paused = catalog.status(query.name).state == "PAUSED"
        with self._sources_kept(statement, query), catalog.lock:
            message, why = redefined(self.queries, query, statement, "PAUSED" if paused else "ACTIVE")
        if not message:
            raise AnalysisError(
                f"the new query of {query.name} gives another kind of result",
                detail=why,
                hint="CREATE OR REPLACE CONTINUOUS QUERY starts anew, without the difference",
            )
        return message

    # ------------------------------------------------------------ RESUME FROM

    def restart(self, query: ContinuousQuery, start: StartFrom) -> str:
        """RESUME FROM: the states are built again at a later version; the interval between is skipped.

        Queries that read this one see the result go from one version to the other in one step.
        """
        self.queries.refresh_sources(query.sources)
        above = [each.name for each in upstreams(self.services.catalog.state, query.sources)]
        with self.queries.only([query.name, *above]), self.services.catalog.lock:
            return restarted(self.queries, self.queries.find(query.name), start)
