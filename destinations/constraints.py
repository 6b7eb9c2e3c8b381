"""NOT NULL and PRIMARY KEY of a destination table, checked before rows are appended to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as f

from cq_engine.catalog.model import ContinuousQuery, DataFile, Table
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.errors import DestinationError
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.rows import conform, identity_keys

__all__ = ["check_files", "check_rows"]


def check_rows(
    services: Services, query: ContinuousQuery, table: Table, rows: pa.Table, version: int
) -> None:
    """Raises DestinationError where `rows`, appended to the image of `table` at `version`, would violate its
    constraints. Call it with the commit lock held."""
    for column in _required_columns(table):
        if rows.column(column.name).null_count:
            raise _null(query, table, column)
    key = _enforced_key(table)
    if key is None:
        return
    keys = rows.select(list(key))
    values = identity_keys(keys, [c for c in table.columns if c.name in key])
    counted = Counter(values)
    for place, value in enumerate(values if len(counted) < rows.num_rows else ()):
        if counted[value] > 1:
            raise _duplicate(query, table, key, _values(keys.slice(place, 1)))
    found = services.reader.lookup(table.storage, version, keys)
    if found.num_rows:
        raise _duplicate(query, table, key, _values(found.select(list(key)).slice(0, 1)))


def check_files(
    services: Services, query: ContinuousQuery, table: Table, files: Sequence[DataFile], version: int
) -> None:
    """As `check_rows`, for rows in files that are not yet part of the table."""
    key = _enforced_key(table)
    required = _required_columns(table)
    if key is None and not required:
        return
    rows = services.reader.files(files, table.columns)
    if required:
        nulls = rows.agg(*(f.count_if(f.col(quote(c.name)).isNull()) for c in required)).collect()[0]
        for column, count in zip(required, nulls):
            if count:
                raise _null(query, table, column)
    if key is None:
        return
    columns = [c for c in table.columns if c.name in key]
    names = [quote(c.name) for c in columns]
    twice = rows.groupBy(*names).count().where(f.col("count") > 1).select(*names)
    image = services.reader.image(table.storage, version)
    there = image.select(*(f.col(name).alias(f"_k{n}") for n, name in enumerate(names)))
    on = [f.col(name).eqNullSafe(f.col(f"_k{n}")) for n, name in enumerate(names)]
    taken = rows.select(*names).join(there, on, "left_semi")
    for clash in (twice, taken):
        found = conform(to_arrow(clash.limit(1)), columns)
        if found.num_rows:
            raise _duplicate(query, table, tuple(c.name for c in columns), _values(found))


def _required_columns(table: Table) -> list[Column]:
    key = _enforced_key(table) or ()
    return [column for column in table.columns if not column.nullable or column.name in key]


def _enforced_key(table: Table) -> tuple[str, ...] | None:
    """The primary key by the names of the table's columns, where it is to be checked."""
    if not table.primary_key or not table.primary_key_enforced:
        return None
    wanted = {name.lower() for name in table.primary_key}
    return tuple(column.name for column in table.columns if column.name.lower() in wanted)


def _values(rows: pa.Table) -> tuple[Any, ...]:
    return tuple(column[0].as_py() for column in rows.columns)


def _null(query: ContinuousQuery, table: Table, column: Column) -> DestinationError:
    return DestinationError(
        f"continuous query {query.name} gives a NULL for column {column.name} of table {table.name}",
        detail="the column is NOT NULL or part of the primary key",
        hint="deliver to a table without that constraint",
    )


def _duplicate(
    query: ContinuousQuery, table: Table, key: Sequence[str], values: Sequence[Any]
) -> DestinationError:
    shown = ", ".join(f"{name} = {value!r}" for name, value in zip(key, values))
    return DestinationError(
        f"a delta of continuous query {query.name} would violate the primary key of table {table.name}: {shown}",
        detail="a destination gets a row for every delta, so one key value may come many times",
        hint="deliver to a table without a primary key, or add cq_commit_version() to the SELECT list and to the key",
    )
