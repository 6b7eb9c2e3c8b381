"""COPY INTO: files of the outside world as rows of a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cq_engine.catalog.model import Table
from cq_engine.catalog.storage.location import open_beside
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, CQError, StorageError
from cq_engine.core.types import spark_schema
from cq_engine.grammar.statements import CopyInto
from cq_engine.spark.sql import translate_errors
from cq_engine.spark.store_assignment import select
from cq_engine.spark.widths import Size
from cq_engine.transactions.copy_outside import OutsideFiles
from cq_engine.transactions.dml import find_column

__all__ = ["FORMATS", "copy_frame", "format_of"]

FORMATS: dict[str, str] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tbl": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
"""What a file name's ending says where COPY INTO has no FORMAT."""
_ALIASES = {"delimiter": "sep", "delim": "sep", "null": "nullvalue", "nullstr": "nullvalue"}
"""What PostgreSQL and DuckDB call options of Spark's reader."""
_NO_FILE_SYSTEM = re.compile(
    r"No FileSystem for scheme|ClassNotFoundException: Class org\.apache\.hadoop\.fs\."
)
_BYTES_PER_ROW = {"csv": 40, "json": 80, "parquet": 12}
_BYTES_PER_PARQUET_BYTE = {"csv": 3, "json": 6, "parquet": 1}


def copy_frame(services: Services, table: Table, statement: CopyInto) -> tuple[DataFrame, Size | None]:
    """The files' rows as the table's columns, and a guess at how many they are (None where nobody says what they weigh).

    Options go to Spark's reader. Defaults of ours: CSV has a `header`, whose names say which column goes where in
    any order (with `header` false, columns go by position); `mode` is FAILFAST, so that a malformed value is an
    error and not NULL. Columns that the files lack become NULL. CSV and Parquet columns that the table lacks are an
    error; JSON fields that it lacks are left out.

    Raises AnalysisError, StorageError (Spark has no file system for the path), CQError (the files cannot be read).
    """
    statement = replace(statement, path=services.rights.copy_path(statement.path))
    for name, _ in statement.options:
        services.rights.check_copy_option(name)
    kind = format_of(statement)
    wanted = [find_column(table, name) for name in statement.columns] or list(range(len(table.columns)))
    columns = [table.columns[n] for n in wanted]
    options = {"mode": "FAILFAST"} if kind != "parquet" else {}
    if kind == "csv":
        options |= {"header": "true"} | ({"sep": "\t"} if statement.path.lower().endswith(".tsv") else {})
    options |= {_ALIASES.get(name.lower(), name.lower()): value for name, value in statement.options}

    def rows(files: _Files) -> tuple[DataFrame, Size | None]:
        frame, weight = _read(table, files, kind, options, columns), files.bytes
        size = (
            Size(weight // _BYTES_PER_ROW[kind], weight // _BYTES_PER_PARQUET_BYTE[kind]) if weight else None
        )
        if kind == "parquet" and size is not None and size.bytes > services.limits.inline_bytes:
            # By what their footers say: values that repeat weigh next to nothing.
            size = Size(files.count(frame), size.bytes)
        return _assign_columns(table, frame), size

    refused: CQError | None = None
    with translate_errors():
        for path in _spellings(statement.path):
            try:
                with suppress(_NoFileSystemError), _knowing():
                    return rows(_SparkFiles(services.spark(), path, options))
            except CQError as error:
                if not _has_options(services, path):
                    raise
                refused = refused or error
        try:
            return rows(_outside(services, statement.path, options))
        except CQError as error:
            raise refused or error from None


class _NoFileSystemError(Exception):
    """Spark's session has none for a path."""


@contextmanager
def _knowing() -> Iterator[None]:
    try:
        with translate_errors():
            yield
    except CQError as error:
        if _NO_FILE_SYSTEM.search(error.message):
            raise _NoFileSystemError from error
        raise


def _has_options(services: Services, path: str) -> bool:
    """Whether the path lies in a store of the kind that the warehouse's own `storage.*` say how to reach: of them Spark knows nothing."""
    from cq_engine.catalog.storage.objects import ObjectStore  # which a warehouse in a directory does without

    with suppress(CQError):
        found = open_beside(path, services.catalog.store, services.limits)
        return found is not None and isinstance(found[0], ObjectStore) and found[0].access.has_options
    return False


def _spellings(path: str) -> list[str]:
    """How Spark may know a path: the file system that has `s3a://` is asked for `s3://`, too."""
    return [path, f"s3a://{path[5:]}"] if path.lower().startswith("s3://") else [path]


def _outside(services: Services, path: str, options: dict[str, str]) -> OutsideFiles:
    """What is read through Arrow. Raises StorageError where that has no file system for it either."""
    found = open_beside(path, services.catalog.store, services.limits)
    if found is None:
        raise StorageError(
            f"Spark cannot read {path}",
            detail=f"this session has no file system for {path.partition('://')[0]}://",
            hint="start Spark with one (spark.jars.packages), or copy the files to a directory",
        )
    return OutsideFiles(services.spark(), *found, options, services.limits)


def format_of(statement: CopyInto) -> str:
    """csv, json or parquet. Raises AnalysisError."""
    if statement.format is not None:
        kind = statement.format.lower()
    else:
        path = Path(statement.path.rstrip("/*"))
        endings = [e.lower() for e in path.suffixes] or _endings_inside(path)
        kind = next((FORMATS[e] for e in endings if e in FORMATS), "")
    if kind not in FORMATS.values():
        raise AnalysisError(
            f"COPY INTO {statement.table} does not know the format of {statement.path}",
            hint="write FORMAT csv, FORMAT json or FORMAT parquet",
        )
    return kind


def _endings_inside(path: Path) -> list[str]:
    return sorted({e.lower() for p in path.glob("*") for e in p.suffixes}) if path.is_dir() else []


class _Files(Protocol):
    """Files of one kind, as whoever reads them has them."""

    @property
    def path(self) -> str:
        """Where they are."""

    @property
    def bytes(self) -> int:
        """What they weigh; 0 where nobody says it."""

    def parquet(self) -> DataFrame:
        """Their rows, with the columns that they have."""

    def count(self, rows: DataFrame) -> int:
        """How many rows files of Parquet have; these are they."""

    def json(self, columns: Sequence[Column]) -> DataFrame:
        """A row for each object."""

    def csv_names(self) -> list[str]:
        """What the header says."""

    def csv(self, columns: Sequence[Column]) -> DataFrame:
        """A row for each line, but for the header."""


@dataclass(frozen=True)
class _SparkFiles:
    """What Spark reads itself."""

    spark: SparkSession
    path: str
    options: dict[str, str]

    @property
    def bytes(self) -> int:
        if "://" in self.path and not self.path.startswith("file://"):
            return self._listed_bytes()
        local = Path(self.path.removeprefix("file://"))
        files = list(local.rglob("*")) if local.is_dir() else list(local.parent.glob(local.name))
        return sum(file.stat().st_size for file in files if file.is_file())

    def _listed_bytes(self) -> int:
        """Of files that only Spark reaches, which is asked to list them; 0 where it cannot."""
        with suppress(CQError), translate_errors():
            row = self.spark.read.format("binaryFile").load(self.path).agg(f.sum("length")).first()
            return int((row and row[0]) or 0)
        return 0

    def parquet(self) -> DataFrame:
        return self.spark.read.options(**self.options).parquet(self.path)

    def count(self, rows: DataFrame) -> int:
        return rows.count()

    def json(self, columns: Sequence[Column]) -> DataFrame:
        return self.spark.read.options(**self.options).schema(spark_schema(columns)).json(self.path)

    def csv_names(self) -> list[str]:
        return self.spark.read.options(**{**self.options, "inferschema": "false"}).csv(self.path).columns

    def csv(self, columns: Sequence[Column]) -> DataFrame:
        return self.spark.read.options(**self.options).schema(spark_schema(columns)).csv(self.path)


def _read(
    table: Table, files: _Files, kind: str, options: dict[str, str], columns: Sequence[Column]
) -> DataFrame:
    if kind == "json":
        return files.json(columns)
    if kind == "parquet":
        return _name_columns(table, files.parquet(), columns)
    if options.get("header", "true").lower() != "true":
        return files.csv(columns)
    names = files.csv_names()
    allowed = {c.name.lower(): c for c in columns}
    unknown = [name for name in names if name.strip().lower() not in allowed]
    if unknown:
        raise _unknown(table, unknown[0], files.path, columns)
    fields = [allowed[name.strip().lower()] for name in names]
    if len(set(fields)) < len(fields):
        raise AnalysisError(f"the header of {files.path} names a column twice")
    return files.csv(fields)


def _name_columns(table: Table, frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
    allowed = {c.name.lower() for c in columns}
    unknown = [name for name in frame.columns if name.lower() not in allowed]
    if unknown:
        raise _unknown(table, unknown[0], "the file", columns)
    return frame


def _unknown(table: Table, name: str, path: str, columns: Sequence[Column]) -> AnalysisError:
    known = ", ".join(c.name for c in columns)
    return AnalysisError(
        f"{path} has a column {name!r}, which COPY INTO {table.name} does not load",
        detail=f"the columns are {known}",
        hint="a CSV file without a header line needs OPTIONS (header = false)",
    )


def _assign_columns(table: Table, frame: DataFrame) -> DataFrame:
    positions = {name.lower(): n for n, name in enumerate(frame.columns)}
    plain = frame.toDF(*(f"_s{n}" for n in range(len(frame.columns))))
    sources = [
        f"_s{positions[c.name.lower()]}" if c.name.lower() in positions else None for c in table.columns
    ]
    return plain.select(*select(table, table.columns, sources, plain.schema))
