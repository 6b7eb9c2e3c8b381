"""Files of the outside world in a bucket, of which Spark's session has no file system: which there are, and what they have.

Tasks read them through Arrow, as they do a warehouse's own (`arrow_files`), with the credentials that this process has. What
names mean is what they mean to Spark: `*`, `?`, `[…]` and `{…}` stand for names within one directory, a directory for the
files in it, but for those whose names begin with a dot or an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core.columns import Column
from cq_engine.core.disk import disk_error
from cq_engine.core.errors import StorageError
from cq_engine.core.limits import Limits
from cq_engine.core.types import columns_of
from cq_engine.spark.widths import cores, task_bytes
from cq_engine.storage import arrow_files
from cq_engine.storage.shares import Share, cut

__all__ = ["find", "first_line", "parquet", "parquet_columns", "parquet_rows", "read_lines"]

_PATTERN = re.compile(r"[*?\[{]")
_BLOCK_BYTES = 4 * 2**20
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_BOM = b"\xef\xbb\xbf"
_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(), pa.null(): pa.string(),
}  # fmt: skip
"""What Spark reads types as that it has not."""

Batches = Iterator[pa.RecordBatch]


def find(store: Store, path: str) -> list[Found]:
    """The files that a path of the store means, by name. Raises StorageError where there are none, or those of a partitioned table."""
    asked = store.uri(path)
    pattern = _PATTERN.search(path)
    top = path.rstrip("/") if pattern is None else path[: pattern.start()].rpartition("/")[0]
    with _asking(f"list {asked}", store):
        if pattern is None:
            with suppress(FileNotFoundError):
                return [store.stat(top)]
        listed = store.list(top)
    matches = re.compile(re.escape(top)) if pattern is None else _matcher(path.rstrip("/"))
    shown = [each for each in listed if not each.path.rpartition("/")[2].startswith((".", "_"))]
    found = [each for each in shown if _is_meant(matches, each.path)]
    if found:
        return found
    if any(_is_partitioned(matches, each.path) for each in shown):
        raise StorageError(
            f"{asked} is a table in partitions",
            detail="columns stand in the names of directories, which only Spark's own file system reads",
            hint="start Spark with one (s3a:// is in hadoop-aws, which spark.jars.packages takes), or copy one directory after the other",
        )
    raise StorageError(
        f"there are no files at {asked}",
        hint="see how it is written; a directory has its own files, not those below it",
    )


def _is_meant(matches: re.Pattern[str], path: str) -> bool:
    """Is it the file, or in the directory?"""
    return bool(matches.fullmatch(path) or matches.fullmatch(path.rpartition("/")[0]))


def _is_partitioned(matches: re.Pattern[str], path: str) -> bool:
    """Is it below directories of `column=value`, in the directory?"""
    directory, _, below = path.partition("=")
    return bool(below) and matches.fullmatch(directory.rpartition("/")[0]) is not None


def _matcher(pattern: str) -> re.Pattern[str]:
    """What Hadoop's patterns mean. Raises StorageError."""
    text, rest, braces = "", pattern, 0
    while rest:
        one, rest = rest[0], rest[1:]
        choice = re.match(r"[!^]?[^\]]+\]", rest) if one == "[" else None
        if choice is not None:
            text += "[" + re.sub(r"^!", "^", choice[0]).replace("\\", r"\\")
            rest = rest[choice.end() :]
        elif one == "\\" and rest:
            text, rest = text + re.escape(rest[0]), rest[1:]
        elif one in "{}" or (one == "," and braces):
            braces += {"{": 1, "}": -1}.get(one, 0)
            text += {"{": "(?:", "}": ")"}.get(one, "|")
        else:
            text += {"*": "[^/]*", "?": "[^/]"}.get(one, re.escape(one))
    try:
        return re.compile(text)
    except re.error as error:
        raise StorageError(
            f"{pattern} is no pattern of names", detail=str(error), hint="there are *, ?, [a-z] and {a,b}"
        ) from None


@contextmanager
def _asking(doing: str, store: Store) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise disk_error(doing, error, store.location) from error


# ---------------------------------------------------------------- Parquet


def parquet_columns(store: Store, file: Found) -> tuple[Column, ...]:
    """The columns of a Parquet file in Spark's types. Raises StorageError."""
    with _asking(f"read {store.uri(file.path)}", store):
        schema = pq.read_schema(store.source(file.path))
    plain = pa.schema([field.with_type(_plain(field.type)) for field in schema])
    try:
        return columns_of(from_arrow_schema(plain, prefer_timestamp_ntz=True))
    except PySparkException as error:
        raise StorageError(
            f"{store.uri(file.path)} has columns of types that Spark has not",
            detail=str(error).splitlines()[0],
        ) from error


def parquet_rows(store: Store, files: Sequence[Found]) -> int:
    """How many rows Parquet files have. Raises StorageError."""

    def rows(file: Found) -> int:
        with _asking(f"read {store.uri(file.path)}", store):
            return int(pq.read_metadata(store.source(file.path)).num_rows)

    return sum(store.together(rows, files))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return _WIDER.get(kind, kind)


def parquet(
    spark: SparkSession, store: Store, files: Sequence[Found], columns: Sequence[Column], limits: Limits
) -> DataFrame:
    """The rows of Parquet files; columns that a file lacks are NULL."""
    known = [DataFile(file.path, 0, file.size, {}) for file in files]
    return arrow_files.read(spark, store, known, columns, {}, limits=limits, hint="")


# ---------------------------------------------------------------- text


def first_line(store: Store, file: Found, comment: str = "") -> str:
    """The first line of a text file that is not empty, nor begins with `comment`; an empty one where there is none."""
    with _asking(f"read {store.uri(file.path)}", store):
        for lines in _lines(store, Share(file)):
            for line in lines:
                if _counts(line, comment):
                    return line
    return ""


def read_lines(
    spark: SparkSession,
    store: Store,
    files: Sequence[Found],
    limits: Limits,
    *,
    header: bool = False,
    comment: str = "",
) -> DataFrame:
    """The lines of text files (UTF-8) as a column `value`, without empty ones and those that begin with `comment`; with `header` also
    without the first one of each file."""
    size = sum(file.size for file in files)
    weighed = ((file, file.size, not _codec(file)) for file in files)
    tasks = cut(weighed, task_bytes(size, cores(spark), limits))
    reader = _reader(store, tasks, header, comment)
    schema = t.StructType([t.StructField("value", t.StringType())])
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(reader, schema)


def _reader(
    store: Store, tasks: Sequence[Sequence[Share[Found]]], header: bool, comment: str
) -> Callable[[Batches], Batches]:
    """What runs in Spark's Python processes: it gets the numbers of the tasks."""

    def task(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for share in tasks[number]:
                    with _asking(f"read {store.uri(share.file.path)}", store):
                        skip = header and share.number == 0
                        for lines in _lines(store, share):
                            wanted = [line for line in lines if _counts(line, comment)]
                            if skip and wanted:
                                del wanted[0]
                                skip = False
                            yield pa.record_batch([pa.array(wanted, pa.string())], names=["value"])

    return task


def _counts(line: str, comment: str) -> bool:
    return bool(line.strip()) and not (comment and line.startswith(comment))


def _codec(file: Found) -> str:
    return next((codec for ending, codec in _COMPRESSED.items() if file.path.lower().endswith(ending)), "")


def _lines(store: Store, share: Share[Found]) -> Iterator[list[str]]:
    """The lines that begin in a share of a file's bytes, some at a time."""
    file, codec = share.file, _codec(share.file)
    raw: Any = store.source(file.path)
    with raw:
        if codec:
            with pa.CompressedInputStream(raw, codec) as stream:
                yield from _split(stream, None, first=True)
            return
        first, end = (
            _line_start(raw, file.size * n // share.of, file.size) for n in (share.number, share.number + 1)
        )
        raw.seek(first)
        yield from _split(raw, end - first, first=first == 0)


def _line_start(stream: IO[bytes], offset: int, size: int) -> int:
    """Where the first line begins that begins at an offset or behind it."""
    if offset in (0, size):
        return offset
    at = offset - 1
    stream.seek(at)
    while data := stream.read(_BLOCK_BYTES // 64):
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
    return size


def _split(stream: Any, count: int | None, *, first: bool) -> Iterator[list[str]]:
    """The lines of so many bytes, or of all; `first` are those of the file, which a mark of UTF-8 may precede."""
    rest = b""
    while count is None or count > 0:
        data = stream.read(_BLOCK_BYTES if count is None else min(_BLOCK_BYTES, count))
        if not data:
            break
        count = None if count is None else count - len(data)
        data = rest + data
        if first and len(data) >= len(_BOM):
            data, first = data.removeprefix(_BOM), False
        whole = data.rfind(b"\n") + 1
        rest = data[whole:]
        if whole:
            yield _texts(data[:whole])
    if rest:
        yield _texts(rest)


def _texts(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")
