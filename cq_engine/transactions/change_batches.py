"""Batches of changes as they are given: their columns, operations and keys, and the order of their transactions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine.catalog.model import Table
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, TransactionError
from cq_engine.core.types import spark_type
from cq_engine.grammar.statements import CopyInto
from cq_engine.query.query import unknown_table
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import translate_errors
from cq_engine.spark.store_assignment import select
from cq_engine.storage.rows import conform, identity_columns, identity_keys
from cq_engine.transactions.commit import next_timestamp
from cq_engine.transactions.copy_into import format_of

__all__ = ["Batch", "Roles", "Rows", "prepare", "rank_transactions", "timestamps"]

_ALLOWED = ("insert", "update", "delete", "upsert")
Rows: TypeAlias = "pa.Table | DataFrame | str"
"""A string is the path of CSV (with header), JSON or Parquet files."""


@dataclass(frozen=True)
class Roles:
    """Which columns say what, and what the operations' words mean."""

    op: str
    words: Mapping[str, str]
    transaction: str | None
    order: str | None
    time: str | None


@dataclass
class Batch:
    """One table's changes: `rows` as physical columns, then per row its operation, transaction and order."""

    table: Table
    rows: pa.Table
    old_keys: list[Hashable] | None
    operations: list[str]
    transactions: list[Any]
    orders: list[Any]
    times: list[Any]


# ---------------------------------------------------------------- what was given


def prepare(
    services: Services,
    name: str,
    given: Rows,
    roles: Roles,
) -> Batch:
    """The changes of table `name`. Raises AnalysisError where the table, a column or an operation is unknown."""
    table = services.catalog.state.tables.get(name.lower())
    if table is None:
        raise unknown_table(services.catalog.state, name)
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
    key = table.primary_key or ()
    old = [f"old_{c}" for c in key]
    has_old = bool(old) and all(c.lower() in present for c in old)
    rows, others = _columns(table, given, present, [*extra, *(old if has_old else [])])
    ops = [_operation(table, value, roles.words) for value in others[roles.op].to_pylist()]
    count = rows.num_rows
    return Batch(
        table,
        rows,
        _old_keys(table, others, old) if has_old else None,
        ops,
        others[roles.transaction].to_pylist() if roles.transaction else [None] * count,
        others[roles.order].to_pylist() if roles.order else list(range(count)),
        others[roles.time].to_pylist() if roles.time else [None] * count,
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
    table: Table, given: pa.Table | DataFrame, present: Mapping[str, str], extra: Sequence[str]
) -> tuple[pa.Table, dict[str, pa.ChunkedArray]]:
    sources = [present[c.name.lower()] for c in table.columns]
    if isinstance(given, DataFrame):
        picked = select(table, table.columns, sources, given.schema)
        more = [f.col(f"`{present[c.lower()]}`").alias(f"_extra{n}") for n, c in enumerate(extra)]
        with translate_errors():
            arrow = to_arrow(given.select(*picked, *more))
        rows = conform(arrow.select([c.name for c in table.columns]), table.columns)
        return rows, {c: arrow.column(f"_extra{n}") for n, c in enumerate(extra)}
    renamed = given.select(sources).rename_columns([c.name for c in table.columns])
    try:
        rows = conform(renamed, table.columns)
    except (pa.ArrowException, ValueError) as error:
        raise AnalysisError(f"the changes do not fit table {table.name}", detail=str(error)) from error
    return rows, {c: given.column(present[c.lower()]) for c in extra}


def _old_keys(table: Table, others: Mapping[str, pa.ChunkedArray], old: Sequence[str]) -> list[Hashable]:
    key = table.primary_key or ()
    columns = identity_columns(table.storage)
    named = pa.table({name: others[o] for name, o in zip(key, old)})
    return identity_keys(conform(named, columns), columns)


def _operation(table: Table, value: object, words: Mapping[str, str]) -> str:
    word = words.get(str(value), str(value).lower())
    if word not in _ALLOWED:
        raise AnalysisError(
            f"the changes of {table.name} have an unknown operation {value!r}",
            hint=f"operations maps values to {', '.join(_ALLOWED)}; now it has {dict(words)}",
        )
    return word


# ---------------------------------------------------------------- the order of transactions


def rank_transactions(batches: Sequence[Batch], ordered: bool) -> tuple[dict[Any, int], list[Any]]:
    """Transaction → its place, and the greatest commit time of each in that order."""
    least: dict[Any, Any] = {}
    greatest: dict[Any, Any] = {}
    for batch in batches:
        for value, place, moment in zip(batch.transactions, batch.orders, batch.times):
            if value not in least or (ordered and place < least[value]):
                least[value] = place
            if moment is not None and (greatest.get(value) is None or moment > greatest[value]):
                greatest[value] = moment
    try:
        inorder = (
            sorted(least, key=(lambda v: least[v]) if ordered else (lambda v: v))
            if len(least) > 1
            else list(least)
        )
    except TypeError as error:
        raise AnalysisError(
            "the transactions cannot be ordered", detail=str(error), hint="name an `order` column"
        ) from error
    return {value: n for n, value in enumerate(inorder)}, [greatest.get(value) for value in inorder]


def timestamps(
    services: Services, times: Sequence[Any], commit_time: str | datetime | None
) -> list[datetime]:
    """The commit timestamp of each transaction in order. Raises TransactionError where one goes back."""
    if not isinstance(commit_time, str):
        return [next_timestamp(services, commit_time)] * len(times)
    found: list[datetime] = []
    for value in times:
        moment = next_timestamp(services, _moment(value))
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
