"""Many captured rows: written into files of the warehouse, batch by batch, and taken into a table by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from cq_engine.catalog.model import DataFile, Table
from cq_engine.context.services import Services
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError
from cq_engine.grammar.statements import Dml
from cq_engine.spark.sql import quote, translate_errors
from cq_engine.storage.rows import conform, empty
from cq_engine.transactions.transaction import Transaction

__all__ = ["Batches", "all_columns", "fitted", "is_empty", "key_error", "merge", "spool"]

Batches = Iterable[pa.RecordBatch]

_CAPTURED = "_captured"


def fitted(rows: pa.Table, columns: Sequence[Column], capture: str) -> pa.Table:
    """The rows in the types of the columns. Raises SourceError for a value that its column cannot have."""
    try:
        return conform(rows, columns)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        for column in columns:
            try:
                conform(rows.select([column.name]), [column])
            except (pa.ArrowException, ValueError, OverflowError) as reason:
                raise SourceError(
                    f"the source of capture {capture} has a value that is no {column.type} for column {column.name}",
                    detail=str(reason).splitlines()[0],
                    hint="create the table with a wider type, or leave the column out of the capture",
                ) from None
        raise SourceError(f"rows of the source of capture {capture} do not fit", detail=str(error)) from None


def spool(
    transaction: Transaction,
    table: Table,
    batches: Batches,
    columns: Sequence[Column],
    read: Callable[[int], None],
    capture: str,
    name: str = "captured",
) -> DataFrame:
    """Writes rows into a file that ends with the transaction; the rows as a frame. `read` is told of each batch's rows."""
    store, count = transaction.services.catalog.store, 0
    path = f"{transaction.scratch().directory(table.storage, 'snapshot')}/{name}/part-0.parquet"
    with store.writing(path) as sink, pq.ParquetWriter(sink, empty(columns).schema) as writer:
        for batch in batches:
            read(len(batch))
            count += len(batch)
            writer.write_table(fitted(pa.Table.from_batches([batch]), columns, capture))
    spooled = DataFile(path, count, store.stat(path).size)
    return transaction.services.reader.files([spooled], columns)


def merge(transaction: Transaction, table: Table, frame: DataFrame, columns: Sequence[Column]) -> None:
    """Makes the table's rows those of the frame, which has the columns `columns` of it; the others are NULL in new rows.

    An empty table is loaded, as is one without a key, whose rows stay. Raises SourceError where several rows have one key.
    """
    if table.primary_key is None or is_empty(transaction.services, table):
        transaction.load(table.name, all_columns(table, frame))
        return
    _check_unique(table, frame)
    transaction.given = {_CAPTURED: lambda: frame}
    transaction.execute(Dml("MERGE", _statement(table, columns)))


def _check_unique(table: Table, frame: DataFrame) -> None:
    """Raises SourceError where several rows have one key: MERGE would not see those that are as the table has them."""
    keys = [quote(name) for name in table.primary_key or ()]
    with translate_errors():
        twice = frame.groupBy(*keys).count().where("count > 1").limit(1).drop("count").collect()
    if twice:
        raise key_error(table.name, twice[0].asDict())


def key_error(table: str, key: Mapping[str, object] | None = None) -> SourceError:
    """The error where several rows of a source have one key of the table, such as this one."""
    shown = ", ".join(f"{name} = {value!r}" for name, value in (key or {}).items())
    return SourceError(
        f"several rows of the source have one key of table {table}",
        detail=f"such as {shown}" if shown else "",
        hint="the table needs a key of the source as its own",
    )


def is_empty(services: Services, table: Table) -> bool:
    """Whether the table has never had a row, as far as its files tell."""
    layout = services.catalog.layout(table.storage.id, services.catalog.newest_version)
    return not layout.snapshot and not layout.changes


def all_columns(table: Table, frame: DataFrame) -> DataFrame:
    """The frame with the table's other columns, which are NULL."""
    known = {name.lower() for name in frame.columns}
    missing = [column for column in table.columns if column.name.lower() not in known]
    nulls = [f"CAST(NULL AS {column.type}) AS {quote(column.name)}" for column in missing]
    return frame.selectExpr(*(quote(name) for name in frame.columns), *nulls)


def _statement(table: Table, columns: Sequence[Column]) -> str:
    """MERGE of the captured rows; those that are not among them are gone."""
    key = {name.lower() for name in table.primary_key or ()}
    values = [column for column in columns if column.name.lower() not in key]
    on = " AND ".join(f"t.{quote(name)} = s.{quote(name)}" for name in table.primary_key or ())
    same = " AND ".join(f"t.{quote(c.name)} <=> s.{quote(c.name)}" for c in values)
    plain = all(can(c.type, Use.IDENTICAL) or c.type.lower() in ("float", "double") for c in values)
    parts = [f"MERGE INTO {quote(table.name)} AS t USING {_CAPTURED} AS s ON {on}"]
    if values:
        sets = ", ".join(f"{quote(c.name)} = s.{quote(c.name)}" for c in values)
        parts.append(f"WHEN MATCHED{f' AND NOT ({same})' if plain else ''} THEN UPDATE SET {sets}")
    names = ", ".join(quote(column.name) for column in columns)
    given = ", ".join(f"s.{quote(column.name)}" for column in columns)
    parts.append(f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({given})")
    return " ".join([*parts, "WHEN NOT MATCHED BY SOURCE THEN DELETE"])
