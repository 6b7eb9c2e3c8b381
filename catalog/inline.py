"""Small change sets as Arrow IPC in the catalog, and a bounded cache of them decoded."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from cq_engine.catalog.change_rows import CHANGE_TYPE, KINDS
from cq_engine.catalog.model import ChangeSet

__all__ = ["InlineCache", "decode", "encode", "kinds_of"]

_COMPRESS_FROM = 32_768
"""Bytes. Below that the schema outweighs the rows and a codec only costs time."""

_THREADS_FROM = 4_194_304
"""Bytes. Below that other threads take longer to begin, where the cores are taken, than the codec takes."""

_COLUMN_BYTES = 1000
"""What Arrow's objects for a chunk of a column take beside its values, measured: of ten rows nearly everything."""

_Key: TypeAlias = tuple[int, int, int, int]


def encode(rows: pa.Table) -> bytes:
    """The rows as an Arrow IPC stream, compressed where they are many."""
    codec = next((c for c in ("zstd", "lz4") if pa.Codec.is_available(c)), None)
    options = pa.ipc.IpcWriteOptions(
        compression=codec if rows.nbytes >= _COMPRESS_FROM else None,
        use_threads=rows.nbytes >= _THREADS_FROM,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def decode(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def kinds_of(rows: pa.Table) -> frozenset[str]:
    """Which of INSERT, DELETE, UPDATE occur in change rows."""
    return frozenset().union(*(KINDS[kind] for kind in pc.unique(rows.column(CHANGE_TYPE)).to_pylist()))


class InlineCache:
    """The change rows used last, up to `capacity` bytes of memory; safe to share between threads."""

    def __init__(self, capacity: int) -> None:
        self._rows: LRUCache[_Key, pa.Table] = LRUCache(capacity, getsizeof=_memory)
        self._lock = threading.Lock()

    def get(self, changes: ChangeSet) -> pa.Table | None:
        with self._lock:
            return self._rows.get(_key(changes))

    def put(self, changes: ChangeSet, rows: pa.Table) -> None:
        """Keeps `rows`; something larger than the whole cache is not kept."""
        with self._lock, suppress(ValueError):
            self._rows[_key(changes)] = rows

    def discard(self, changes: ChangeSet) -> None:
        with self._lock:
            self._rows.pop(_key(changes), None)


def _memory(rows: pa.Table) -> int:
    """The bytes that the rows take, with Arrow's own."""
    chunks = sum(column.num_chunks for column in rows.itercolumns())
    return int(rows.nbytes + _COLUMN_BYTES * chunks)


def _key(changes: ChangeSet) -> _Key:
    return (changes.table_id, changes.id, changes.low, changes.high)
