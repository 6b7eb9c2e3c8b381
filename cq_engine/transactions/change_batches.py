"""Batches of changes as they are given: their columns, operations and keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine.catalog.model import Table
from cq_engine.catalog.names import check_here
from cq_engine.context.services import Services
from cq_engine.core.columns import INTERNAL, quote
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import spark_type
from cq_engine.grammar.statements import CopyInto
from cq_engine.query.query import unknown_table
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import translate_errors
from cq_engine.spark.store_assignment import select
from cq_engine.storage.identities import Numbers
from cq_engine.storage.rows import conform, identity_columns
from cq_engine.transactions.copy_into import format_of
from cq_engine.transactions.input_rows import fitted
from cq_engine.transactions.transaction_order import (
    Transactions,
    in_order,
    numbered,
    role_column,
    sorted_places,
    transactions_of,
)

__all__ = [
    "Batch",
    "Operation",
    "Roles",
    "Rows",
    "TooManyError",
    "operation_of",
    "prepare",
    "rank_transactions",
    "ranks_of",
    "sources_of",
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

    @property
    def named(self) -> list[str]:
        """The columns that were named."""
        return [name for name in (self.op, self.transaction, self.order, self.time) if name]


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
        return sorted_places(self.table, columns)

    def transactions_of(self) -> tuple[Numbers, Transactions]:
        """Of each change the place of its transaction among the batch's, and these. Raises AnalysisError."""
        return transactions_of(self.table, self.rows.num_rows, self.transactions, self.orders, self.times)


# ---------------------------------------------------------------- what was given


def prepare(services: Services, name: str, given: Rows, roles: Roles, *, bounded: bool = True) -> Batch:
    """The changes of table `name`.

    Raises AnalysisError where the table, a column or an operation is unknown, or a value does not fit; TooManyError where they
    are more than the driver takes, but for an Arrow table that need not be `bounded`: it is on the driver already.
    """
    table, given, present = sources_of(services, name, given, roles)
    key = table.primary_key or ()
    old = [f"old_{c}" for c in key]
    own = {c.name.lower() for c in table.columns}  # which may be called old_..., too
    has_old = bool(old) and all(c.lower() in present and c.lower() not in own for c in old)
    whole = [] if table.has_snapshot else [f"old_{c.name}" for c in table.columns]
    has_whole = bool(whole) and all(c.lower() in present and c.lower() not in own for c in whole)
    most = services.limits.apply_rows
    before = whole if has_whole else old if has_old else []
    if bounded and not isinstance(given, DataFrame) and given.num_rows > most:
        raise TooManyError
    rows, others = _columns(table, given, present, [*roles.named, *before], most)
    if bounded and rows.num_rows > most:
        raise TooManyError
    old_keys = _old_keys(table, others, old) if has_old else None
    told = {name: role_column(table, name, others[name]) for name in roles.named}
    return Batch(
        table,
        rows,
        old_keys,
        _operations(table, told[roles.op], roles.words),
        told[roles.transaction] if roles.transaction else None,
        told[roles.order] if roles.order else None,
        told[roles.time] if roles.time else None,
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
    names = given.columns if isinstance(given, DataFrame) else given.column_names
    present = {c.lower(): c for c in names}
    for wanted in roles.named:
        if wanted.lower() not in present:
            raise AnalysisError(
                f"the changes of {table.name} have no column {wanted}", hint=f"they have {', '.join(names)}"
            )
    missing = [c.name for c in table.columns if c.name.lower() not in present]
    if missing:
        raise AnalysisError(
            f"the changes of {table.name} have no column {missing[0]}", hint="give every column of the table"
        )
    _check_once(table, names, [*roles.named, *(c.name for c in table.columns)])
    return table, given, present


def _check_once(table: Table, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises AnalysisError where a column that is read stands twice, in whatever case."""
    often = Counter(name.lower() for name in names)
    for name in (*wanted, *(f"old_{each}" for each in wanted)):
        if often[name.lower()] > 1:
            alike = [each for each in names if each.lower() == name.lower()]
            raise AnalysisError(
                f"the changes of {table.name} have column {name} twice",
                detail=f"names are the same in whatever case: {', '.join(alike)}",
            )


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
        with translate_errors():
            picked = select(table, table.columns, sources, given.schema)
            more = [
                f.col(quote(present[c.lower()])).alias(f"{INTERNAL}extra{n}") for n, c in enumerate(extra)
            ]
            arrow = to_arrow(given.select(*picked, *more).limit(most + 1))
        rows = conform(arrow.select([c.name for c in table.columns]), table.columns)
        return rows, {c: arrow.column(f"{INTERNAL}extra{n}") for n, c in enumerate(extra)}
    renamed = given.select(sources).rename_columns([c.name for c in table.columns])
    rows = fitted(table, renamed, table.columns)
    return rows, {c: given.column(present[c.lower()]) for c in extra}


def _old_keys(table: Table, others: Mapping[str, pa.ChunkedArray], old: Sequence[str]) -> pa.Table:
    named = pa.table({name: others[o] for name, o in zip(table.primary_key or (), old)})
    return fitted(table, named, identity_columns(table.storage), prefix="old_")


def _old_rows(table: Table, others: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    named = pa.table({c.name: others[f"old_{c.name}"] for c in table.columns})
    return fitted(table, named, table.columns, prefix="old_")


def _operations(table: Table, column: pa.ChunkedArray, words: Mapping[str, str]) -> Numbers:
    places, values = numbered(column)
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


def rank_transactions(batches: Sequence[Batch]) -> tuple[list[Numbers], list[Any]]:
    """Of each batch the places of its rows' transactions, and the greatest commit time of each transaction in order. Raises
    AnalysisError."""
    found = [batch.transactions_of() for batch in batches]
    ordered = any(batch.orders is not None for batch in batches)
    values, times = in_order([each for _, each in found], ordered=ordered)
    places = {value: n for n, value in enumerate(values)}
    return [ranks_of(groups, each, places) for groups, each in found], times


def ranks_of(groups: Numbers, transactions: Transactions, places: Mapping[Any, int]) -> Numbers:
    """Of each change the place of its transaction among all."""
    return np.array([places[value] for value in transactions.values], np.int64)[groups]
