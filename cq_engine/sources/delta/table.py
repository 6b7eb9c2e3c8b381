"""A Delta Lake table as a source: where it is, what it is now, and what each of its versions has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.types import StructType

from cq_engine.catalog.model import Capture, DeclaredSource
from cq_engine.core import types
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.destinations.options import Option
from cq_engine.grammar.clauses import ColumnSpec
from cq_engine.sources.methods.base import as_named
from cq_engine.sources.paths import as_declared, below, path_of, path_option

__all__ = ["OPTIONS", "changes", "columns_of", "feed_is_on", "image", "open_table", "uri_of"]


OPTIONS: Mapping[str, Option] = {
    "path": path_option("write the directory or URL of a table, or of tables, as in path = '/lake/orders'")
}


def uri_of(declared: DeclaredSource, relation: str | None) -> str:
    """Where the table is: the source's path, or what `relation` names below it."""
    return below(path_of(declared), relation)


def open_table(declared: DeclaredSource, relation: str | None, version: int | None = None) -> DeltaTable:
    """The table at a version, by default the newest. Raises SourceError."""
    uri = uri_of(declared, relation)
    with _errors(declared, uri):
        return DeltaTable(uri, version=version)


@contextmanager
def _errors(declared: DeclaredSource, uri: str) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError:
        raise SourceUnavailableError(
            f"source {declared.name} has no Delta table at {as_declared(declared, uri)}",
            hint="the option path names the directory that has _delta_log in it, or one above it with TABLE 'name'",
        ) from None
    except (DeltaError, OSError, pa.ArrowException) as error:
        kind = SourceUnavailableError if isinstance(error, OSError) else SourceError
        what, detail = (as_declared(declared, each) for each in (uri, str(error).strip()))
        raise kind(f"the Delta table {what} cannot be read", detail=detail) from None


def columns_of(declared: DeclaredSource) -> tuple[ColumnSpec, ...]:
    """The table's columns, as CREATE TABLE has them."""
    schema = StructType.fromJson(json.loads(open_table(declared, None).schema().to_json()))
    return tuple(ColumnSpec(column.name, column.type) for column in types.columns_of(schema))


def image(declared: DeclaredSource, table: DeltaTable, capture: Capture) -> Iterator[pa.RecordBatch]:
    """All rows of the table's version, under the names of the capture's table; deletion vectors are heeded."""
    with _errors(declared, table.table_uri):
        names = [each.name for each in capture.columns]
        reader = pa.RecordBatchReader.from_stream(table.scan(columns=names, predicate=capture.where))
        for batch in reader:
            yield as_named(batch, capture)


def feed_is_on(table: DeltaTable) -> bool:
    """Whether the table's versions have their changes beside them (change data feed)."""
    return (table.metadata().configuration or {}).get("delta.enableChangeDataFeed", "").lower() == "true"


def changes(
    declared: DeclaredSource, table: DeltaTable, capture: Capture, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    """The change data feed of the versions from `first` to `last`: the captured columns under the names of the capture's
    table, `_change_type`, `_commit_version` and `_commit_timestamp`.

    Raises SourceError where the feed does not reach back so far.
    """
    own = ("_change_type", "_commit_version", "_commit_timestamp")
    columns = [*(each.name for each in capture.columns), *own]
    with _errors(declared, table.table_uri):
        found = table.load_cdf(
            starting_version=first, ending_version=last, columns=columns, predicate=capture.where
        )
        for batch in pa.RecordBatchReader.from_stream(found):
            yield as_named(batch, capture, own)
