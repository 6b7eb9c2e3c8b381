"""Text files of the outside world, read line by line by executors, as Hadoop's reader cuts them: at `\\n`, `\\r\\n` and `\\r`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core.errors import StorageError
from cq_engine.core.limits import Limits
from cq_engine.spark.widths import cores, task_bytes
from cq_engine.storage.outside_files import asking
from cq_engine.storage.shares import Share, cut

__all__ = ["first_line", "read_lines"]

Batches = Iterator[pa.RecordBatch]
_BLOCK_BYTES = 4 * 2**20
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_UNKNOWN = (".deflate", ".snappy", ".lz4", ".lzo", ".xz", ".zip")
_BOM = b"\xef\xbb\xbf"
_BLANK = "".join(map(chr, range(33)))
"""What Java's `trim` takes away."""


def first_line(store: Store, files: Sequence[Found], comment: str = "") -> str:
    """The first line of text files that is not empty, nor begins with `comment`; an empty one where there is none. Raises StorageError."""
    for file in files:
        with asking(f"read {store.uri(file.path)}", store):
            for lines in _lines(store, Share(file), strict=False):
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
    strict: bool = False,
) -> DataFrame:
    """The lines of text files: `file`, its place among them, from 0, and `value`. Without empty lines and those that begin with `comment`;
    with `header` also without the first one of each file. What is no UTF-8 becomes U+FFFD; where it is `strict`, an error."""
    size = sum(file.size for file in files)
    weighed = (((n, file), file.size, not _codec(store, file)) for n, file in enumerate(files))
    tasks = cut(weighed, task_bytes(size, cores(spark), limits))
    reader = _reader(store, tasks, header, comment, strict)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(reader, "file INT, value STRING")


def _reader(
    store: Store,
    tasks: Sequence[Sequence[Share[tuple[int, Found]]]],
    header: bool,
    comment: str,
    strict: bool,
) -> Callable[[Batches], Batches]:
    """What runs in Spark's Python processes: it gets the numbers of the tasks."""

    def task(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for share in tasks[number]:
                    place, file = share.file
                    with asking(f"read {store.uri(file.path)}", store):
                        skip = header and share.number == 0
                        for lines in _lines(store, Share(file, share.number, share.of), strict):
                            wanted = [line for line in lines if _counts(line, comment)]
                            if skip and wanted:
                                del wanted[0]
                                skip = False
                            places = pa.array(np.full(len(wanted), place, np.int32))
                            yield pa.record_batch(
                                [places, pa.array(wanted, pa.string())], names=["file", "value"]
                            )

    return task


def _counts(line: str, comment: str) -> bool:
    return bool(line.strip(_BLANK)) and not (comment and line.startswith(comment))


def _codec(store: Store, file: Found) -> str:
    """How a file is compressed, by its name. Raises StorageError for what Arrow does not read."""
    name = file.path.lower()
    if name.endswith(_UNKNOWN):
        raise StorageError(
            f"{store.uri(file.path)} is compressed in a way that is not read here",
            hint="gzip (.gz), bzip2 (.bz2) and Zstandard (.zst) are",
        )
    return next((codec for ending, codec in _COMPRESSED.items() if name.endswith(ending)), "")


def _lines(store: Store, share: Share[Found], strict: bool) -> Iterator[list[str]]:
    """The lines that begin in a share of a file's bytes, some at a time."""
    file, codec = share.file, _codec(store, share.file)
    raw: Any = store.source(file.path)
    with raw:
        if codec:
            with pa.CompressedInputStream(raw, codec) as stream:
                blocks = _blocks(stream, None, first=True)
                yield from (_texts(store, file, each, strict) for each in blocks)
            return
        first, end = (
            _line_start(raw, file.size * n // share.of, file.size) for n in (share.number, share.number + 1)
        )
        raw.seek(first)
        for each in _blocks(raw, end - first, first=first == 0):
            yield _texts(store, file, each, strict)


def _line_start(stream: Any, offset: int, size: int) -> int:
    """Where the first line begins that begins at an offset or behind it."""
    if offset in (0, size):
        return offset
    at, length = offset - 1, _BLOCK_BYTES // 64
    stream.seek(at)
    while data := stream.read(length):
        newline, lone = int(data.find(b"\n")), int(data.find(b"\r"))
        if lone >= 0 and (newline < 0 or lone < newline - 1):
            if lone == len(data) - 1 and stream.read(1) == b"\n":
                return at + lone + 2
            return at + lone + 1
        if newline >= 0:
            return at + newline + 1
        at, length = at + len(data), _BLOCK_BYTES
    return size


def _blocks(stream: Any, count: int | None, *, first: bool) -> Iterator[bytes]:
    """The whole lines of so many bytes, or of all; `first` are those of the file, which a mark of UTF-8 may precede."""
    rest = b""
    while count is None or count > 0:
        data = stream.read(_BLOCK_BYTES if count is None else min(_BLOCK_BYTES, count))
        if not data:
            break
        count = None if count is None else count - len(data)
        data = rest + data
        if first and len(data) >= len(_BOM):
            data, first = data.removeprefix(_BOM), False
        whole = data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, -1) + 1  # behind the last byte a \n may come
        rest = data[whole:]
        if whole:
            yield data[:whole]
    if rest:
        yield rest


def _texts(store: Store, file: Found, data: bytes, strict: bool) -> list[str]:
    try:
        text = data.decode("utf-8", "strict" if strict else "replace")
    except UnicodeDecodeError as error:
        raise StorageError(
            f"{store.uri(file.path)} is no UTF-8", detail=str(error), hint="write it anew in UTF-8"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
