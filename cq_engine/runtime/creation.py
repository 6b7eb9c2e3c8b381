"""What a new continuous query starts from: the rows of its states at a version, and its first snapshot delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from cq_engine.algebra.emit import Emitter, quote
from cq_engine.catalog import tables
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.model import ContinuousQuery, DataFile, VersionedTable
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.delta.aggregate import initial_state
from cq_engine.errors import ResultKeyError
from cq_engine.planner.compiled import KEY_STATE, Compiled, StoredAggregate
from cq_engine.planner.finish import log_rows
from cq_engine.runtime.binding import ImageBinder
from cq_engine.runtime.query import Resolver
from cq_engine.runtime.refresh import duplicate_key, log_rows_in_order
from cq_engine.runtime.rows import change_columns, conform
from cq_engine.runtime.services import Services
from cq_engine.runtime.sql import fresh_name, run_sql, translate_spark_error
from cq_engine.runtime.staging import ROW_GROUPS

__all__ = ["Start", "prepare_start"]

SMALL_START = 100_000
"""A state or snapshot of at most so many rows goes through the driver."""


@dataclass
class Start:
    """What `write` puts into the unit of work that creates the query."""

    version: int
    inline: list[tuple[VersionedTable, pa.Table]] = field(default_factory=list)
    files: list[tuple[VersionedTable, list[DataFile]]] = field(default_factory=list)
    attempt: Attempt | None = None

    def write(self, unit: UnitOfWork) -> None:
        for table, rows in self.inline:
            unit.add_changes(table, self.version, self.version, rows)
        for table, files in self.files:
            unit.add_change_files(
                table,
                self.version,
                self.version,
                files,
                frozenset({"INSERT"}),
                insert_only=table.kind != "delta",
            )


def prepare_start(
    services: Services, query: ContinuousQuery, compiled: Compiled, version: int, snapshot: bool
) -> Start:
    """Computes the query's states at `version` and, with `snapshot`, its result as I rows.

    Raises ResultKeyError where the result at `version` has two rows with one declared key; AnalysisError or CQError
    where Spark cannot evaluate the query.
    """
    start = Start(version)
    states = dict(query.states)
    for each in compiled.states:
        frame = _state_frame(services, compiled, each, version)
        table = states[each.state.label]
        if each.state.label == KEY_STATE:
            _check_keys(query, compiled, services, frame, version, each)
        _keep(services, start, table, frame)
    if snapshot:
        _keep_snapshot(services, start, query, compiled)
    return start


def _state_frame(services: Services, compiled: Compiled, stored: StoredAggregate, version: int) -> DataFrame:
    storages = {name: table.storage for name, table in compiled.sources.items()}
    binder = ImageBinder(services.reader, storages, version)
    node = initial_state(stored.node, stored.state)
    text = Emitter(binder).statement("SELECT * FROM {0}", node)
    try:
        return run_sql(services.spark(), text, binder.relations)
    except PySparkException as error:
        raise translate_spark_error(error) from error


def _collect(frame: DataFrame) -> pa.Table | None:
    """The rows, or None where they are many."""
    try:
        rows = frame.limit(SMALL_START + 1).toArrow()
    except PySparkException as error:
        raise translate_spark_error(error) from error
    return rows if rows.num_rows <= SMALL_START else None


def _keep(services: Services, start: Start, table: VersionedTable, frame: DataFrame) -> None:
    rows = _collect(frame)
    if rows is not None:
        kinds = pa.array(["insert"] * rows.num_rows, pa.string())
        versions = pa.array([start.version] * rows.num_rows, pa.int64())
        shown = rows.append_column("_change_type", kinds).append_column("_commit_version", versions)
        start.inline.append((table, conform(shown, change_columns(table))))
        return
    start.attempt = start.attempt or services.catalog.attempt("create")
    directory = f"{start.attempt.directory(table, 'snapshot')}/{table.id}"
    keys = [quote(k) for k in table.identity]
    shown = frame.select(*(quote(c.name) for c in table.columns))
    if keys:
        shown = shown.repartitionByRange(4, *keys).sortWithinPartitions(*keys)
    shown.write.options(**ROW_GROUPS).parquet(directory)
    start.files.append((table, tables.data_files(directory, services.catalog.warehouse, table.identity)))


def _check_keys(
    query: ContinuousQuery,
    compiled: Compiled,
    services: Services,
    frame: DataFrame,
    version: int,
    stored: StoredAggregate,
) -> None:
    twice = frame.where("_n > 1").limit(1).toArrow()
    if twice.num_rows == 0:
        return
    names = query.key or ()
    values = [twice.column(k)[0].as_py() for k in stored.keys]
    result = Resolver(services, version).frame(compiled.text).toDF(*(c.name for c in compiled.columns))
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


def _keep_snapshot(services: Services, start: Start, query: ContinuousQuery, compiled: Compiled) -> None:
    from cq_engine.runtime.bulk_delta import write_log

    name = fresh_name("result")
    names = [c.name for c in compiled.columns]
    result = Resolver(services, start.version).frame(compiled.text).toDF(*names)
    shown = ", ".join(map(quote, names))
    signed = f"(SELECT {shown}, CAST({start.version} AS bigint) AS _v, 1 AS _w FROM {name})"
    frame = run_sql(services.spark(), log_rows(signed, names, compiled.key), {name: result})
    rows = _collect(frame)
    if rows is None:
        start.attempt = start.attempt or services.catalog.attempt("create")
        files = write_log(services, start.attempt, query, frame, start.version - 1, start.version)
        start.files.append((query.result, files))
        return
    duplicates = rows.filter(rows.column("_duplicate"))
    if duplicates.num_rows:
        raise duplicate_key(query, duplicates)
    if rows.num_rows:
        start.inline.append((query.result, log_rows_in_order(query.result, rows, services)))


def scalar_states(stored: Sequence[StoredAggregate]) -> bool:
    """True if a state has a row even over empty tables."""
    return any(not each.keys for each in stored)
