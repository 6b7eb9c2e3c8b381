"""Changes of `apply_changes` that are too many for the driver: executors put them in order and net them.

What `replay` does in NumPy is a window over key and transaction here: the changes of a key are sorted by transaction and
order, each finds what the one before it has left, and the first and the last of a transaction are its net change. The driver
has the transactions, one row each, and what it shows of an error.

Not for what needs more than one row at a time: keys that change, columns that an upsert keeps, enforced foreign keys, tables
without a key or without a snapshot. Those stay within `Limits.apply_rows`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.model import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    KINDS,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    DataFile,
    Table,
)
from cq_engine.context import staging
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import columns_of
from cq_engine.planner.comparable import comparable
from cq_engine.spark.arrow_io import few_rows, to_arrow
from cq_engine.spark.persisting import persisted
from cq_engine.spark.settings import wide_settings
from cq_engine.spark.sql import quote, translate_errors
from cq_engine.spark.store_assignment import select
from cq_engine.spark.widths import cores, file_count, size_of_rows
from cq_engine.storage.rows import change_columns
from cq_engine.storage.sizes import size_at
from cq_engine.transactions.change_batches import (
    Operation,
    Roles,
    Rows,
    operation_of,
    order_transactions,
    sources_of,
    too_many,
)
from cq_engine.transactions.constraints import check_not_null, required_columns
from cq_engine.transactions.replay import NEEDS, step_error

__all__ = ["Large", "Staged", "ranked", "read_large", "stage_changes"]

_OP, _TX, _ORDER, _TIME, _ROW = "_cq_op", "_cq_tx", "_cq_order", "_cq_time", "_cq_row"
_RANK, _STAMP = "_cq_rank", "_cq_stamp"
_WORDS = 1_000
"""Different operations that are looked at: of more, one is unknown in any case."""
_DELETES = (Operation.DELETE, Operation.PARTIAL_DELETE)


@dataclass(frozen=True)
class Large:
    """One table's changes with executors: the table's columns, and what each change is."""

    table: Table
    rows: DataFrame
    count: int


@dataclass(frozen=True)
class Staged:
    """Change rows of one table in files, and which kinds of change each version has."""

    table: Table
    files: list[DataFile]
    kinds: Mapping[int, frozenset[str]]


@contextmanager
def read_large(
    services: Services, batches: Mapping[str, Rows], roles: Roles, keep: Mapping[str, Collection[str]]
) -> Iterator[list[Large]]:
    """A block that has the changes, which executors keep until it ends. Raises AnalysisError."""
    with ExitStack() as kept:
        found = []
        for name, given in batches.items():
            table, frame = _frame(services, name, given, roles)
            _check_plain(services, table, frame, keep)
            rows = kept.enter_context(persisted(_renamed(table, frame, roles)))
            with translate_errors():
                found.append(Large(table, rows, rows.count()))
        yield found


def _frame(services: Services, name: str, given: Rows, roles: Roles) -> tuple[Table, DataFrame]:
    table, given, _ = sources_of(services, name, given, roles)
    frame = given if isinstance(given, DataFrame) else services.spark().createDataFrame(given)
    return table, frame


def _check_plain(
    services: Services, table: Table, frame: DataFrame, keep: Mapping[str, Collection[str]]
) -> None:
    """Raises AnalysisError where only the driver can apply such changes."""
    names = {name.lower() for name in frame.columns}
    own = {c.name.lower() for c in table.columns}
    state = services.catalog.state
    related = [k for t in state.tables.values() for k in t.foreign_keys if k.enforced and (t is table or k.references.lower() == table.name.lower())]  # fmt: skip
    for reason, holds in (
        ("it has no PRIMARY KEY", table.storage.has_row_id),
        ("it has no snapshot", not table.has_snapshot),
        ("its columns old_… say keys before the change", any(f"old_{c.lower()}" in names - own for c in table.primary_key or ())),
        ("columns are kept of rows that are there", bool(keep.get(table.name))),
        ("an ENFORCED foreign key is checked after every commit", bool(related)),
    ):  # fmt: skip
        if holds:
            raise too_many(services, table, reason)


def _renamed(table: Table, frame: DataFrame, roles: Roles) -> DataFrame:
    """The table's columns, and beside them operation, transaction, order, time and the place of each change."""
    present = {name.lower(): name for name in frame.columns}
    shown = select(table, table.columns, [present[c.name.lower()] for c in table.columns], frame.schema)
    for alias, role in ((_TX, roles.transaction), (_ORDER, roles.order), (_TIME, roles.time)):
        shown.append(f.lit(None).cast("int").alias(alias) if role is None else f.col(quote(present[role.lower()])).alias(alias))  # fmt: skip
    words = f.col(quote(present[roles.op.lower()])).cast("string")
    found = few_rows(frame.select(words.alias("op")).distinct(), _WORDS)
    if found is None:
        raise AnalysisError(f"the changes of {table.name} have more than {_WORDS} different operations")
    operation = f.lit(None).cast("int")
    for value in found.column("op").to_pylist():
        known = operation_of(table, value, roles.words)
        operation = f.when(words.eqNullSafe(f.lit(value)), f.lit(int(known))).otherwise(operation)
    return frame.select(*shown, operation.alias(_OP), f.monotonically_increasing_id().alias(_ROW))


# ---------------------------------------------------------------- transactions


@dataclass(frozen=True)
class Ranked:
    """Every transaction with its place, as a relation for the executors, and the greatest commit times in order."""

    places: pa.Table
    columns: list[Column]
    times: list[Any]


def ranked(services: Services, batches: Sequence[Large], roles: Roles) -> Ranked:
    """The transactions in order: by their least `order`, else by value. Raises AnalysisError."""
    parts, most = [], services.limits.apply_rows
    for batch in batches:
        groups = batch.rows.groupBy(_TX).agg(
            f.min(_ORDER).alias("least"), f.max(_TIME).alias("greatest"), f.min(_ROW).alias("first")
        )
        found = few_rows(groups, most)
        if found is None:
            raise AnalysisError(
                f"there are more than {most} transactions, which apply_changes does not take at once",
                hint="apply them in parts",
            )
        parts.append(found.sort_by("first"))  # those with the same `order` come as they were given
    least: dict[Any, Any] = {}
    greatest: dict[Any, Any] = {}
    for part in parts:
        for value, low, high in zip(*(part.column(n).to_pylist() for n in (_TX, "least", "greatest"))):
            known = least.setdefault(value, None)
            least[value] = low if known is None or (low is not None and low < known) else known
            seen = greatest.get(value)
            greatest[value] = high if seen is None or (high is not None and high > seen) else seen
    inorder = order_transactions(least, ordered=roles.order is not None)
    kind = parts[0].schema.field(_TX).type
    places = pa.table({_TX: pa.array(inorder, kind), _RANK: pa.array(range(len(inorder)), pa.int64())})
    columns = [*columns_of(batches[0].rows.select(_TX).schema), Column(_RANK, "bigint")]
    return Ranked(places, columns, [greatest.get(value) for value in inorder])


# ---------------------------------------------------------------- net changes


def stage_changes(
    services: Services,
    attempt: Attempt,
    batch: Large,
    ranks: Ranked,
    first: int,
    stamps: Sequence[datetime],
) -> Staged:
    """Writes the net change of each transaction as change rows of the version `first` + its place.

    Raises ConstraintError: a key that is to be inserted exists, or one to be updated or deleted does not; NOT NULL.
    """
    table, limits = batch.table, services.limits
    there = size_at(services.catalog, [table.storage], services.catalog.newest_version)
    size = there + size_of_rows(batch.count, table.columns)
    with wide_settings(services.spark(), size.bytes, limits), translate_errors():
        with persisted(_steps(services, batch, ranks)) as steps:
            _check_steps(table, steps)
            net = _net(table, steps)
            _check_required(table, net)
            rows = _change_rows(services, table, net, first, stamps)
            written = size_of_rows(2 * batch.count, change_columns(table.storage))
            width = file_count(written, cores(services.spark()), limits, limits.staged_file_rows)
            ordered = rows.repartitionByRange(width, COMMIT_VERSION, *map(quote, table.storage.identity))
            ordered = ordered.sortWithinPartitions(COMMIT_VERSION)
            files = staging.stage_rows(services, attempt, table, ordered, "log")
        names = [Column(COMMIT_VERSION, "bigint"), Column(CHANGE_TYPE, "string")]
        pairs = to_arrow(services.reader.files(files, names).distinct())
    kinds: dict[int, frozenset[str]] = {}
    for version, kind in zip(*(pairs.column(c.name).to_pylist() for c in names)):
        kinds[version] = kinds.get(version, frozenset()) | KINDS[kind]
    return Staged(table, files, kinds)


def _steps(services: Services, batch: Large, ranks: Ranked) -> DataFrame:
    """The changes in the order of their keys, each with the row before it (`_cq_before`), and with the row after it."""
    table = batch.table
    rank = services.reader.frame(ranks.places, ranks.columns).withColumnRenamed(_TX, "_cq_tx_of")
    rows = batch.rows.join(rank, f.col(_TX).eqNullSafe(f.col("_cq_tx_of")), "left").drop("_cq_tx_of", _TX)
    image = services.reader.image(table.storage, services.catalog.newest_version)
    keys = [f.col(quote(name)) for name in table.storage.identity]
    held = image.select(
        *(k.alias(f"_cq_k{n}") for n, k in enumerate(keys)), _struct(table).alias("_cq_there")
    )
    same = [k.eqNullSafe(f.col(f"_cq_k{n}")) for n, k in enumerate(keys)]
    rows = rows.join(held, reduce(SparkColumn.__and__, same), "left").drop(
        *(f"_cq_k{n}" for n in range(len(keys)))
    )
    leaves = ~f.col(_OP).isin(*map(int, _DELETES))
    rows = rows.withColumn("_cq_after", f.when(leaves, _struct(table)))
    by_key = Window.partitionBy(*keys).orderBy(_RANK, *_in_order())
    number, left = f.row_number().over(by_key), f.lag("_cq_after").over(by_key)
    return rows.withColumn("_cq_before", f.when(number == 1, f.col("_cq_there")).otherwise(left)).drop(
        "_cq_there"
    )


def _in_order() -> list[SparkColumn]:
    """How the changes of a transaction come: by their order, equal ones as they were given."""
    return [f.col(_ORDER).asc_nulls_last(), f.col(_ROW).asc()]


def _struct(table: Table) -> SparkColumn:
    return f.struct(*(f.col(quote(c.name)) for c in table.columns))


def _check_steps(table: Table, steps: DataFrame) -> None:
    must = [int(each) for each, needs in NEEDS.items() if needs > 0]
    must_not = [int(each) for each, needs in NEEDS.items() if needs < 0]
    there = f.col("_cq_before").isNotNull()
    wrong = (f.col(_OP).isin(*must) & ~there) | (f.col(_OP).isin(*must_not) & there)
    shown = [quote(c.name) for c in table.columns]
    found = to_arrow(steps.where(wrong).orderBy(_RANK, *_in_order()).limit(1).select(_OP, *shown))
    if found.num_rows:
        operation = Operation(found.column(_OP)[0].as_py())
        raise step_error(table, operation, NEEDS[operation], found.drop_columns([_OP]))


def _check_required(table: Table, net: DataFrame) -> None:
    """NOT NULL, of the rows that transactions leave behind."""
    required = required_columns(table)
    if required:
        after = f.col("_cq_after")
        missing = reduce(SparkColumn.__or__, (after.getField(name).isNull() for name in required))
        nulls = to_arrow(net.where(missing & after.isNotNull()).limit(1).select("_cq_after.*"))
        if nulls.num_rows:
            check_not_null(table, nulls)


def _net(table: Table, steps: DataFrame) -> DataFrame:
    """`_cq_rank`, `_cq_before` and `_cq_after` of each key's transactions, without those that change nothing."""
    keys = [f.col(quote(name)) for name in table.storage.identity]
    inside = Window.partitionBy(*keys, _RANK).orderBy(*_in_order())
    last = Window.partitionBy(*keys, _RANK).orderBy(f.col(_ORDER).desc_nulls_first(), f.col(_ROW).desc())
    net = steps.select(
        f.col(_RANK),
        f.first("_cq_before").over(inside).alias("_cq_before"),
        f.col("_cq_after"),
        f.row_number().over(last).alias("_cq_last"),
    ).where(f.col("_cq_last") == 1)
    same = [
        f.expr(comparable(f"_cq_before.{quote(c.name)}", c.type)).eqNullSafe(
            f.expr(comparable(f"_cq_after.{quote(c.name)}", c.type))
        )
        for c in table.columns
    ]
    nothing = f.col("_cq_before").isNull() & f.col("_cq_after").isNull()
    both = f.col("_cq_before").isNotNull() & f.col("_cq_after").isNotNull()
    return net.where(~nothing & ~(both & reduce(SparkColumn.__and__, same)))


def _change_rows(
    services: Services, table: Table, net: DataFrame, first: int, stamps: Sequence[datetime]
) -> DataFrame:
    before, after = f.col("_cq_before"), f.col("_cq_after")
    old = f.struct(f.when(after.isNull(), DELETE).otherwise(UPDATE_PREIMAGE).alias("k"), before.alias("r"))
    new = f.struct(f.when(before.isNull(), INSERT).otherwise(UPDATE_POSTIMAGE).alias("k"), after.alias("r"))
    rows = (
        f.when(before.isNull(), f.array(new)).when(after.isNull(), f.array(old)).otherwise(f.array(old, new))
    )
    clock = pa.table(
        {
            "_cq_at": pa.array(range(len(stamps)), pa.int64()),
            _STAMP: pa.array(stamps, pa.timestamp("us", tz="UTC")),
        }
    )
    times = services.reader.frame(clock, [Column("_cq_at", "bigint"), Column(_STAMP, "timestamp")])
    exploded = net.select(f.col(_RANK), f.explode(rows).alias("_cq_e"))
    timed = exploded.join(times, f.col(_RANK) == f.col("_cq_at"), "left")
    shown = [f.col(f"_cq_e.r.{quote(c.name)}").alias(c.name) for c in table.columns]
    return timed.select(
        *shown,
        f.col("_cq_e.k").alias(CHANGE_TYPE),
        (f.lit(first) + f.col(_RANK)).cast("bigint").alias(COMMIT_VERSION),
        f.col(_STAMP).alias(COMMIT_TIMESTAMP),
    )
