"""What a continuous query starts from, new or redefined: the rows of its states at a version, and its first delta."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.algebra.emit import quote
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, DELETE, INSERT, UPDATE_POSTIMAGE
from cq_engine.catalog.model import PARTIAL, ContinuousQuery, DataFile, VersionedTable
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context.services import Services
from cq_engine.core.arrays import repeated
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, ResultKeyError
from cq_engine.planner.compiled import KEY_STATE, Compiled, StoredAggregate
from cq_engine.refresh.cluster import write_log
from cq_engine.refresh.delta_rows import log_rows_in_order, summarize
from cq_engine.refresh.evaluated import evaluated_result, evaluated_state
from cq_engine.refresh.executors import few_of
from cq_engine.refresh.recompute import difference, result_at, state_at
from cq_engine.refresh.relations import (
    change_files,
    change_rows,
    change_width,
    first_rows,
    first_rows_in_memory,
    write_changes,
)
from cq_engine.refresh.result_keys import duplicate_key_error
from cq_engine.spark.arrow_io import few_rows, to_arrow
from cq_engine.spark.persisting import persisted
from cq_engine.spark.settings import wide_settings
from cq_engine.spark.sql import translate_errors
from cq_engine.spark.widths import Size, numbering_parts, size_of_rows
from cq_engine.storage.data_files import write_files
from cq_engine.storage.rows import change_columns, conform
from cq_engine.storage.sizes import size_at

__all__ = ["Start", "keep_difference", "keep_relation", "prepare_start", "wide"]


@dataclass
class Start:
    """What `write` puts into the unit of work that creates the query."""

    version: int
    changes: list[tuple[VersionedTable, pa.Table | Sequence[DataFile], frozenset[str]]] = field(
        default_factory=list
    )
    plain: list[tuple[VersionedTable, list[DataFile]]] = field(default_factory=list)
    attempt: Attempt | None = None
    logs: list[tuple[VersionedTable, int, int, pa.Table | Sequence[DataFile], frozenset[str]]] = field(
        default_factory=list
    )
    """Rows of a delta log over the versions [low, high]."""
    many: bool = False
    """Are the query's tables large, so that executors keep what is wanted more than once?"""
    parts: int = 1
    """In how many parts executors number the rows of a result (`delta.numbering`)."""

    def add(
        self,
        table: VersionedTable,
        rows: pa.Table | Sequence[DataFile],
        counts: tuple[int, int, int],
    ) -> None:
        """Change rows, in memory or in files; `counts` says how many are I, D and U."""
        kinds = frozenset(k for k, count in zip(("INSERT", "DELETE", "UPDATE"), counts) if count)
        self.changes.append((table, rows, kinds))

    def write(self, unit: UnitOfWork) -> None:
        for table, rows, kinds in self.changes:
            write_changes(unit, table, self.version, self.version, rows, kinds)
        for table, low, high, rows, kinds in self.logs:
            write_changes(unit, table, low, high, rows, kinds)
        for table, files in self.plain:
            inserts = frozenset({"INSERT"})
            unit.add_change_files(table, self.version, self.version, files, inserts, insert_only=True)


def prepare_start(
    services: Services,
    query: ContinuousQuery,
    compiled: Compiled,
    version: int,
    snapshot: bool,
    *,
    more: bool = False,
    relation: bool = False,
) -> Start:
    """Computes the query's states at `version`, with `snapshot` its result as I rows, with `relation` the rows of its table.

    With `more` they are rows beside others that the states have already.

    Raises ResultKeyError where the result at `version` has two rows with one declared key; AnalysisError or CQError
    where Spark cannot evaluate the query.
    """
    if snapshot and query.verdict == PARTIAL:
        raise AnalysisError(
            "START FROM SNAPSHOT is not for a query over tables WITHOUT SNAPSHOT",
            detail="their rows are not kept, so that there is no result to begin with",
            hint="leave it out, or write START FROM VERSION n: the changes after version n are kept",
        )
    start = Start(version)
    states = dict(query.states)
    try:
        with wide(services, start, compiled):
            for each in compiled.states:
                table = states[each.state.label]
                rows = _evaluated_state(services, start, query, compiled, each)
                if rows is not None:
                    _keep_few(start, table, rows)
                    continue
                with _once(start, state_at(services, compiled, each, version)) as frame:
                    if each.state.label == KEY_STATE:
                        _check_keys(query, compiled, services, frame, version, each)
                    _keep(services, start, table, frame, more=more)
            if (
                relation or snapshot
            ) and query.verdict != PARTIAL:  # whose table has what changes bring from now on
                with _result(services, start, query, compiled) as result:
                    if relation:
                        _keep_relation(services, start, query, result)
                    if snapshot:
                        _keep_snapshot(services, start, query, compiled, result)
    except BaseException:
        if start.attempt is not None:
            start.attempt.abandon()
        raise
    return start


@contextmanager
def wide(
    services: Services, start: Start, compiled: Compiled, *more: tuple[VersionedTable, int]
) -> Iterator[None]:
    """A block that computes results over the query's tables, and reads `more` at these versions: shuffles are as wide as they are large."""
    tables = [(table.storage, start.version) for table in compiled.sources.values()]
    sizes = [size_at(services.catalog, [t], v) for t, v in (*tables, *more) if t.kind != "constants"]
    size = sum(sizes, Size())
    start.many = size.rows > services.limits.start_rows
    if not start.many:
        yield
        return
    with wide_settings(services.spark(), size.bytes, services.limits) as width:
        start.parts = numbering_parts(width)
        yield


def _few(
    services: Services, start: Start, query: ContinuousQuery, evaluate: Callable[[], pa.Table | None]
) -> pa.Table | None:
    """Rows where they can be had without Spark, and the catalog can have them: few, and not too wide."""
    if start.many or query.functions:
        return None
    rows = evaluate()
    few = rows is not None and rows.num_rows <= services.limits.start_rows and _fits(services, rows)
    return rows if few else None


def _fits(services: Services, rows: pa.Table) -> bool:
    """Can the catalog have the rows as one value?"""
    return bool(rows.nbytes <= services.limits.refresh_inline_bytes)


def _evaluated_state(
    services: Services, start: Start, query: ContinuousQuery, compiled: Compiled, stored: StoredAggregate
) -> pa.Table | None:
    """The rows of a state where they can be had without Spark, and no key stands twice, of which Spark says more."""
    rows = _few(services, start, query, lambda: evaluated_state(services, compiled, stored, start.version))
    if rows is None or stored.state.label != KEY_STATE:
        return rows
    return None if pc.any(pc.greater(rows.column("_n"), 1)).as_py() else rows


@contextmanager
def _result(
    services: Services, start: Start, query: ContinuousQuery, compiled: Compiled
) -> Iterator[pa.Table | DataFrame]:
    """The result at the start's version for the block: in memory where it can be had without Spark, else a frame."""
    rows = _few(services, start, query, lambda: evaluated_result(services, compiled, start.version))
    if rows is not None:
        yield rows.rename_columns([c.name for c in compiled.columns])
        return
    with _once(start, result_at(services, compiled, start.version)) as frame:
        yield frame


def _once(start: Start, frame: DataFrame) -> AbstractContextManager[DataFrame]:
    """A block in which the rows are computed once, where that takes time."""
    return persisted(frame) if start.many else nullcontext(frame)


@contextmanager
def _counted(
    services: Services, start: Start, frame: DataFrame
) -> Iterator[tuple[pa.Table | None, DataFrame, int]]:
    """The rows in Arrow where they are few and not too wide, else the frame, which executors keep for the block, and their number."""
    most = services.limits.start_rows
    if not start.many:
        rows = few_rows(frame, most)
        if rows is not None and _fits(services, rows):
            yield rows, frame, rows.num_rows
            return
    with persisted(frame) as kept:
        with translate_errors():
            count = kept.count()
            # not `few_rows`: of a result that is not few, it puts the first rows of every task together
            rows = few_of(kept) if start.many and count <= most else None
        yield rows if rows is not None and _fits(services, rows) else None, kept, count


def _keep(
    services: Services, start: Start, table: VersionedTable, frame: DataFrame, *, more: bool = False
) -> None:
    with _counted(services, start, frame) as found:
        _keep_rows(services, start, table, *found, more=more)


def _keep_few(start: Start, table: VersionedTable, rows: pa.Table) -> None:
    kinds = repeated("insert", pa.string(), rows.num_rows)
    versions = repeated(start.version, pa.int64(), rows.num_rows)
    shown = rows.append_column("_change_type", kinds).append_column("_commit_version", versions)
    start.add(table, conform(shown, change_columns(table)), (rows.num_rows, 0, 0))


def _keep_rows(
    services: Services,
    start: Start,
    table: VersionedTable,
    rows: pa.Table | None,
    frame: DataFrame,
    count: int,
    *,
    more: bool,
) -> None:
    if rows is not None:
        _keep_few(start, table, rows)
        return
    start.attempt = start.attempt or services.catalog.attempt("create")
    directory = f"{start.attempt.directory(table, 'snapshot')}/{table.id}"
    keys = [quote(k) for k in table.identity]
    if more:  # as change rows: rows without would become the whole snapshot
        frame = frame.withColumn(CHANGE_TYPE, f.lit(INSERT)).withColumn(
            COMMIT_VERSION, f.lit(start.version).cast("bigint")
        )
    columns = change_columns(table) if more else table.physical_columns
    shown = frame.select(*(quote(c.name) for c in columns))
    if keys:
        width = change_width(services, size_of_rows(count, columns))
        shown = shown.repartitionByRange(width, *keys).sortWithinPartitions(*keys)
    store, limits = services.catalog.store, services.limits
    files = write_files(store, shown, directory, table.identity, limits, small_groups=True)
    if more:
        start.add(table, files, (1, 0, 0))
    else:
        start.plain.append((table, files))


def _check_keys(
    query: ContinuousQuery,
    compiled: Compiled,
    services: Services,
    frame: DataFrame,
    version: int,
    stored: StoredAggregate,
) -> None:
    twice = to_arrow(frame.where("_n > 1").limit(1))
    if twice.num_rows == 0:
        return
    names = query.key or ()
    values = [twice.column(k)[0].as_py() for k in stored.keys]
    result = result_at(services, compiled, version)
    for name, value in zip(names, values):
        column = result[quote(name)]
        result = result.where(column.isNull() if value is None else column == value)
    rows = "; ".join(str(tuple(r)) for r in result.limit(3).collect())
    key = ", ".join(f"{n} = {v!r}" for n, v in zip(names, values)) or "the empty key"
    raise ResultKeyError(
        f"two rows of {query.name} have the result key ({key})",
        detail=f"rows: {rows}",
        hint="declare a PRIMARY KEY that is unique in the result, or leave it out to have one derived",
    )


def _keep_snapshot(
    services: Services, start: Start, query: ContinuousQuery, compiled: Compiled, result: pa.Table | DataFrame
) -> None:
    """The result at the start's version as I rows of the delta log."""
    if isinstance(result, pa.Table):
        result = services.reader.frame(result, compiled.columns)
    rows = difference(services, None, result, query.key, start.version, start.parts)
    keep_difference(services, start, query, rows)


def keep_difference(
    services: Services,
    start: Start,
    query: ContinuousQuery,
    rows: DataFrame,
    *,
    log: bool = True,
    relation_at: int | None = None,
) -> tuple[int, int, int]:
    """Rows of a delta log (`recompute.difference`) for the log and, with `relation_at`, for the queries that read it.

    `relation_at` is the version up to which the relation has its rows. Returns how many rows are I, D and U.
    Raises ResultKeyError where two rows have one key.
    """
    with _counted(services, start, rows) as (found, frame, count):
        if found is None:
            kept, counts = _keep_files(services, start, query, frame, count)
        else:
            duplicates = found.filter(found.column("_duplicate"))
            if duplicates.num_rows:
                raise duplicate_key_error(query, duplicates)
            kept = log_rows_in_order(query.result, found, services, numbered=start.parts == 1)
            counts = summarize(found).counts
    if not any(counts):
        return counts
    if log:
        start.add(query.result, kept, counts)
    if query.relation is not None and relation_at is not None:
        table = query.relation.storage
        if isinstance(kept, pa.Table):
            start.add(table, change_rows(services, table, kept, relation_at), counts)
        else:
            assert start.attempt is not None
            start.add(table, change_files(services, table, kept, relation_at, start.attempt), counts)
    return counts


def _keep_files(
    services: Services, start: Start, query: ContinuousQuery, rows: DataFrame, count: int
) -> tuple[pa.Table | Sequence[DataFile], tuple[int, int, int]]:
    """Many rows of a delta log as files, and how many are I, D and U."""
    twice = to_arrow(rows.where("_duplicate").limit(10))
    if twice.num_rows:
        raise duplicate_key_error(query, twice)
    start.attempt = start.attempt or services.catalog.attempt("create")
    for column in query.result.columns:
        if column.name not in rows.columns:
            rows = rows.withColumn(column.name, f.lit(None).cast(column.type))
    files = write_log(services, start.attempt, query, rows, start.version - 1, start.version, rows=count)
    return files, _count_kinds(services.reader.files(files, [Column(CHANGE_TYPE, "string")]))


def _count_kinds(log: DataFrame) -> tuple[int, int, int]:
    found = {row[0]: row[1] for row in log.groupBy(CHANGE_TYPE).count().collect()}
    return found.get(INSERT, 0), found.get(DELETE, 0), found.get(UPDATE_POSTIMAGE, 0)


def keep_relation(services: Services, start: Start, query: ContinuousQuery, compiled: Compiled) -> None:
    """The result at the start's version as the first rows of the table that other queries read; none where the query is PARTIAL:
    then it has what changes bring from now on."""
    if query.verdict != PARTIAL:
        with _result(services, start, query, compiled) as result:
            _keep_relation(services, start, query, result)


def _keep_relation(
    services: Services, start: Start, query: ContinuousQuery, result: pa.Table | DataFrame
) -> None:
    assert query.relation is not None
    table = query.relation.storage
    names = [c.name for c in table.columns]
    if isinstance(result, pa.Table):
        _keep_few(start, table, first_rows_in_memory(table, result.select(names)))
    else:
        _keep(services, start, table, first_rows(table, result.select(*map(quote, names))))
