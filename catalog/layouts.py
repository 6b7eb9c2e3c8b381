"""Which files and change sets make up a versioned table at a version: the index of one table, in memory.

A file is part of the snapshot at s where added_version <= s and not removed_version <= s. Change sets are kept in
the order of (high, low, id), so that those with high > base are one slice.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from cq_engine.catalog.model import ChangeSet, DataFile, Layout
from cq_engine.core.errors import StorageError

__all__ = ["SnapshotFile", "TableLayout"]


@dataclass(frozen=True)
class SnapshotFile:
    """A file with the snapshot versions [added, removed) that it belongs to."""

    file: DataFile
    added: int
    removed: int | None = None

    def within(self, version: int) -> bool:
        return self.added <= version and (self.removed is None or self.removed > version)


@dataclass
class TableLayout:
    """The index of one versioned table; the caller serialises access."""

    table_id: int
    floor: int = 0
    """The oldest snapshot version that is kept. Version 0 is the empty table."""
    snapshots: list[int] = field(default_factory=lambda: [0])
    files: dict[str, SnapshotFile] = field(default_factory=dict)
    changes: list[ChangeSet] = field(default_factory=list)
    _snapshot_files: dict[int, tuple[DataFile, ...]] = field(default_factory=dict)

    @property
    def newest_snapshot(self) -> int:
        return self.snapshots[-1]

    @property
    def newest_change(self) -> int:
        """The highest version that changed the table; 0 where none did."""
        return self.changes[-1].high if self.changes else 0

    def at(self, version: int) -> Layout:
        """The layout to read the image at `version` from.

        Raises StorageError where no snapshot at or below `version` is kept.
        """
        place = bisect_right(self.snapshots, version)
        if place == 0:
            raise StorageError(
                f"version {version} is no longer kept",
                detail=f"the oldest version that can be read of this table is {self.floor}",
                hint="read a newer version",
            )
        base = self.snapshots[place - 1]
        files = self._snapshot_files.get(base)
        if files is None:
            files = tuple(f.file for f in self.files.values() if f.within(base))
            self._snapshot_files[base] = files
        return Layout(self.table_id, base, files, self.changes_after(base))

    def changes_after(self, version: int) -> tuple[ChangeSet, ...]:
        """The change sets with high > `version`, in version order."""
        return tuple(self.changes[bisect_right(self.changes, version, key=attrgetter("high")) :])

    def add_change(self, changes: ChangeSet) -> None:
        insort(self.changes, changes, key=attrgetter("high", "low", "id"))

    def replace_changes(self, old: Iterable[int], new: ChangeSet) -> None:
        """Puts `new` in the place of the change sets with the ids `old`."""
        self.remove_changes(old)
        self.add_change(new)

    def remove_changes(self, ids: Iterable[int]) -> None:
        gone = frozenset(ids)
        self.changes = [c for c in self.changes if c.id not in gone]

    def advance(self, version: int, add: Iterable[DataFile], remove: Iterable[str]) -> None:
        """Records a snapshot at `version`."""
        for path in remove:
            self.files[path] = replace(self.files[path], removed=version)
        for file in add:
            self.files[file.path] = SnapshotFile(file, version)
        if version != self.newest_snapshot:
            insort(self.snapshots, version)
        self._snapshot_files.pop(version, None)

    def forget(self, floor: int, paths: Sequence[str], changes: Iterable[int]) -> None:
        """Drops snapshots below `floor`, and the given files and change sets. What has no snapshot at or above it, a
        delta log, begins at `floor` then, with no rows."""
        self.floor = floor
        self.snapshots = [s for s in self.snapshots if s >= floor] or [floor]
        for path in paths:
            self.files.pop(path, None)
        self.remove_changes(changes)
        self._snapshot_files = {v: f for v, f in self._snapshot_files.items() if v >= floor}
