"""Small change sets as Arrow IPC in the catalog, and a bounded cache of them decoded."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.model import CHANGE_TYPE, ChangeSet

__all__ = ["InlineCache", "decode", "encode", "kinds_of"]

_COMPRESS_FROM = 32_768
"""Bytes. Below that the schema outweighs the rows and a codec only costs time."""

_KINDS = {"insert": "INSERT", "delete": "DELETE", "update_preimage": "UPDATE", "update_postimage": "UPDATE"}


def encode(rows: pa.Table) -> bytes:
    """The rows as an Arrow IPC stream, compressed where they are many."""
    codec = next((c for c in ("zstd", "lz4") if pa.Codec.is_available(c)), None)
    options = pa.ipc.IpcWriteOptions(compression=codec if rows.nbytes >= _COMPRESS_FROM else None)
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
    return frozenset(_KINDS[kind] for kind in pc.unique(rows.column(CHANGE_TYPE)).to_pylist())


class InlineCache:
    """The change rows used last, up to `capacity` bytes; safe to share between threads."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._rows: OrderedDict[tuple[int, int, int, int], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, changes: ChangeSet) -> pa.Table | None:
        key = _key(changes)
        with self._lock:
            found = self._rows.get(key)
            if found is not None:
                self._rows.move_to_end(key)
            return found

    def put(self, changes: ChangeSet, rows: pa.Table) -> None:
        """Keeps `rows`; something larger than the whole cache is not kept."""
        size = rows.nbytes
        if size > self.capacity:
            return
        with self._lock:
            self._drop(_key(changes))
            self._rows[_key(changes)] = rows
            self.used += size
            while self.used > self.capacity:
                self._drop(next(iter(self._rows)))

    def discard(self, changes: ChangeSet) -> None:
        with self._lock:
            self._drop(_key(changes))

    def _drop(self, key: tuple[int, int, int, int]) -> None:
        dropped = self._rows.pop(key, None)
        if dropped is not None:
            self.used -= dropped.nbytes


def _key(changes: ChangeSet) -> tuple[int, int, int, int]:
    return (changes.table_id, changes.id, changes.low, changes.high)
