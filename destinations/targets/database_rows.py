"""Arrow rows into a table of a database, by its fastest way."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from cq_engine.core.values import json_value, python_values
from cq_engine.destinations.targets.database_types import EXACT_DIGITS
from cq_engine.destinations.variables import VARIABLE

__all__ = ["any_null", "load", "without_variables"]


def without_variables(url: str) -> str:
    """`url` with nothing in the place of `${NAME}`."""
    return VARIABLE.sub("", url)


def any_null(rows: pa.Table, places: Sequence[int]) -> pa.Array:
    """Of each row, whether one of the columns at `places` is NULL."""
    found = pa.array([False] * rows.num_rows, pa.bool_())
    for n in places:
        found = pc.or_(found, pc.is_null(rows.column(n)).combine_chunks())
    return found


def load(
    connection: Connection, table: str, names: Sequence[str], rows: pa.Table, key: Sequence[int] = ()
) -> None:
    """Adds the rows to the table, both of which are quoted names: by COPY on PostgreSQL, else by one statement for many.

    SQLite makes NULL of NaN: in the columns at `key`, by which rows are told apart, it is text.
    """
    if not rows.num_rows:
        return
    driver: Any = connection.connection.driver_connection
    shown = ", ".join(names)
    if hasattr(driver, "pgconn"):  # psycopg 3
        text = f"COPY {table} ({shown}) FROM STDIN (FORMAT csv)".replace(
            "%%", "%"
        )  # no parameters, no escapes
        failed = connection.dialect.loaded_dbapi.Error
        try:
            with driver.cursor() as cursor, cursor.copy(text) as copy:
                for batch in _plain(rows, binary_as_text=True).to_batches(max_chunksize=20_000):
                    copy.write(_csv(batch))
        except failed as error:
            raise DBAPIError.instance("COPY", None, error, failed, dialect=connection.dialect) from error
        return
    is_sqlite = connection.dialect.name == "sqlite"
    plain = _plain(_in_utc(rows) if connection.dialect.name == "mariadb" else rows, binary_as_text=False)
    if is_sqlite:
        lists = [
            _numbers(old) if pa.types.is_decimal(old.type) else new.to_pylist()
            for old, new in zip(rows.columns, plain.columns)
        ]
        for n in key:
            if pa.types.is_floating(rows.column(n).type):
                lists[n] = ["NaN" if v != v else v for v in lists[n]]  # noqa: PLR0124 - NaN alone is not itself
    else:
        lists = [column.to_pylist() for column in plain.columns]
    values = zip(*lists)
    marks = ", ".join(["?" if is_sqlite else "%s"] * len(names))
    connection.exec_driver_sql(f"INSERT INTO {table} ({shown}) VALUES ({marks})", list(values))


def _in_utc(rows: pa.Table) -> pa.Table:
    """Instants without their Z, which MariaDB does not read."""
    for n, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            naive = rows.column(n).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
            rows = rows.set_column(n, field.name, naive)
    return rows


def _numbers(column: pa.ChunkedArray) -> list[float | str | None]:
    """Decimals for SQLite, which has none: as numbers where these have all of their digits, else as text."""
    values = column.to_pylist()
    return [
        None if v is None else float(v) if len(v.normalize().as_tuple().digits) <= EXACT_DIGITS else str(v)
        for v in values
    ]


def _csv(batch: pa.RecordBatch) -> bytes:
    """Strings are in quotation marks, NULL is nothing: so COPY tells an empty string from it."""
    from pyarrow import csv

    out = io.BytesIO()
    csv.write_csv(batch, out, csv.WriteOptions(include_header=False))
    return out.getvalue()


def _plain(rows: pa.Table, *, binary_as_text: bool) -> pa.Table:
    """The rows in types that CSV and every driver have: times and decimals as text, what is nested as JSON."""
    columns = [_plain_column(column, binary_as_text) for column in rows.columns]
    return pa.Table.from_arrays(columns, names=[f"c{n}" for n in range(len(columns))])


def _plain_column(column: pa.ChunkedArray, binary_as_text: bool) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_nested(kind):
        values = (
            None if v is None else json.dumps(json_value(v, kind), ensure_ascii=False)
            for v in python_values(column)
        )
        return pa.chunked_array([pa.array(values, pa.string())])
    if pa.types.is_binary(kind) and binary_as_text:
        values = (None if v is None else "\\x" + v.hex() for v in column.to_pylist())
        return pa.chunked_array([pa.array(values, pa.string())])
    if pa.types.is_duration(kind):
        return column.cast(pa.int64())
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    return column
