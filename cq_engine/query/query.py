"""Plain queries: names resolved through the catalog, at a version, inside a transaction or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cq_engine.catalog.graph import source_query
from cq_engine.catalog.model import (
    CatalogState,
    ContinuousQuery,
    Table,
)
from cq_engine.catalog.names import check_here, check_snapshot
from cq_engine.context.services import ResultRows, Services, SmallRows
from cq_engine.core.errors import AnalysisError, CQError, Location, did_you_mean
from cq_engine.query.change_log import aware, change_log
from cq_engine.query.pushdown import Needed, needed_of, wanted_of
from cq_engine.query.references import AsOf, Changes, Reference, find_references, query_tree, substitute
from cq_engine.query.result import Result
from cq_engine.spark.sql import (
    SPARK_ERRORS,
    Composed,
    analysed_plan,
    explained_sql,
    fresh_name,
    quote,
    run_sql,
    translate_errors,
    translate_spark_error,
)
from cq_engine.storage.file_look_ups import Restrict

__all__ = [
    "Resolver",
    "SourceResolver",
    "View",
    "query_frame",
    "run_query",
    "unknown_table",
    "version_to_come",
]

_T = TypeVar("_T")


class View(Protocol):
    """What an open transaction shows of the warehouse: its snapshot and its own changes."""

    snapshot: int
    """The version that it began at."""

    @property
    def state(self) -> CatalogState:
        """The definitions that it sees."""

    def view(self, table: Table, restrict: Restrict | None = None) -> DataFrame:
        """The table's rows with the hidden row identity; with `restrict` at least those with wanted values."""


def run_query(
    services: Services, text: str, snapshot_version: int | None = None, transaction: View | None = None
) -> Result:
    """The rows of a SELECT over tables and change logs; see `query_frame`. What `small_select` answers needs no Spark."""
    resolver = Resolver(services, snapshot_version, transaction)
    small = resolver.small_query(text)
    if small is not None:
        return Result(arrow=small.rows, to_frame=lambda rows: services.reader.frame(rows, small.columns))
    frame = resolver.frame(text)
    tables = list(dict.fromkeys(resolver.now))
    said = f"read at {'its source' if len(tables) == 1 else 'their sources'}, as of now: {', '.join(tables)}"
    return Result(frame=frame, translate=resolver.translate, message=said if tables else "")


def query_frame(
    services: Services, text: str, snapshot_version: int | None = None, transaction: View | None = None
) -> DataFrame:
    """The query as a DataFrame, not yet evaluated.

    Args:
        services: the engine's parts.
        text: SELECT, WITH, VALUES, ... with VERSION / TIMESTAMP AS OF and CHANGES FROM VERSION clauses.
        snapshot_version: what tables without such a clause show; default the newest commit.
        transaction: shows its snapshot and its own changes instead.

    Raises:
        CQSyntaxError, AnalysisError: the text does not parse, or a name or type does not fit.
        StorageError: a version lies below what is kept.
    """
    return Resolver(services, snapshot_version, transaction).frame(text)


class Resolver:
    """Gives relations for names. `read` collects the tables that were read at the current state."""

    def __init__(
        self, services: Services, version: int | None = None, transaction: View | None = None
    ) -> None:
        self.services = services
        self.transaction = transaction
        newest = services.catalog.newest_version if version is None else version
        self.version = transaction.snapshot if transaction is not None else newest
        self.state = transaction.state if transaction is not None else services.catalog.state
        self.read: set[str] = set()
        self.notes: list[str] = []
        """From where the results come that the last query read."""
        self._results: dict[tuple[str, int | None], ResultRows] = {}
        self._asked: dict[tuple[str, int | None], ResultRows] = {}
        """Results that `small` was asked for, for the query after it."""
        self.extra: dict[str, DataFrame] = {}
        """Fresh names that stand in the text already, with their relations."""
        self.translate: Callable[[BaseException], CQError] = translate_spark_error
        """Says an error of Spark in the words of the last query that `frame` resolved."""
        self.given: Mapping[str, Callable[[], DataFrame]] = {}
        """By lower-case name what stands for it, whatever table has that name."""
        self.now: list[str] = []
        """The tables that the last query has read at their sources, as they are now."""
        self.analyses = False
        """Only the types matter, and no table is read."""
        self.trusted = False
        """The text was accepted when it was stored: whether it may do what it does is not asked again."""

    def frame(self, query: str | Composed) -> DataFrame:
        """The query over the relations that it names, analysed. Raises CQSyntaxError, AnalysisError, CQError."""
        return self._run_over_relations(query, run_sql)

    def plan(self, query: str) -> str:
        """Spark's analysed plan of the query as text."""
        return self._run_over_relations(query, analysed_plan)

    def explain(self, query: str) -> str:
        """Spark's physical plan of the query. Raises what `frame` does."""
        small = self.small_query(query)
        self.frame(query)  # an EXPLAIN of Spark gives errors as its text
        plan = self._run_over_relations(query, explained_sql).strip()
        said = [] if small is None else ["answered from memory, without Spark, whose plan would be this one"]
        return "\n".join([*self.notes, *said, plan])

    def _run_over_relations(
        self, query: str | Composed, run: Callable[[SparkSession, str, Mapping[str, DataFrame]], _T]
    ) -> _T:
        """What `run` makes of the query with relations for the names in it."""
        source = Composed.plain(query) if isinstance(query, str) else query
        references = [r for r in self._references(source) if r.name not in self.extra]
        rights = self.services.rights
        restricted = rights.restricted and not self.trusted
        if restricted:
            rights.check_tree(query_tree(source.text), source.text, source.location)
        self._results, self._asked = self._asked, {}
        self.notes, self.now = [], []
        names = {r: fresh_name(r.name) for r in references}
        spark = self.services.spark()  # which relations and their columns are made of
        relations = {names[r]: self.relation(r, source) for r in references}
        replaced, positions = substitute(source.text, references, names.get)
        back = {n: r.name for r, n in names.items()}
        steps: tuple[Mapping[int, int], ...] = (positions, source.origin)
        seen = replaced if self.notes else None
        self.translate = lambda e: translate_spark_error(
            e, source.user, names=back, positions=steps, seen=seen
        )
        given = {**relations, **self.extra}
        try:
            if restricted:
                rights.check_plan(spark, replaced, given)
        except SPARK_ERRORS as error:  # it stands behind a bracket there
            shifted = ({0: -1, 1: 0}, *steps)
            raise translate_spark_error(error, source.user, names=back, positions=shifted) from error
        try:
            return run(spark, replaced, given)
        except SPARK_ERRORS as error:
            raise self.translate(error) from error

    def _references(self, source: Composed) -> list[Reference]:
        try:
            return find_references(source.text)
        except CQError as error:
            if source.text != source.user:
                error.location = None  # it counts in a text that the user never saw
            raise

    def relation(self, reference: Reference, source: Composed) -> DataFrame:
        """What a reference stands for."""
        location = source.location(reference.start)
        given = self.given.get(reference.name.lower()) if reference.clause is None else None
        if given is not None:
            return given()
        table = self.state.tables.get(reference.name.lower())
        query = source_query(self.state, reference.name)
        if isinstance(reference.clause, Changes):
            return self._changes(reference.name, reference.clause, table, query, location)
        if table is not None and table.remote is not None and not self.analyses:
            return self._remote(table, reference, source, location)
        if table is not None:
            self._check_rows(table, location)
            needed = self._needed(source, reference, table)
            if reference.clause is not None:
                return _public(self._at(reference.clause, table, location, needed), table)
            self.read.add(table.name)
            return self.table(table, needed)
        if query is not None:
            return self._result(query, reference.clause, location)
        raise unknown_table(self.state, reference.name, location)

    def _remote(
        self, table: Table, reference: Reference, source: Composed, location: Location | None
    ) -> DataFrame:
        """The rows of a table that stays at its source, as they are now."""
        if reference.clause is not None:
            check_here(table, "a version", location)
        try:
            wanted = wanted_of(source.text, reference, table)
            found = self.services.remote(table, wanted, self.transaction is not None)
        except CQError as error:
            error.location = error.location or location
            raise
        self.notes.append(found.note)
        self.now.append(table.name)
        return found.rows

    def _needed(self, source: Composed, reference: Reference, table: Table) -> Needed | None:
        """What the query needs of the table, for those who read it for Spark and would not know; None for all."""
        if self.services.catalog.store.is_local or self.transaction is not None or self.analyses:
            return None  # Spark's own reader finds out itself
        return needed_of(wanted_of(source.text, reference, table), table)

    def _check_rows(self, table: Table, location: Location | None) -> None:
        """Raises AnalysisError where the table has no rows to be read."""
        check_snapshot(table, "SELECT", location)

    def _result(self, query: ContinuousQuery, clause: AsOf | None, location: Location | None) -> DataFrame:
        at = None if clause is None else self._version(clause, location)
        try:
            if (query.name, at) not in self._results:
                self._results[query.name, at] = self.services.results(query.name, at, self.version)
            found = self._results[query.name, at]
        except CQError as error:
            error.location = location
            raise
        self.notes.append(f"{query.name}: its result at version {found.version}, {found.source}")
        return found.frame()

    def small_query(self, text: str) -> SmallRows | None:
        """The rows of a query that is answered from memory. Raises CQSyntaxError."""
        if self.services.rights.restricted:
            return None
        from cq_engine.query.small import small_select  # which imports what commits do without

        return small_select(text, self.small)

    def small(self, reference: Reference) -> SmallRows | None:
        """What a reference stands for, where it is in memory; None also for what is an error."""
        at = reference.clause
        plain = at is None or (isinstance(at, AsOf) and at.kind == "VERSION" and at.value.isdigit())
        if not plain or self.transaction is not None:
            return None
        version = int(at.value) if isinstance(at, AsOf) else None
        table = self.state.tables.get(reference.name.lower())
        try:
            if table is None:
                query = source_query(self.state, reference.name)
                if query is None:
                    return None
                found = self._asked[query.name, version] = self.services.results(
                    query.name, version, self.version
                )
                return found.small
            self._check_rows(table, None)
            return self._small_table(table, self.version if version is None else version)
        except CQError:
            return None

    def _small_table(self, table: Table, version: int) -> SmallRows | None:
        if (
            table.remote is not None
            or not table.created_version <= version <= self.services.catalog.newest_version
        ):
            return None
        rows = self.services.reader.small_image(table.storage, version)
        return (
            None if rows is None else SmallRows(rows.select([c.name for c in table.columns]), table.columns)
        )

    def table(self, table: Table, needed: Needed | None = None) -> DataFrame:
        """The table's own columns, as the transaction or the version shows it; what is not `needed` may be NULL, or not there."""
        if needed is None:
            return _public(self.physical(table), table)
        return _public(self._image(table, self.version, needed), table)

    def _image(self, table: Table, version: int, needed: Needed | None) -> DataFrame:
        columns, sought = needed or (None, None)
        return self.services.reader.image(table.storage, version, wanted=columns, sought=sought)

    def physical(self, table: Table, restrict: Restrict | None = None) -> DataFrame:
        """With the hidden row identity; with `restrict` at least the rows with wanted values."""
        if self.transaction is not None:
            return self.transaction.view(table, restrict)
        return self.services.reader.image(table.storage, self.version, restrict)

    def _at(self, clause: AsOf, table: Table, location: Location | None, needed: Needed | None) -> DataFrame:
        version = self._version(clause, location)
        newest = self.services.catalog.newest_version
        if version > newest:
            raise version_to_come(version, newest, f" of table {table.name}", location)
        if version < table.created_version:
            raise AnalysisError(
                f"table {table.name} did not exist at version {version}",
                detail=f"it was created at version {table.created_version}",
                location=location,
            )
        return self._image(table, version, needed)

    def _version(self, clause: AsOf, location: Location | None) -> int:
        plain = clause.value.strip("'\"")
        if clause.kind == "VERSION":
            if not plain.isdigit():
                raise AnalysisError(
                    f"VERSION AS OF takes a commit version, not {clause.value}", location=location
                )
            return int(plain)
        text = f"SELECT CAST({clause.value} AS TIMESTAMP) AS t"
        spark, rights = self.services.spark(), self.services.rights
        if rights.restricted:
            rights.check_tree(query_tree(text), text, lambda _: location)
        with translate_errors():
            rights.check_plan(spark, text, {})
            found = spark.sql(text).toArrow().column(0)
        moment = found.cast(pa.timestamp("us", tz="UTC"))[0].as_py()
        if moment is None:
            raise AnalysisError(f"TIMESTAMP AS OF takes a time, not {clause.value}", location=location)
        return self.services.catalog.version_at(aware(moment))

    def _changes(
        self,
        name: str,
        clause: Changes,
        table: Table | None,
        query: ContinuousQuery | None,
        location: Location | None,
    ) -> DataFrame:
        if clause.high is not None and clause.high < clause.low:
            raise AnalysisError(
                f"CHANGES FROM VERSION {clause.low} TO VERSION {clause.high} is backwards", location=location
            )
        if table is not None:
            check_here(table, "CHANGES FROM VERSION", location)
        newest = self.services.catalog.newest_version
        high = newest if clause.high is None else min(clause.high, newest)
        if table is not None:
            return change_log(
                self.services, table.storage, max(clause.low, table.created_version, 1) - 1, high, None
            )
        if query is not None:
            low = max(clause.low, query.created_version, 1)
            return change_log(self.services, query.result, low - 1, high, query.width or None)
        raise unknown_table(self.state, name, location)


class SourceResolver(Resolver):
    """Resolves the names of a defining query: its tables as it knows them, and results of other queries."""

    def __init__(self, services: Services, sources: Mapping[str, Table], version: int) -> None:
        super().__init__(services, version)
        self.state = replace(self.state, tables={**self.state.tables, **sources})
        self.trusted = True


def version_to_come(
    version: int, newest: int, of: str = "", location: Location | None = None
) -> AnalysisError:
    """The error for a version above the newest one; `of`: what it would be a version of."""
    return AnalysisError(
        f"there is no version {version}{of} yet",
        hint=f"the newest commit version is {newest}",
        location=location,
    )


def unknown_table(state: CatalogState, name: str, location: Location | None = None) -> AnalysisError:
    """The error for a name that is no table, with the nearest name as a hint."""
    query = source_query(state, name)
    if query is not None:
        own = name.lower() == query.name.lower()
        return AnalysisError(
            f"{query.name} is a continuous query, not a table"
            if own
            else f"{name} is the result of {query.name}, not a table",
            detail="its result follows from what it reads; it can be read like a table, and not be written",
            location=location,
        )
    names = [*(table.name for table in state.tables.values()), *(q.name for q in state.queries.values())]
    hint = did_you_mean(name, names, "SHOW TABLES lists the tables")
    return AnalysisError(f"there is no table {name}", hint=hint, location=location)


def _public(frame: DataFrame, table: Table) -> DataFrame:
    return frame.select(*(f.col(quote(c.name)) for c in table.columns)) if table.storage.has_row_id else frame
