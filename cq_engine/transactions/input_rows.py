"""Rows that a program gives to a table: Python values, Arrow or a DataFrame, assigned to the table's columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.catalog.model import Table
from cq_engine.core.arrays import array
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, CQError
from cq_engine.core.types import arrow_type, spark_type
from cq_engine.core.values import encode_values
from cq_engine.spark.store_assignment import select
from cq_engine.storage.rows import conform, empty
from cq_engine.transactions import dml

__all__ = ["Rows", "arrow_rows", "by_name", "fitted"]

Rows: TypeAlias = "pa.Table | DataFrame | Iterable[Mapping[str, Any]] | Iterable[Sequence[Any]]"


def by_name(table: Table, frame: DataFrame) -> DataFrame:
    """A frame's columns assigned to the table's by name. Raises AnalysisError."""
    wanted = [dml.find_column(table, name) for name in frame.columns]
    _check_once(table, wanted)
    plain = frame.toDF(*(f"_s{n}" for n in wanted))
    sources = [f"_s{n}" if n in wanted else None for n in range(len(table.columns))]
    return plain.select(*select(table, table.columns, sources, plain.schema))


def _check_once(table: Table, wanted: Sequence[int]) -> None:
    if len(set(wanted)) < len(wanted):
        raise AnalysisError(f"rows for {table.name} have a column twice")


def arrow_rows(table: Table, rows: Any) -> pa.Table:
    """Rows of Python values or Arrow as the table's columns. Raises AnalysisError."""
    if not isinstance(rows, pa.Table):
        listed = list(rows)
        if listed and not isinstance(listed[0], Mapping):
            if any(len(row) != len(table.columns) for row in listed):
                raise AnalysisError(f"a row for {table.name} has {len(table.columns)} values")
            listed = [dict(zip((c.name for c in table.columns), row)) for row in listed]
        names = list(dict.fromkeys(name for row in listed for name in row))
        positions = {name: dml.find_column(table, name) for name in names}
        arrays = {}
        for name, n in positions.items():
            column = table.columns[n]
            try:
                arrays[column.name] = _array([row.get(name) for row in listed], column.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise _unfit(table, column.name, column.type, error) from error
        rows = pa.table(arrays) if arrays else empty(table.columns)
    wanted = [dml.find_column(table, name) for name in rows.column_names]
    _check_once(table, wanted)
    renamed = rows.rename_columns([table.columns[n].name for n in wanted])
    return fitted(table, renamed, table.columns)


def fitted(table: Table, rows: pa.Table, columns: Sequence[Column], prefix: str = "") -> pa.Table:
    """Arrow rows in the types of `columns`, which are the table's, as `rows.conform` casts them: no value becomes another one.

    Raises AnalysisError with the first column that has a value which does not fit. It is shown with `prefix`.
    """
    try:
        return conform(rows, columns)
    except (pa.ArrowException, ValueError):
        for column in (each for each in columns if each.name in rows.column_names):
            try:
                conform(rows.select([column.name]), [column])
            except (pa.ArrowException, ValueError) as error:
                raise _unfit(table, f"{prefix}{column.name}", column.type, error) from error
        raise


def _array(values: Sequence[Any], kind: str) -> pa.Array:
    return array(encode_values(values, spark_type(kind)), arrow_type(kind))


def _unfit(table: Table, name: str, kind: str, error: Exception) -> CQError:
    return AnalysisError(
        f"a value does not fit column {table.name}.{name}, which is {kind}", detail=str(error)
    )
