"""The Delta table of a destination: rows and mark are one Delta commit.

The mark stands in application transactions, which Delta keeps the newest of: the commit version under the application
`cq-engine/<destination>/<query>`, the number of the order under the same with `/order`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import types as t

from cq_engine.catalog.delta_files import delta_schema
from cq_engine.core.columns import Column
from cq_engine.core.errors import DestinationError
from cq_engine.core.types import arrow_schema, columns_of
from cq_engine.destinations.base import Unreachable
from cq_engine.destinations.fit import check_columns
from cq_engine.destinations.targets.net_changes import GONE
from cq_engine.destinations.targets.target import Mark, Target, TargetDestination, foreign_rows, local

__all__ = ["DeltaTarget", "failing", "is_table", "schema_of"]


def is_table(path: str) -> bool:
    """Whether a Delta table is there."""
    return DeltaTable.is_deltatable(path)


def schema_of(destination: TargetDestination) -> Schema:
    """The schema of a table made for the destination. Raises DestinationError for a type that Delta Lake does not have."""
    found = delta_schema(destination.columns)
    if found is None:
        odd = next(c for c in destination.columns if delta_schema((c,)) is None)
        raise DestinationError(
            f"column {odd.name} of continuous query {destination.query.name} does not fit a Delta table",
            detail=f"Delta Lake has no type for {odd.type}",
            hint=f"cast it in the query: CAST({odd.name} AS STRING)",
        )
    return found


class DeltaTarget(Target):
    """The table as it was when it was opened; a commit of anybody else meanwhile makes ours fail."""

    def __init__(self, destination: TargetDestination, path: str) -> None:
        self._destination = destination
        self._path = path
        self._owner = f"cq-engine/{destination.token}"
        self._application = f"{self._owner}/{destination.query.id}"
        self.table = DeltaTable(path) if DeltaTable.is_deltatable(path) else None

    def check(self) -> None:
        destination = self._destination
        if self.table is None:
            return
        there = _spark_columns(self.table.schema())
        shown = f"Delta table {self._path}"
        check_columns(destination.query.name, shown, _spark_columns(schema_of(destination)), there)
        self._check_own()

    def _check_own(self) -> None:
        if self.table is None or not self._destination.merges:
            return
        if self.table.transaction_version(self._owner) is None and self.table.file_uris():
            raise foreign_rows(self._destination, f"Delta table {self._path}")

    def mark(self) -> Mark | None:
        if self.table is None:
            return None
        version = self.table.transaction_version(self._application)
        order = self.table.transaction_version(f"{self._application}/order")
        return None if version is None else Mark(version, order or 0)

    def append(self, rows: Iterator[pa.Table], mark: Mark) -> None:
        self._write(rows, mark, "append")

    def replace(self, rows: Iterator[pa.Table], mark: Mark) -> None:
        self._check_own()
        self._write(rows, mark, "overwrite")

    def merge(self, changes: Iterator[pa.Table], mark: Mark) -> bool:
        block, following = next(changes, None), next(changes, None)
        if following is not None:
            return False
        table = self._made()
        if block is None:
            self._write_nothing(mark)
            return True
        columns = self._destination.columns
        names = {c.name.lower(): c.name for c in _spark_columns(table.schema())}
        quoted = [_quote(names[c.name.lower()]) for c in columns]
        source = self._conformed(block).select([names[c.name.lower()] for c in columns])
        source = source.rename_columns([f"c{n}" for n in range(len(columns))])
        source = source.append_column("gone", block.column(GONE))
        key = self._destination.key
        same = [
            f"t.{quoted[n]} {'IS NOT DISTINCT FROM' if source.column(n).null_count else '='} s.c{n}"
            for n in key
        ]
        values = {name: f"s.c{n}" for n, name in enumerate(quoted)}
        before = table.version()
        (
            table.merge(
                source, " AND ".join(same) or "true", source_alias="s", target_alias="t",
                commit_properties=self._properties(mark),
            )
            .when_matched_delete("s.gone")
            .when_matched_update(values)
            .when_not_matched_insert(values, "NOT s.gone")
            .execute()
        )  # fmt: skip
        if table.version() == before:  # what came has gone: delta-rs makes no commit where no row changes
            self._write_nothing(mark)
        return True

    # ------------------------------------------------------------ commits

    def _made(self) -> DeltaTable:
        """The table, made where there is none."""
        if self.table is None:
            directory = local(self._path)
            if directory is not None:
                directory.parent.mkdir(parents=True, exist_ok=True)
            self.table = DeltaTable.create(
                self._path, schema_of(self._destination), name=self._destination.name
            )
        return self.table

    def _write(self, rows: Iterator[pa.Table], mark: Mark, mode: Any) -> None:
        table, failure = self._made(), []
        first = next(rows, None)
        if first is None and mode == "append":
            self._write_nothing(mark)
            return
        blocks = () if first is None else chain((first,), rows)
        schema = self._arrow()

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for block in blocks:
                    yield from self._conformed(block).to_batches()
            except BaseException as error:
                failure.append(error)  # delta-rs would tell its text only
                raise

        try:
            write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(schema, batches()),
                mode=mode,
                commit_properties=self._properties(mark),
            )
        except DeltaError:
            if failure:
                raise failure[0] from None
            raise

    def _write_nothing(self, mark: Mark) -> None:
        """A commit that has the mark only."""
        table = self._made()
        table.create_write_transaction([], "append", table.schema(), commit_properties=self._properties(mark))
        table.update_incremental()

    def _properties(self, mark: Mark) -> CommitProperties:
        # The tables of the warehouse have the same name for it in their commits.
        return CommitProperties(
            custom_metadata={"cq_engine.commit_version": mark.version},
            max_commit_retries=0,
            app_transactions=[
                Transaction(self._owner, 1),
                Transaction(self._application, mark.version),
                Transaction(f"{self._application}/order", mark.order),
            ],
        )

    # ------------------------------------------------------------ rows

    def _arrow(self) -> pa.Schema:
        return arrow_schema(_spark_columns(self._made().schema()))

    def _conformed(self, rows: pa.Table) -> pa.Table:
        """Rows with the columns and types of the table."""
        places = {name.lower(): n for n, name in enumerate(rows.column_names)}
        schema = self._arrow()
        arrays = [
            rows.column(places[field.name.lower()]).cast(field.type)
            if field.name.lower() in places
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)


def _spark_columns(schema: Schema) -> Sequence[Column]:
    """A Delta schema's columns by their Spark types, with the names that they have in it."""
    return columns_of(t.StructType.fromJson(json.loads(schema.to_json())))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def failing(name: str) -> Iterator[None]:
    """What delta-rs fails with in the block is a DestinationError."""
    try:
        yield
    except CommitFailedError as error:
        raise DestinationError(
            f"delta {name} was written by somebody else meanwhile",
            detail=" ".join(str(error).split()),
            hint="nothing is lost; what is left comes with the next delivery",
        ) from error
    except (DeltaError, OSError) as error:
        raise Unreachable(
            f"delta {name} cannot be written: {' '.join(str(error).split())}",
            hint="nothing is lost; it is tried again with the next delivery",
        ) from error
