"""The pages of a table: row groups of its data files, read one run after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema
from cq_engine.mesh.sizes import TEXT_BYTES, fixed_width
from cq_engine.mesh.window import Image, Page
from cq_engine.storage.file_look_ups import Restrict
from cq_engine.storage.row_groups import RowGroups, in_order
from cq_engine.storage.rows import conform, open_dataset

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import pyarrow.fs as pafs

__all__ = ["Pages", "Shapes", "Source"]

_LONG_BYTES = 4_096
"""Values of which the longest is not in the statistics are longer than this, as Arrow writes them."""
_BUFFER_BYTES = 1 << 16
"""Of a column's values in a local file as they are compressed there, which are read at a time. Those of a bucket are read with few requests, a
row group at once."""
_REMEMBERED = 4_096
"""Pages of which it is known what a row takes."""


class Source(Protocol):
    """What reads pages."""

    def rows(self, page: Page, columns: Sequence[Column]) -> int: ...

    def row_bytes(self, page: Page, columns: Sequence[Column]) -> float: ...

    def read(self, pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]: ...

    def close(self) -> None: ...


class Shapes:
    """By image, how many rows a page has and how many bytes a row of some columns, as the largest page of its first file says. It is looked
    into once, by who asks for rows of the image: who reads on for all must not depend on files that only others need."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: WeakKeyDictionary[Image, dict[tuple[Column, ...], tuple[float, float]]]
        self._known = WeakKeyDictionary()

    def of(self, image: Image, columns: Sequence[Column]) -> tuple[float, float]:
        """Rows and bytes, at least one each. Raises what reading a footer raises."""
        known, read = self._known.setdefault(image, {}), tuple(columns)
        if read not in known:
            rows, nbytes = 1.0, 1.0
            if image.pages:
                first = [page for page in image.pages if page.file == image.pages[0].file]
                largest = max(first, key=lambda page: self._source.rows(page, read))
                rows = max(1.0, self._source.rows(largest, read))
                nbytes = self._source.row_bytes(largest, read)
            known[read] = rows, nbytes
        return known[read]


class _Open(NamedTuple):
    """The file that is read."""

    path: str
    file: pq.ParquetFile
    handle: pa.NativeFile
    names: frozenset[str]
    """Of its columns."""


class Pages:
    """Pages of files of one file system, whose footers it keeps: those of at most `files` files, and the images of a few versions
    of a table. Thread-safe but for `read`, of which one may run at a time."""

    def __init__(self, filesystem: pafs.FileSystem | None, files: int, images: int = 4) -> None:
        self._filesystem = filesystem
        self._footers = RowGroups(files)
        self._fragments: LRUCache[str, ds.ParquetFileFragment] = LRUCache(files)
        self._images: LRUCache[tuple[str, ...], Image] = LRUCache(images)
        self._row_bytes: LRUCache[tuple[Page, tuple[Column, ...]], float] = LRUCache(_REMEMBERED)
        self._guard = threading.Lock()
        self._open: _Open | None = None

    def image(self, files: Sequence[str], columns: Sequence[Column]) -> Image:
        """The pages of these files; for the same files the same object."""
        key = tuple(sorted(files))
        with self._guard:
            known = self._images.get(key)
        if known is not None:
            return known
        groups = [(path, self._footer(path, columns).num_row_groups) for path in key]
        made = Image(Page(path, n) for path, count in groups for n in range(count))
        with self._guard:
            known = self._images.get(key)  # somebody else may have been faster
            if known is None:
                known = self._images[key] = made
            return known

    def needed(
        self, image: Image, columns: Sequence[Column], restrict: Restrict, files: Sequence[str]
    ) -> npt.NDArray[np.bool_]:
        """Which pages of these files may have a wanted value in every column, by the statistics in the files' footers."""
        mask = np.zeros(len(image), np.bool_)
        wanted = in_order(restrict)
        for path in files:
            for group in self._footers.groups(self._fragment(path, columns), wanted):
                place = image.place(Page(path, group))
                if place is not None:
                    mask[place] = True
        return mask

    def rows(self, page: Page, columns: Sequence[Column]) -> int:
        """How many rows a page has."""
        return int(self._footer(page.file, columns).row_group(page.group).num_rows)

    def row_bytes(self, page: Page, columns: Sequence[Column]) -> float:
        """What a row of a page takes in memory, of these columns, by its types; of text, by what the footer says of it."""
        key = page, tuple(columns)
        with self._guard:
            known = self._row_bytes.get(key)
        if known is None:
            group = self._footer(page.file, columns).row_group(page.group)
            known = max(1.0, _row_bytes(group, arrow_schema(columns)))
            with self._guard:
                self._row_bytes[key] = known
        return known

    def read(self, pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        """The rows of pages of one file, in their order, at most so many at a time. Raises OSError, ArrowException."""
        opened = self._file(pages[0].file, columns)
        present = [c.name for c in columns if c.name in opened.names]
        groups = [page.group for page in pages]
        if not present:  # the columns came later than the file
            for page in pages:
                count, most = self.rows(page, columns), max(1, rows)
                yield from (_nulls(min(most, count - start), columns) for start in range(0, count, most))
            return
        for batch in opened.file.iter_batches(batch_size=max(1, rows), row_groups=groups, columns=present):
            given = [conform(pa.Table.from_batches([batch]), columns)]
            del batch
            yield given.pop()  # nobody here has it while the next part is decoded

    def close(self) -> None:
        """Closes the file that is read."""
        if self._open is not None:
            self._open.handle.close()
            self._open = None

    def _file(self, path: str, columns: Sequence[Column]) -> _Open:
        if self._open is None or self._open.path != path:
            self.close()
            footer = self._footer(path, columns)
            if self._filesystem is None:
                _announce(path)
                handle = pa.OSFile(path)
            else:
                handle = self._filesystem.open_input_file(path)
            how = (
                {"pre_buffer": True}
                if self._filesystem
                else {"pre_buffer": False, "buffer_size": _BUFFER_BYTES}
            )
            file = pq.ParquetFile(handle, metadata=footer, coerce_int96_timestamp_unit="us", **how)
            self._open = _Open(path, file, handle, frozenset(file.schema_arrow.names))
        return self._open

    def _footer(self, path: str, columns: Sequence[Column]) -> pq.FileMetaData:
        return self._footers.metadata(self._fragment(path, columns))

    def _fragment(self, path: str, columns: Sequence[Column]) -> ds.ParquetFileFragment:
        with self._guard:
            known = self._fragments.get(path)
        if known is None:  # the lock is never held while something is read
            known = next(iter(open_dataset([path], columns, self._filesystem).get_fragments()))
            with self._guard:
                self._fragments[path] = known
        return known


def _row_bytes(group: pq.RowGroupMetaData, schema: pa.Schema) -> float:
    chunks: dict[str, list[pq.ColumnChunkMetaData]] = {}
    for n in range(group.num_columns):
        chunk = group.column(n)
        chunks.setdefault(chunk.path_in_schema.partition(".")[0], []).append(chunk)
    found, rows = 0.0, max(1, group.num_rows)
    for field in schema:
        width = fixed_width(field.type)
        if width is None:
            width = TEXT_BYTES + sum(_text_bytes(chunk, rows) for chunk in chunks.get(field.name, ()))
        found += width
    return found


def _text_bytes(chunk: pq.ColumnChunkMetaData, rows: int) -> float:
    """Of a value, in the mean: what it takes in the file; where values stand in a dictionary, what the longer of the smallest and the
    largest takes, since the file says nothing of how often each is there."""
    inside = float(chunk.total_uncompressed_size) / rows
    statistics = chunk.statistics
    if not chunk.has_dictionary_page or (statistics is not None and statistics.null_count == rows):
        return inside
    if statistics is None or not statistics.has_min_max:
        return max(inside, _LONG_BYTES)
    ends = (statistics.min, statistics.max)
    return max(
        inside,
        *(len(end.encode() if isinstance(end, str) else end) for end in ends if isinstance(end, str | bytes)),
        0,
    )


def _announce(path: str) -> None:
    """Tells the system that a file is about to be read, so that it reads ahead while pages are decoded."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(handle)


def _nulls(count: int, columns: Sequence[Column]) -> pa.Table:
    schema = arrow_schema(columns)
    return pa.Table.from_arrays([pa.nulls(count, field.type) for field in schema], schema=schema)
