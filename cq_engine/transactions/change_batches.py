"""Batches of changes as they are given: their columns, operations and keys, and the order of their transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine.catalog.model import Table
from cq_engine.catalog.names import check_here
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, TransactionError
from cq_engine.core.types import spark_type
from cq_engine.grammar.statements import CopyInto
from cq_engine.query.query import unknown_table
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import translate_errors
from cq_engine.spark.store_assignment import select
from cq_engine.storage.identities import Numbers
from cq_engine.storage.rows import conform, identity_columns
from cq_engine.storage.uncompacted_log import group_starts
from cq_engine.transactions.commit import next_timestamp
from cq_engine.transactions.copy_into import format_of

__all__ = [
    "Batch",
    "Operation",
    "Roles",
    "Rows",
    "TooManyError",
    "operation_of",
    "order_transactions",
    "prepare",
    "rank_transactions",
    "sources_of",
    "timestamps",
    "too_many",
]

Rows: TypeAlias = "pa.Table | DataFrame | str"
"""A string is the path of CSV (with header), JSON or Parquet files."""


class Operation(IntEnum):
    """What a change does."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    UPSERT = 3
    PARTIAL_DELETE = 4
    """By key, of a row that is there or not (Jörg & Dessloch)."""
    PARTIAL_UPDATE = 5
    """The new values of a row that is there."""

    @property
    def word(self) -> str:
        """As it is written in `operations`."""
        return self.name.lower()


@dataclass(frozen=True)
class Roles:
    """Which columns say what, and what the operations' words mean."""

    op: str
    words: Mapping[str, str]
    transaction: str | None
    order: str | None
    time: str | None


@dataclass(frozen=True)
class Batch:
    """One table's changes: `rows` as physical columns, then per row its operation, transaction, order and commit time.

    Columns that are None were not named.
    """

    table: Table
    rows: pa.Table
    old_keys: pa.Table | None
    """The key columns before the change."""
    operations: Numbers
    transactions: pa.ChunkedArray | None
    orders: pa.ChunkedArray | None
    times: pa.ChunkedArray | None
    old_rows: pa.Table | None = None
    """All columns before the change, of a table WITHOUT SNAPSHOT."""

    def in_order(self, groups: Numbers) -> Numbers:
        """The places of the changes by group, those of a group by their order. Raises AnalysisError."""
        columns: dict[str, Any] = {"group": pa.array(groups)}
        if self.orders is not None:
            columns["order"] = self.orders
        return _sorted(self.table, columns)


# ---------------------------------------------------------------- what was given


def prepare(
    services: Services,
    name: str,
    given: Rows,
    roles: Roles,
) -> Batch:
    """The changes of table `name`.

    Raises AnalysisError where the table, a column or an operation is unknown; TooManyError where they are more than the
    driver takes.
    """
    table, given, present = sources_of(services, name, given, roles)
    extra = [c for c in (roles.op, roles.transaction, roles.order, roles.time) if c]
    key = table.primary_key or ()
    old = [f"old_{c}" for c in key]
    own = {c.name.lower() for c in table.columns}  # which may be called old_..., too
    has_old = bool(old) and all(c.lower() in present and c.lower() not in own for c in old)
    whole = [] if table.has_snapshot else [f"old_{c.name}" for c in table.columns]
    has_whole = bool(whole) and all(c.lower() in present and c.lower() not in own for c in whole)
    most = services.limits.apply_rows
    before = whole if has_whole else old if has_old else []
    if not isinstance(given, DataFrame) and given.num_rows > most:
        raise TooManyError
    rows, others = _columns(table, given, present, [*extra, *before], most)
    if rows.num_rows > most:
        raise TooManyError
    return Batch(
        table,
        rows,
        _old_keys(table, others, old) if has_old else None,
        _operations(table, others[roles.op], roles.words),
        others[roles.transaction] if roles.transaction else None,
        others[roles.order] if roles.order else None,
        others[roles.time] if roles.time else None,
        _old_rows(table, others) if has_whole else None,
    )


class TooManyError(Exception):
    """The driver does not take so many changes."""


def sources_of(
    services: Services, name: str, given: Rows, roles: Roles
) -> tuple[Table, pa.Table | DataFrame, dict[str, str]]:
    """The table `name`, its changes, and what their columns are called, by name in lower case. Raises AnalysisError."""
    table = services.catalog.state.tables.get(name.lower())
    if table is None:
        raise unknown_table(services.catalog.state, name)
    check_here(table, "apply_changes")
    if isinstance(given, str):
        given = _read(services, table, given)
    extra = [c for c in (roles.op, roles.transaction, roles.order, roles.time) if c]
    names = given.columns if isinstance(given, DataFrame) else given.column_names
    present = {c.lower(): c for c in names}
    for wanted in extra:
        if wanted.lower() not in present:
            raise AnalysisError(
                f"the changes of {table.name} have no column {wanted}", hint=f"they have {', '.join(names)}"
            )
    missing = [c.name for c in table.columns if c.name.lower() not in present]
    if missing:
        raise AnalysisError(
            f"the changes of {table.name} have no column {missing[0]}", hint="give every column of the table"
        )
    return table, given, present


def too_many(services: Services, table: Table, reason: str) -> AnalysisError:
    """The error where there are more changes than the driver takes, and executors cannot take them for that reason."""
    return AnalysisError(
        f"there are more than {services.limits.apply_rows} changes of {table.name}, which apply_changes does not take at once",
        detail=f"executors take more only where each is of one row: {reason}",
        hint="apply them in parts, each of whole transactions; COPY INTO and INSERT load rows without that limit",
    )


def _read(services: Services, table: Table, path: str) -> DataFrame:
    """Files of changes; in CSV the table's own columns (also as `old_`) have their types, others are inferred."""
    kind = format_of(CopyInto(table.name, path))
    reader = services.spark().read
    with translate_errors():
        if kind == "parquet":
            return reader.parquet(path)
        frame = reader.json(path) if kind == "json" else reader.csv(path, header=True, inferSchema=True)
        types = {c.name.lower(): spark_type(c.type) for c in table.columns}
        fields = [
            t.StructField(given.name, types.get(given.name.lower().removeprefix("old_"), given.dataType))
            for given in frame.schema.fields
        ]
        schema = t.StructType(fields)
        reader = reader.schema(schema).option("mode", "FAILFAST")
        return reader.json(path) if kind == "json" else reader.csv(path, header=True)


def _columns(
    table: Table, given: pa.Table | DataFrame, present: Mapping[str, str], extra: Sequence[str], most: int
) -> tuple[pa.Table, dict[str, pa.ChunkedArray]]:
    sources = [present[c.name.lower()] for c in table.columns]
    if isinstance(given, DataFrame):
        picked = select(table, table.columns, sources, given.schema)
        more = [f.col(f"`{present[c.lower()]}`").alias(f"_extra{n}") for n, c in enumerate(extra)]
        with translate_errors():
            arrow = to_arrow(given.select(*picked, *more).limit(most + 1))
        rows = conform(arrow.select([c.name for c in table.columns]), table.columns)
        return rows, {c: arrow.column(f"_extra{n}") for n, c in enumerate(extra)}
    renamed = given.select(sources).rename_columns([c.name for c in table.columns])
    try:
        rows = conform(renamed, table.columns)
    except (pa.ArrowException, ValueError) as error:
        raise AnalysisError(f"the changes do not fit table {table.name}", detail=str(error)) from error
    return rows, {c: given.column(present[c.lower()]) for c in extra}


def _old_keys(table: Table, others: Mapping[str, pa.ChunkedArray], old: Sequence[str]) -> pa.Table:
    named = pa.table({name: others[o] for name, o in zip(table.primary_key or (), old)})
    return conform(named, identity_columns(table.storage))


def _old_rows(table: Table, others: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    return conform(pa.table({c.name: others[f"old_{c.name}"] for c in table.columns}), table.columns)


def _operations(table: Table, column: pa.ChunkedArray, words: Mapping[str, str]) -> Numbers:
    places, values = _numbered(column)
    return np.array([operation_of(table, value, words) for value in values], np.int64)[places]


def operation_of(table: Table, value: object, words: Mapping[str, str]) -> Operation:
    """What an operation's word means. Raises AnalysisError."""
    word = words.get(str(value), str(value).lower())
    found = next((each for each in Operation if each.word == word), None)
    if found is None:
        raise AnalysisError(
            f"the changes of {table.name} have an unknown operation {value!r}",
            hint=f"operations maps values to {', '.join(each.word for each in Operation)}; now it has {dict(words)}",
        )
    return found


# ---------------------------------------------------------------- the order of transactions


def _numbered(column: pa.ChunkedArray) -> tuple[Numbers, list[Any]]:
    """Of each row the place of its value among the distinct values, and these in the order of their first row."""
    distinct = pc.unique(column)
    return np.asarray(pc.index_in(column, value_set=distinct), np.int64), distinct.to_pylist()


def _sorted(table: Table, columns: Mapping[str, Any]) -> Numbers:
    """The places of rows sorted by the columns, equal ones as they come."""
    rows = pa.table(dict(columns))
    try:
        found = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names])
    except (pa.ArrowException, TypeError) as error:
        raise AnalysisError(f"the changes of {table.name} cannot be ordered", detail=str(error)) from error
    return np.asarray(found, np.int64)


def _ends(batch: Batch, groups: Numbers, column: pa.ChunkedArray) -> list[tuple[int, Any, Any]]:
    """Of each group with values of the column: the group, the least and the greatest."""
    there = np.flatnonzero(np.asarray(pc.is_valid(column)))
    groups, column = groups[there], column.take(pa.array(there))
    order = _sorted(batch.table, {"group": pa.array(groups), "value": column})
    starts = group_starts(groups[order])
    ends = np.append(starts[1:], True)[: len(starts)]
    least, greatest = (column.take(pa.array(order[each])).to_pylist() for each in (starts, ends))
    return list(zip(groups[order[starts]].tolist(), least, greatest))


def rank_transactions(batches: Sequence[Batch]) -> tuple[list[Numbers], list[Any]]:
    """Of each batch the places of its rows' transactions, and the greatest commit time of each transaction in order."""
    least: dict[Any, Any] = {}
    greatest: dict[Any, Any] = {}
    numbered = []
    ordered = any(batch.orders is not None for batch in batches)
    for batch in batches:
        groups, values = np.zeros(batch.rows.num_rows, np.int64), [None]
        if batch.transactions is not None:
            groups, values = _numbered(batch.transactions)
        numbered.append((groups, values))
        for value in values if len(groups) else ():
            least.setdefault(value, None)
        for group, place, _ in _ends(batch, groups, batch.orders) if batch.orders is not None else ():
            known = least[values[group]]
            least[values[group]] = place if known is None or place < known else known
        for group, _, moment in _ends(batch, groups, batch.times) if batch.times is not None else ():
            known = greatest.get(values[group])
            greatest[values[group]] = moment if known is None or moment > known else known
    inorder = order_transactions(least, ordered=ordered)
    places = {value: n for n, value in enumerate(inorder)}
    ranks = [
        np.array([places[v] for v in values], np.int64)[groups] if len(groups) else groups
        for groups, values in numbered
    ]
    return ranks, [greatest.get(value) for value in inorder]


def order_transactions(least: Mapping[Any, Any], *, ordered: bool) -> list[Any]:
    """Transactions in order: where `ordered`, by their least orders, else by value. Raises AnalysisError."""
    try:
        return sorted(least, key=least.__getitem__ if ordered else None) if len(least) > 1 else list(least)
    except TypeError as error:
        raise AnalysisError(
            "the transactions cannot be ordered", detail=str(error), hint="name an `order` column"
        ) from error


def timestamps(
    services: Services, times: Sequence[Any], commit_time: str | datetime | None, *, clamp: bool = False
) -> list[datetime]:
    """The commit timestamp of each transaction in order; with `clamp`, the nearest one that it can have.

    Raises TransactionError where one goes back.
    """
    if not isinstance(commit_time, str):
        return [next_timestamp(services, commit_time)] * len(times)
    found: list[datetime] = []
    least, most = (services.catalog.newest_timestamp, services.now()) if clamp else (None, None)
    for value in times:
        given = _moment(value)
        if clamp and given is not None:
            given = min(given, most or given)
            given = max([given, *(each for each in (least, *found[-1:]) if each is not None)])
        moment = next_timestamp(services, given)
        if found and moment < found[-1]:
            raise TransactionError(
                f"the commit time {moment.isoformat()} lies before that of the transaction before it",
                detail=f"which is {found[-1].isoformat()}",
                hint="order the transactions by their commit time",
            )
        found.append(moment)
    return found


def _moment(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
    raise AnalysisError(f"a commit time is a timestamp, not {value!r}")
