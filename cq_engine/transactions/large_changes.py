"""Changes of `apply_changes` that are too many for the driver: executors put them in order and net them.

What `replay` does in NumPy is a window over key and transaction here: the changes of a key are sorted by transaction and
order, each finds what the one before it has left, and the first and the last of a transaction are its net change. What the
tables held before is read at one version, for as long as nobody changes them: `Checked`.

This is evaluated once. Executors keep the net changes, with a flag where a step does not fit; the driver gets, of each
transaction, which kinds of change it has and whether something is wrong with it, before any file is written. What is wrong, and
where, is asked for when something is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    KINDS,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
)
from cq_engine.catalog.model import DataFile, Table
from cq_engine.context import staging
from cq_engine.context.services import Services
from cq_engine.core.columns import INTERNAL, Column
from cq_engine.core.errors import ConstraintError
from cq_engine.planner.comparable import comparable
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.persisting import persisted
from cq_engine.spark.settings import wide_settings
from cq_engine.spark.sql import quote, translate_errors
from cq_engine.spark.widths import Size, cores, file_count, size_of_rows
from cq_engine.storage.rows import change_columns, conform
from cq_engine.storage.sizes import size_at
from cq_engine.transactions.change_batches import Operation
from cq_engine.transactions.constraints import check_not_null, required_columns
from cq_engine.transactions.large_batches import OP, ORDER, RANK, ROW, Large
from cq_engine.transactions.replay import NEEDS, step_error

__all__ = ["Checked", "NetChanges", "Staged", "stage_changes"]

_BEFORE, _AFTER, _THERE = (f"{INTERNAL}{name}" for name in ("before", "after", "there"))
_STAMP, _AT, _LAST, _EACH = (f"{INTERNAL}{name}" for name in ("stamp", "at", "last", "each"))
_WRONG, _MISSING = (f"{INTERNAL}{name}" for name in ("wrong", "missing"))
_DELETES = (Operation.DELETE, Operation.PARTIAL_DELETE)


@dataclass(frozen=True)
class Staged:
    """Change rows of one table in files, and which kinds of change each version has."""

    table: Table
    files: list[DataFile]
    kinds: Mapping[int, frozenset[str]]


@dataclass(frozen=True)
class NetChanges:
    """One table's net changes, with the row before each and the row after it, how much that is, and of which kinds those of each
    transaction are, by its place."""

    batch: Large
    rows: DataFrame
    size: Size
    kinds: Mapping[int, frozenset[str]]


class Checked:
    """The changes of all tables against what these held at a version, checked. Executors keep them, and the version is held,
    until the block ends."""

    def __init__(self, services: Services, batches: Sequence[Large]) -> None:
        self._services = services
        self._batches = batches
        self._kept = ExitStack()
        self._version: int | None = None
        self._net: list[NetChanges] = []

    def __enter__(self) -> Checked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.close()

    def hold(self, version: int) -> None:
        """Says at which version `net` is wanted. Call it with the commit lock held where the version was chosen."""
        catalog, known = self._services.catalog, self._version
        if known is not None and not any(
            catalog.floor(batch.table.storage.id) > known
            or catalog.changes(batch.table.storage.id, known + 1, version)
            for batch in self._batches
        ):
            return  # what came in between is in other tables
        self._kept.close()
        self._net = []
        self._version = version
        self._kept.enter_context(self._services.read_holds.held(version))

    def net(self) -> list[NetChanges]:
        """The net changes at the version that is held.

        Raises ConstraintError: a key that is to be inserted exists, or one to be updated or deleted does not; NOT NULL.
        """
        if not self._net and self._version is not None:
            found = [self._checked(batch, self._version) for batch in self._batches]
            self._net = found
        return self._net

    def _checked(self, batch: Large, version: int) -> NetChanges:
        services, table = self._services, batch.table
        there = size_at(services.catalog, [table.storage], version)
        size = there + size_of_rows(batch.count, table.columns)
        with wide_settings(services.spark(), size.bytes, services.limits), translate_errors():
            steps = _steps(services, batch, version)
            net = self._kept.enter_context(persisted(_net(table, steps)))
            return NetChanges(batch, net, size, _kinds(table, steps, net))


def stage_changes(
    services: Services, attempt: Attempt, net: NetChanges, first: int, stamps: Sequence[datetime]
) -> Staged:
    """Writes the net change of each transaction as change rows of the version `first` + its place."""
    table, limits = net.batch.table, services.limits
    if not net.kinds:
        return Staged(table, [], {})
    with wide_settings(services.spark(), net.size.bytes, limits), translate_errors():
        rows = _change_rows(services, table, net.rows, first, stamps)
        written = size_of_rows(2 * net.batch.count, change_columns(table.storage))
        width = file_count(written, cores(services.spark()), limits, limits.staged_file_rows)
        ordered = rows.repartitionByRange(width, COMMIT_VERSION, *map(quote, table.storage.identity))
        ordered = ordered.sortWithinPartitions(COMMIT_VERSION)
        files = staging.stage_rows(services, attempt, table, ordered, "log")
    return Staged(table, files, {first + place: kinds for place, kinds in net.kinds.items()})


# ---------------------------------------------------------------- steps and net changes


def _steps(services: Services, batch: Large, version: int) -> DataFrame:
    table, rows = batch.table, batch.rows
    image = services.reader.image(table.storage, version)
    keys = [f.col(quote(name)) for name in table.storage.identity]
    named = [f"{INTERNAL}k{n}" for n in range(len(keys))]
    held = image.select(*(k.alias(n) for k, n in zip(keys, named)), _struct(table).alias(_THERE))
    same = [k.eqNullSafe(f.col(n)) for k, n in zip(keys, named)]
    rows = rows.join(held, reduce(SparkColumn.__and__, same), "left").drop(*named)
    leaves = ~f.col(OP).isin(*map(int, _DELETES))
    rows = rows.withColumn(_AFTER, f.when(leaves, _struct(table)))
    by_key = Window.partitionBy(*keys).orderBy(RANK, *_in_order())
    number, left = f.row_number().over(by_key), f.lag(_AFTER).over(by_key)
    return rows.withColumn(_BEFORE, f.when(number == 1, f.col(_THERE)).otherwise(left)).drop(_THERE)


def _in_order() -> list[SparkColumn]:
    """How the changes of a transaction come: by their order, equal ones as they were given."""
    return [f.col(ORDER).asc_nulls_last(), f.col(ROW).asc()]


def _struct(table: Table) -> SparkColumn:
    return f.struct(*(f.col(quote(c.name)) for c in table.columns))


def _is_wrong() -> SparkColumn:
    """Whether a step asks for a row that is not there, or for none where one is."""
    must = [int(each) for each, needs in NEEDS.items() if needs > 0]
    must_not = [int(each) for each, needs in NEEDS.items() if needs < 0]
    there = f.col(_BEFORE).isNotNull()
    return (f.col(OP).isin(*must) & ~there) | (f.col(OP).isin(*must_not) & there)


def _wrong_step(table: Table, steps: DataFrame) -> ConstraintError:
    """What is said of the first step that does not fit, of which there is one."""
    shown = [quote(c.name) for c in table.columns]
    found = to_arrow(steps.where(_is_wrong()).orderBy(RANK, *_in_order()).limit(1).select(OP, *shown))
    operation = Operation(found.column(OP)[0].as_py())
    row = conform(found.drop_columns([OP]), table.columns)
    return step_error(table, operation, NEEDS[operation], row)


def _missing(table: Table) -> list[SparkColumn]:
    return [f.col(_AFTER).getField(name).isNull() for name in required_columns(table)]


def _check_required(table: Table, net: DataFrame) -> None:
    """NOT NULL, of the rows that transactions leave behind: of the first such column that is NULL, the first row."""
    missing = _missing(table)
    column = reduce(
        lambda rest, n: f.when(missing[n], n).otherwise(rest),
        reversed(range(len(missing))),
        f.lit(None).cast("int"),
    )
    nulls = net.where(f.col(_AFTER).isNotNull() & reduce(SparkColumn.__or__, missing))
    found = to_arrow(nulls.orderBy(column, RANK, *_in_order()).limit(1).select(f"{_AFTER}.*"))
    if found.num_rows:
        check_not_null(table, conform(found, table.columns))


def _net(table: Table, steps: DataFrame) -> DataFrame:
    """`RANK`, `_BEFORE` and `_AFTER` of each key's transactions, without those that change nothing, `ORDER` and `ROW` of the
    first change of each, and whether any of them is wrong; those that are wrong are there in any case."""
    keys = [f.col(quote(name)) for name in table.storage.identity]
    inside = Window.partitionBy(*keys, RANK).orderBy(*_in_order())  # one order, so that rows are sorted once
    net = steps.select(
        f.col(RANK),
        *(f.first(name).over(inside).alias(name) for name in (_BEFORE, ORDER, ROW)),
        f.col(_AFTER),
        f.max(_is_wrong()).over(inside).alias(_WRONG),
        f.lead(f.lit(True)).over(inside).isNull().alias(_LAST),
    ).where(_LAST)
    same = [
        f.expr(comparable(f"{_BEFORE}.{quote(c.name)}", c.type)).eqNullSafe(
            f.expr(comparable(f"{_AFTER}.{quote(c.name)}", c.type))
        )
        for c in table.columns
    ]
    nothing = f.col(_BEFORE).isNull() & f.col(_AFTER).isNull()
    both = f.col(_BEFORE).isNotNull() & f.col(_AFTER).isNotNull()
    return net.where(f.col(_WRONG) | ~nothing & ~(both & reduce(SparkColumn.__and__, same))).drop(_LAST)


def _kinds(table: Table, steps: DataFrame, net: DataFrame) -> dict[int, frozenset[str]]:
    """Of which kinds the changes of each transaction are, by its place. Raises ConstraintError where there is something wrong."""
    before, after = f.col(_BEFORE).isNotNull(), f.col(_AFTER).isNotNull()
    kinds = {INSERT: ~before & after, DELETE: before & ~after, UPDATE_POSTIMAGE: before & after}
    missing = after & reduce(SparkColumn.__or__, _missing(table), f.lit(False))
    flags = {**kinds, _WRONG: f.col(_WRONG), _MISSING: missing}
    found = to_arrow(net.groupBy(RANK).agg(*(f.max(flag).alias(name) for name, flag in flags.items())))
    if pc.any(found.column(_WRONG)).as_py():
        raise _wrong_step(table, steps)
    if pc.any(found.column(_MISSING)).as_py():
        _check_required(table, net)
    each = zip(found.column(RANK).to_pylist(), *(found.column(kind).to_pylist() for kind in kinds))
    return {
        place: frozenset().union(*(KINDS[kind] for kind, has in zip(kinds, there) if has))
        for place, *there in each
    }


def _change_rows(
    services: Services, table: Table, net: DataFrame, first: int, stamps: Sequence[datetime]
) -> DataFrame:
    before, after = f.col(_BEFORE), f.col(_AFTER)
    old = f.struct(f.when(after.isNull(), DELETE).otherwise(UPDATE_PREIMAGE).alias("k"), before.alias("r"))
    new = f.struct(f.when(before.isNull(), INSERT).otherwise(UPDATE_POSTIMAGE).alias("k"), after.alias("r"))
    rows = (
        f.when(before.isNull(), f.array(new)).when(after.isNull(), f.array(old)).otherwise(f.array(old, new))
    )
    clock = pa.table(
        {
            _AT: pa.array(range(len(stamps)), pa.int64()),
            _STAMP: pa.array(stamps, pa.timestamp("us", tz="UTC")),
        }
    )
    times = services.reader.frame(clock, [Column(_AT, "bigint"), Column(_STAMP, "timestamp")])
    exploded = net.select(f.col(RANK), f.explode(rows).alias(_EACH))
    timed = exploded.join(times, f.col(RANK) == f.col(_AT), "left")
    shown = [f.col(f"{_EACH}.r.{quote(c.name)}").alias(c.name) for c in table.columns]
    return timed.select(
        *shown,
        f.col(f"{_EACH}.k").alias(CHANGE_TYPE),
        (f.lit(first) + f.col(RANK)).cast("bigint").alias(COMMIT_VERSION),
        f.col(_STAMP).alias(COMMIT_TIMESTAMP),
    )
