"""Changes of `apply_changes` that are too many for the driver, as DataFrames for executors.

They are read as the driver reads fewer of them, so that both take and refuse the same: an Arrow table, which is on the driver
already, is converted there by the same functions (`change_batches.prepare`), and executors get what has come of it; the
columns of a DataFrame are assigned as Spark's INSERT does, and executors keep them. The driver has the transactions, one row
each.

Not for what needs more than one row at a time: keys that change, columns that an upsert keeps, enforced foreign keys, tables
without a key or without a snapshot. Those stay within `Limits.apply_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine.catalog.model import Table
from cq_engine.context.services import Services
from cq_engine.core.columns import INTERNAL, Column, quote
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import columns_of
from cq_engine.core.values import python_values
from cq_engine.spark.arrow_io import few_rows, to_arrow
from cq_engine.spark.persisting import persisted
from cq_engine.spark.sql import translate_errors
from cq_engine.spark.store_assignment import select
from cq_engine.transactions.change_batches import (
    Batch,
    Roles,
    Rows,
    operation_of,
    prepare,
    ranks_of,
    sources_of,
    too_many,
)
from cq_engine.transactions.transaction_order import (
    Transactions,
    in_order,
    numbered,
    role_column,
    sorted_places,
)

__all__ = ["OP", "ORDER", "RANK", "ROW", "Large", "LargeChanges", "read_large"]

OP, RANK, ORDER, ROW = (f"{INTERNAL}{name}" for name in ("op", "rank", "order", "row"))
"""Of a change: its `Operation`, the place of its transaction, its order, its place among those of equal order."""
_WORD, _TX, _TIME = (f"{INTERNAL}{name}" for name in ("word", "tx", "time"))
_OF = f"{INTERNAL}of"
_WORDS = 1_000
"""Different operations that are looked at: of more, one is unknown in any case."""


@dataclass(frozen=True)
class Large:
    """One table's changes with executors: the table's columns, `OP`, `RANK`, `ORDER` and `ROW`."""

    table: Table
    rows: DataFrame
    count: int
    check: Callable[[], None]
    """Raises AnalysisError where only the driver can apply such changes, as tables are defined now."""


@dataclass(frozen=True)
class LargeChanges:
    """The changes of all tables, and the greatest commit time of each transaction in order."""

    batches: list[Large]
    times: list[Any]


@dataclass(frozen=True)
class _Read:
    """Changes of one table, the transactions that they belong to, and what they become when these have their places."""

    table: Table
    count: int
    transactions: Transactions
    ranked: Callable[[Mapping[Any, int]], DataFrame]


@contextmanager
def read_large(
    services: Services, batches: Mapping[str, Rows], roles: Roles, keep: Mapping[str, Collection[str]]
) -> Iterator[LargeChanges]:
    """A block that has the changes, which executors keep until it ends. Raises AnalysisError as `prepare` does, and where
    only the driver can apply such changes."""
    with ExitStack() as kept:
        found: list[_Read] = []
        checks: list[Callable[[], None]] = []
        for name, given in batches.items():
            table, rows, present = sources_of(services, name, given, roles)
            checks.append(_check_of(services, table, present, keep.get(table.name, ())))
            checks[-1]()
            if isinstance(rows, DataFrame):
                found.append(_by_executors(services, table, rows, present, roles, kept))
            else:
                found.append(_by_driver(services, prepare(services, name, rows, roles, bounded=False)))
        values, times = in_order([each.transactions for each in found], ordered=roles.order is not None)
        places = {value: n for n, value in enumerate(values)}
        yield LargeChanges(
            [Large(each.table, each.ranked(places), each.count, check) for each, check in zip(found, checks)],
            times,
        )


def _check_of(
    services: Services, table: Table, present: Collection[str], keep: Collection[str]
) -> Callable[[], None]:
    own = {c.name.lower() for c in table.columns}
    moves = any(
        f"old_{c.lower()}" in present and f"old_{c.lower()}" not in own for c in table.primary_key or ()
    )

    def check() -> None:
        related = any(
            key.enforced and table.name.lower() in (each.name.lower(), key.references.lower())
            for each in services.catalog.state.tables.values()
            for key in each.foreign_keys
        )
        for reason, holds in (
            ("it has no PRIMARY KEY", table.storage.has_row_id),
            ("it has no snapshot", not table.has_snapshot),
            ("its columns old_… say keys before the change", moves),
            ("columns are kept of rows that are there", bool(keep)),
            ("an ENFORCED foreign key is checked after every commit", related),
        ):
            if holds:
                raise too_many(services, table, reason)

    return check


def _check_count(services: Services, transactions: int) -> None:
    most = services.limits.apply_rows
    if transactions > most:
        raise AnalysisError(
            f"there are more than {most} transactions, which apply_changes does not take at once",
            hint="apply them in parts",
        )


# ---------------------------------------------------------------- an Arrow table


def _by_driver(services: Services, batch: Batch) -> _Read:
    table, count = batch.table, batch.rows.num_rows
    groups, transactions = batch.transactions_of()
    _check_count(services, len(transactions.values))

    def ranked(places: Mapping[Any, int]) -> DataFrame:
        ranks = ranks_of(groups, transactions, places) if count else groups
        row = np.empty(count, np.int64)
        row[batch.in_order(ranks)] = np.arange(count)
        rows = batch.rows.append_column(OP, pa.array(batch.operations, pa.int32()))
        rows = rows.append_column(RANK, pa.array(ranks)).append_column(ROW, pa.array(row))
        more = [Column(OP, "int"), Column(RANK, "bigint"), Column(ROW, "bigint")]
        return services.reader.frame(rows, [*table.columns, *more]).withColumn(ORDER, _nothing())

    return _Read(table, count, transactions, ranked)


# ---------------------------------------------------------------- a DataFrame


def _by_executors(
    services: Services,
    table: Table,
    frame: DataFrame,
    present: Mapping[str, str],
    roles: Roles,
    kept: ExitStack,
) -> _Read:
    named = ((_WORD, roles.op), (_TX, roles.transaction), (ORDER, roles.order), (_TIME, roles.time))
    with translate_errors():
        sources = [present[c.name.lower()] for c in table.columns]
        picked = select(table, table.columns, sources, frame.schema)
        more = [_role(frame, present, name).alias(alias) for alias, name in named]
        rows = frame.select(*picked, *more, f.monotonically_increasing_id().alias(ROW))
        rows = kept.enter_context(persisted(rows))
        count = rows.count()
        _check_roles(table, rows, [(alias, name) for alias, name in named if name is not None])
        rows = _with_operations(services, table, rows, roles)
        known = _transactions(services, rows)
    values = python_values(known.column(_TX))
    least, greatest = (python_values(known.column(name)) for name in ("least", "greatest"))

    def ranked(places: Mapping[Any, int]) -> DataFrame:
        if roles.transaction is None:
            return rows.withColumn(RANK, f.lit(0).cast("bigint")).drop(_TX, _TIME)
        ranks = pa.array([places[value] for value in values], pa.int64())
        return _beside(services, rows, _TX, known.column(_TX), Column(RANK, "bigint"), ranks).drop(_TIME)

    return _Read(table, count, Transactions(values, least, greatest), ranked)


def _nothing() -> SparkColumn:
    return f.lit(None).cast("int")


def _role(frame: DataFrame, present: Mapping[str, str], name: str | None) -> SparkColumn:
    """A column that says something of the changes, as the driver compares its values: text by its bytes."""
    if name is None:
        return _nothing()
    kind = frame.schema[present[name.lower()]].dataType
    if isinstance(kind, t.NullType):
        return _nothing()
    column = f.col(quote(present[name.lower()]))
    if isinstance(kind, t.StringType) and kind.collation != "UTF8_BINARY":
        return f.collate(column, "UTF8_BINARY")
    return column


def _check_roles(table: Table, rows: DataFrame, named: Collection[tuple[str, str]]) -> None:
    """What the driver says of the types of these columns."""
    none = to_arrow(rows.select(*(alias for alias, _ in named)).limit(0))
    told = {alias: role_column(table, name, none.column(alias)) for alias, name in named}
    for alias, column in told.items():
        if alias in (ORDER, _TIME):
            sorted_places(table, {alias: column})
        else:
            numbered(column)


def _with_operations(services: Services, table: Table, rows: DataFrame, roles: Roles) -> DataFrame:
    """Beside each change its operation, in the place of its word."""
    words = rows.groupBy(_WORD).agg(f.min(ROW).alias("first")).orderBy("first").limit(_WORDS + 1)
    found = to_arrow(words)
    known = [int(operation_of(table, each, roles.words)) for each in python_values(found.column(_WORD))]
    if len(known) > _WORDS:
        raise AnalysisError(f"the changes of {table.name} have more than {_WORDS} different operations")
    operations = pa.array(known, pa.int32())
    return _beside(services, rows, _WORD, found.column(_WORD), Column(OP, "int"), operations)


def _transactions(services: Services, rows: DataFrame) -> pa.Table:
    """Every transaction with its least order and its greatest commit time, in the order of their first change."""
    groups = rows.groupBy(_TX).agg(
        f.min(ORDER).alias("least"), f.max(_TIME).alias("greatest"), f.min(ROW).alias("first")
    )
    found = few_rows(groups, services.limits.apply_rows)
    if found is None:
        _check_count(services, services.limits.apply_rows + 1)
    assert found is not None
    return found.sort_by("first")  # those with the same `order` come as they were given


def _beside(
    services: Services, rows: DataFrame, name: str, values: pa.ChunkedArray, column: Column, what: pa.Array
) -> DataFrame:
    """The rows with `column`, which has of each of the `values` of column `name` what is said, in the place of that one."""
    (of,) = columns_of(rows.select(f.col(name).alias(_OF)).schema)
    known = services.reader.frame(pa.table({_OF: values, column.name: what}), [of, column])
    return rows.join(known, f.col(name).eqNullSafe(f.col(_OF)), "left").drop(_OF, name)
