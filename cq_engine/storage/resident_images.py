"""Images of small tables in memory: the rows after the newest commit that was asked for, moved on by the change rows since."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, DELETE, INSERT, UPDATE_PREIMAGE
from cq_engine.catalog.model import ChangeSet, Layout, VersionedTable
from cq_engine.core.arrays import array
from cq_engine.core.columns import Column
from cq_engine.core.errors import StorageError
from cq_engine.core.keeping import keep
from cq_engine.storage.change_rows import ChangeReader
from cq_engine.storage.rows import Heap, identity_keys

__all__ = ["ResidentImage", "ResidentImages"]


class ResidentImage:
    """The rows of one small table at one version; change rows move it to later versions.

    `positions` says which rows of the heap are alive, by identity.
    """

    def __init__(self, columns: Sequence[Column], identity: Sequence[str]) -> None:
        self.columns = tuple(columns)
        by_name = {c.name: c for c in columns}
        self.identity = tuple(by_name[name] for name in identity)
        self.version = 0
        self.positions: dict[Hashable, int] = {}
        self._heap = Heap(columns)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        return self._heap.nbytes

    def load(self, rows: pa.Table, version: int) -> None:
        """Adds rows of the image at `version`."""
        self.version = version
        if rows.num_rows:
            start = self._heap.append(rows)
            keys = identity_keys(rows, self.identity)
            self.positions.update(zip(keys, range(start, start + len(keys))))

    def advance(self, changes: pa.Table, version: int) -> None:
        """Applies the change rows of (self.version, version], at most one net change per identity and version."""
        self.version = version
        if changes.num_rows == 0:
            return
        changes = changes.sort_by(COMMIT_VERSION) if changes.num_rows > 1 else changes
        start = self._heap.append(changes)
        keys = identity_keys(changes, self.identity)
        for offset, (key, kind) in enumerate(zip(keys, changes.column(CHANGE_TYPE).to_pylist())):
            if kind == DELETE:
                self.positions.pop(key, None)
            elif kind != UPDATE_PREIMAGE:
                self.positions[key] = start + offset
        if len(self._heap) > 2 * len(self.positions) + 1000:
            self.compact()

    def rows(self) -> pa.Table:
        """The rows that are alive."""
        return self._heap.take(self.positions.values())

    def find(self, keys: Iterable[Hashable]) -> pa.Table:
        """The rows with these identities."""
        return self._heap.take([self.positions[k] for k in keys if k in self.positions])

    def compact(self) -> None:
        """Forgets the rows that are no longer alive."""
        live = self.rows()
        self.positions = {key: n for n, key in enumerate(self.positions)}
        self._heap = Heap(self.columns)
        self._heap.append(live)


_ADDED = tuple(array([INSERT, DELETE], pa.string()))
"""As values of Arrow: comparing with a str of Python would import pandas."""
_SIZES = 16
"""Of so many images of a table that were too large to be kept it is remembered how large they were: those of the slices of a catch-up."""


@dataclass(frozen=True)
class _Size:
    """What an image that was too large to be kept had at a version."""

    version: int
    rows: int
    nbytes: int


class ResidentImages:
    """The images of the small tables that `reader` was asked for, one each. Not thread-safe."""

    def __init__(self, reader: ChangeReader) -> None:
        self._reader = reader
        self._images: LRUCache[int, ResidentImage]
        self._images = LRUCache(reader.limits.small_bytes // 2, getsizeof=attrgetter("nbytes"))
        self._large: dict[int, LRUCache[int, _Size]] = {}
        """By table and version."""

    def at(self, table: VersionedTable, version: int) -> ResidentImage | None:
        """The image at exactly `version`, or None where it is not small. The newest one seen is kept and moved forward."""
        columns = table.physical_columns
        kept = self._images.get(table.id)
        if kept is not None and kept.columns == columns:
            if kept.version == version:
                return kept
            if kept.version < version and self._advance(table, kept, version):
                return kept
        image = self._build(table, version)
        if image is not None and (kept is None or kept.version < version or kept.columns != columns):
            self._images[table.id] = image
        return image

    def forget(self, table: VersionedTable) -> None:
        """Reads the table anew."""
        self._images.pop(table.id, None)
        self._large.pop(table.id, None)

    def keep_tables(self, ids: Collection[int]) -> None:
        """Forgets the images of other tables."""
        keep(self._images, ids)
        keep(self._large, ids)

    def _advance(self, table: VersionedTable, image: ResidentImage, version: int) -> bool:
        try:
            changes = self._reader.changes_arrow(
                table, image.version, version, self._reader.limits.small_rows
            )
        except StorageError:
            if image.version >= self._reader.catalog.floor(table.id):
                raise
            changes = None  # the changes since were forgotten
        del self._images[table.id]  # what is interrupted now has half of the changes
        if changes is None or len(image) + changes.num_rows > 2 * self._reader.limits.small_rows:
            return False
        image.advance(changes, version)
        if not self._is_small(table, image):
            return False
        self._images[table.id] = image  # with the size that it has now
        return True

    def _build(self, table: VersionedTable, version: int) -> ResidentImage | None:
        layout = self._reader.catalog.layout(table.id, version)
        sets = [s for s in layout.changes if s.low <= version]
        if len(layout.snapshot) > self._reader.limits.look_up_files or self._was_large(
            table, layout, sets, version
        ):
            return None
        changes = self._reader.rows_of(table, sets, layout.base, version)
        if changes is None:
            return None
        count = sum(file.rows for file in layout.snapshot) + _added(changes)
        if count > self._reader.limits.small_rows:  # counted before it is built
            self._note_large(table, _Size(version, count, 0))
            return None
        image = ResidentImage(table.physical_columns, table.identity)
        if layout.snapshot:
            rows = self._reader.read_files(table, layout.snapshot, table.physical_columns)
            image.load(rows, layout.base)
        image.advance(changes, version)
        return image if self._is_small(table, image) else None

    def _is_small(self, table: VersionedTable, image: ResidentImage) -> bool:
        """Whether it may be kept; where not, its size is remembered, so that it is not built again to be counted."""
        limits = self._reader.limits
        if len(image) <= limits.small_rows and image.nbytes > limits.small_bytes // 4:
            image.compact()
        if len(image) <= limits.small_rows and image.nbytes <= limits.small_bytes // 4:
            return True
        self._note_large(table, _Size(image.version, len(image), image.nbytes))
        return False

    def _note_large(self, table: VersionedTable, size: _Size) -> None:
        self._large.setdefault(table.id, LRUCache(_SIZES))[size.version] = size

    def _was_large(
        self, table: VersionedTable, layout: Layout, sets: Sequence[ChangeSet], version: int
    ) -> bool:
        """Whether too many rows must be left of the snapshot, or of the image that was too large, after the change rows since."""
        snapshot = sum(file.rows for file in layout.snapshot)
        if snapshot + _growth(sets, layout.base, version) > self._reader.limits.small_rows:
            return True
        sizes: Mapping[int, _Size] = self._large.get(table.id, {})
        before = [known for known in sizes if layout.base <= known <= version]
        if not before:
            return False
        known = sizes[max(before)]
        least = known.rows + _growth(sets, known.version, version)
        nbytes = known.nbytes * least // max(known.rows, 1)
        return least > self._reader.limits.small_rows or nbytes > self._reader.limits.small_bytes // 4


def _added(changes: pa.Table) -> int:
    """How many rows more there are after change rows of several versions, each with at most one net change per identity."""
    kinds = changes.column(CHANGE_TYPE)
    added, gone = (pc.sum(pc.equal(kinds, kind)).as_py() or 0 for kind in _ADDED)
    return int(added - gone)


def _growth(sets: Iterable[ChangeSet], a: int, b: int) -> int:
    """At least so many rows are added by the change sets of (a, b]."""
    growth = 0
    for each in sets:
        if "DELETE" in each.kinds:
            growth -= each.rows if max(a + 1, each.low) <= min(b, each.high) else 0
        elif each.kinds == {"INSERT"} and a < each.low and each.high <= b:
            growth += each.rows
    return growth
