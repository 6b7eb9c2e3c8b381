"""The result of a continuous query, read by its name: at which version, and from where its rows come.

Queries that others read have a table of their result, which has every version since it was begun. Of others the result
at their position is computed from the groups that are stored for them, where there are such; else their text is run.
All of these give the same: the result of the sources as they were at the version, which for a compressed query is one
at which a refresh ended (`frontier.whole_version`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.algebra.emit import quote
from cq_engine.algebra.nodes import Node
from cq_engine.catalog.graph import sheds
from cq_engine.catalog.groups import group_of
from cq_engine.catalog.model import PARTIAL, ContinuousQuery, VersionedTable
from cq_engine.context.services import ResultRows, SmallRows
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, StorageError
from cq_engine.core.keeping import keep
from cq_engine.definition.registry import Registry
from cq_engine.groups.groups import Groups
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.stored_result import stored_result, stored_result_sql
from cq_engine.query.query import version_to_come
from cq_engine.refresh.evaluated import evaluated_from_states, evaluated_result
from cq_engine.refresh.frontier import version_known, whole_version
from cq_engine.refresh.images import ImageBinder
from cq_engine.refresh.recompute import result_at
from cq_engine.spark.settings import meaning
from cq_engine.spark.sql import run_sql, translate_errors

__all__ = ["Results"]

_KEPT = "from the table kept for the queries that read it"
_STORED = "from the groups that are stored for it"
_COMPUTED = "computed by its query"


class Results:
    """Gives results, small ones in memory; it holds nobody up, and nobody it."""

    def __init__(self, registry: Registry, groups: Groups) -> None:
        self.registry = registry
        self.groups = groups
        self.services = registry.services
        self._ready: dict[int, int] = {}
        """Up to which member there were rows in the states of a query group when they were read."""

    def read(self, name: str, at: int | None, newest: int) -> ResultRows:
        """The result at version `at`, by default at the newest one up to `newest` that the query has processed.

        Raises AnalysisError for a version that the query does not have, StorageError for one that is no longer kept.
        """
        while True:
            query = self.registry.find(name)
            version = self._version(query, at, newest)
            found = self._rows(query, version)
            now = self.services.catalog.state.queries.get(query.name.lower())
            if now == query:  # all of it is of one definition
                return found

    def source(self, query: ContinuousQuery) -> str:
        """From where the rows of the newest result come."""
        if self._kept(query, self.services.catalog.status(query.name).position) is not None:
            return _KEPT
        return _COMPUTED if self._stored(query) is None else _STORED

    # ------------------------------------------------------------ which version

    def _version(self, query: ContinuousQuery, at: int | None, newest: int) -> int:
        catalog = self.services.catalog
        position = catalog.status(query.name).position
        if at is None:
            at = min(position, newest)
        elif at > position:
            self._check_known(query, at)
        if at < query.created_version:
            raise AnalysisError(
                f"{query.name} had no result at version {at}",
                detail=f"its result begins with version {query.created_version}",
            )
        return whole_version(catalog, query, at) if at < position else position

    def _check_known(self, query: ContinuousQuery, version: int) -> None:
        """Raises AnalysisError for a version that the query has not processed."""
        catalog = self.services.catalog
        newest = catalog.newest_version
        if version > newest:
            raise version_to_come(version, newest, f" of {query.name}")
        if version > version_known(catalog, query, newest):
            status = catalog.status(query.name)
            raise AnalysisError(
                f"{query.name} has not processed version {version} yet",
                detail=f"it is {status.state} at version {status.position}",
                hint=f"REFRESH CONTINUOUS QUERY {query.name} first"
                if status.state == "ACTIVE"
                else f"ALTER CONTINUOUS QUERY {query.name} RESUME first",
            )

    # ------------------------------------------------------------ from where

    def _rows(self, query: ContinuousQuery, version: int) -> ResultRows:
        """The result from the first source that has it: in memory where it can be had without Spark, else as a frame."""
        found = self._from_relation(query, version)
        if found is not None:
            return found
        if version < query.defined_version:
            raise AnalysisError(
                f"{query.name} had another defining query at version {version}",
                detail=f"it has its present one since version {query.defined_version}; earlier results are not kept",
                hint=f"its delta log reads as {query.name} CHANGES FROM VERSION a TO VERSION b",
            )
        if version == self.services.catalog.status(query.name).position:
            found = self._from_states(query, version)
            if found is not None:
                return found
        return self._computed(query, version)

    def _from_relation(self, query: ContinuousQuery, version: int) -> ResultRows | None:
        """The result from the table that is kept for the queries that read it."""
        table = self._kept(query, version)
        if table is None:
            return None
        names = [c.name for c in table.columns]
        image = self.services.reader.small_image(table, version)
        if image is not None:
            return self._in_memory(image.select(names), table.columns, version, _KEPT)
        rows = self.services.reader.image(table, version).select(*map(quote, names))
        return ResultRows(lambda: rows, version, _KEPT)

    def _in_memory(self, rows: pa.Table, columns: Sequence[Column], version: int, source: str) -> ResultRows:
        """The first columns of `rows`, under the names of `columns`."""
        names = [c.name for c in columns]
        small = SmallRows(rows.select(range(len(names))).rename_columns(names), tuple(columns))
        return ResultRows(lambda: self.services.reader.frame(*small), version, source, small)

    def _kept(self, query: ContinuousQuery, version: int) -> VersionedTable | None:
        """The table of the result, where it has this version."""
        if query.relation is None:
            return None
        table = query.relation.storage
        first = max(query.relation.created_version, self.services.catalog.floor(table.id))
        return table if version >= first else None

    def _stored(self, query: ContinuousQuery) -> tuple[Compiled, Node, Mapping[str, VersionedTable]] | None:
        """The plan over the states; None where nothing is stored, or nothing yet for this member of a query group."""
        group = group_of(self.services.catalog.state, query)
        if group is not None and group.ready < query.id:
            return None
        compiled = self.registry.compiled(query) if group is None else self.groups.compiled(group)
        plan = stored_result(compiled)
        states = query.states if group is None else group.query.states
        return None if plan is None else (compiled, plan, dict(states))

    def forget_gone(self) -> None:
        """Takes what is remembered of groups that are gone out of memory."""
        keep(self._ready, {group.query.id for group in self.services.catalog.state.groups.values()})

    def _follow_group(self, query: ContinuousQuery) -> None:
        """New members' rows come at a version that the states have already: another process may have added some."""
        catalog = self.services.catalog
        group = group_of(catalog.state, query)
        if group is None or catalog.has_duties or self._ready.get(group.query.id) == group.ready:
            return
        for _, table in group.query.states:
            self.services.reader.forget(table)
        self._ready[group.query.id] = group.ready

    def _from_states(self, query: ContinuousQuery, position: int) -> ResultRows | None:
        """The result at the query's position; None where nothing is stored, or it has moved on meanwhile."""
        stored = self._stored(query)
        if stored is None:
            return None
        compiled, plan, states = stored
        self._follow_group(query)
        member = query.id if query.group is not None else None
        try:
            if not query.functions:
                small = evaluated_from_states(self.services, compiled, plan, position, states, member)
                if small is not None:
                    return self._in_memory(small, compiled.columns[: query.width], position, _STORED)
            tables = {name: table.storage for name, table in compiled.sources.items()}
            binder = ImageBinder(self.services.reader, tables, position, states, compiled.read)
            text = stored_result_sql(compiled, plan, query.width, binder, member)
            rows = self._evaluated(query, lambda: run_sql(self.services.spark(), text, binder.relations))
        except StorageError:  # states are kept at the position only
            return None
        return ResultRows(lambda: rows, position, _STORED)

    def _computed(self, query: ContinuousQuery, version: int) -> ResultRows:
        """The result of the query's text over its tables as they were."""
        self._check_computable(query, version)
        compiled = self.registry.compiled(query)
        columns = compiled.columns[: query.width]
        names = [quote(c.name) for c in columns]
        try:
            small = None if query.functions else evaluated_result(self.services, compiled, version)
            if small is not None:
                return self._in_memory(small, columns, version, _COMPUTED)
            rows = self._evaluated(query, lambda: result_at(self.services, compiled, version).select(*names))
        except StorageError as error:
            catalog = self.services.catalog
            if all(catalog.floor(table.storage.id) <= version for table in compiled.sources.values()):
                raise
            raise StorageError(
                f"the result of {query.name} at version {version} cannot be computed any more",
                detail=f"{error.message}: {error.detail}",
                hint="retention says how long old versions of tables are kept",
            ) from error
        return ResultRows(lambda: rows, version, _COMPUTED)

    def _check_computable(self, query: ContinuousQuery, version: int) -> None:
        """Raises AnalysisError where the query's tables do not tell its result."""
        if query.verdict == PARTIAL:
            raise AnalysisError(
                f"the result of {query.name} is not kept",
                detail="it is maintained from partial changes of tables WITHOUT SNAPSHOT, whose rows are not kept",
                hint=f"a destination that is merged has its rows from then on; {query.name} CHANGES FROM VERSION 1 its deltas",
            )
        if sheds(query):
            raise AnalysisError(
                f"the result of {query.name} at version {version} is not kept any more",
                detail="rows may have been left out of it (shed), so that it cannot be computed from its table",
                hint="retention says how long old versions are kept",
            )

    def _evaluated(self, query: ContinuousQuery, make: Callable[[], DataFrame]) -> DataFrame:
        """The rows under the settings that the query was created with; computed at once where others are set now."""
        services = self.services
        services.functions.require(query.name, query.functions, services.catalog.state)
        with meaning(services.spark(), dict(query.session)) as changed, translate_errors():
            rows = make()
            return rows.localCheckpoint() if changed else rows
