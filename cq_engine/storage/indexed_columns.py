"""Look-ups by key in copies of columns that are mapped into memory.

In a Parquet file a look-up decodes a row group, ten thousand rows, for each row that it finds. So a file that is looked
into again and again gets copies of the columns that look-ups read: decoded, each in an Arrow file that the system maps
into memory and keeps there while it is used. Wanted values are found by binary search: in the column where it is in
order, otherwise in a sorted copy that has the places. Data files never change, so copies are never out of date; they
are made in the background, and the files that nobody has looked into for longest lose them where they take more than
the budget.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.core import faults
from cq_engine.core.arrays import is_in_order
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.keeping import keep
from cq_engine.core.limits import Limits
from cq_engine.core.types import arrow_schema
from cq_engine.storage.rows import open_dataset
from cq_engine.storage.scratch import scratch_directory
from cq_engine.storage.sorted_columns import (
    Restrict,
    SortedColumn,
    can_be_sorted,
    numbers_of,
    places_of,
    sort_numbers,
)

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["Choose", "IndexedColumns"]

Choose: TypeAlias = "Callable[[pa.Table], npt.NDArray[np.bool_]]"
"""Which of the rows that a `Restrict` gives are wanted: those with a wanted combination of values."""


class IndexedColumns:
    """The copies of one engine. Thread-safe."""

    def __init__(self, limits: Limits, filesystem: pafs.FileSystem | None = None) -> None:
        self._limits = limits
        self._filesystem = filesystem
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._guard = threading.Lock()
        self._filling = threading.Lock()
        self._directory: Path | None = None

    # ------------------------------------------------------------ look-ups

    def rows(
        self,
        path: str,
        columns: Collection[Column],
        restrict: Restrict,
        limit: int,
        choose: Choose | None = None,
    ) -> pa.Table | None:
        """The rows of a data file that have a wanted value in every restricted column, as far as Arrow compares its
        type, and are chosen by these; at most `limit`. None where they are more, or a column has no copy."""
        with self._guard:
            file = self._files.get(path)
            if file is None or not file.copies:
                return None
            self._files.move_to_end(path)
            copies = dict(file.copies)
        if any(c not in copies for c in columns):
            return None
        by_name = {c.name: copies[c] for c in columns}
        known = {c.name for c in columns if can(c.type, Use.EQUAL)}
        most = limit if choose is None else max(limit, self._limits.look_up_candidates)
        limits = self._limits
        places = places_of(
            [(by_name[name], values) for name, values in restrict.items() if name in known],
            most,
            limits.column_copy_places,
            limits.column_copy_search,
        )
        if places is not None and len(places) > most:
            return None
        if places is not None and choose is not None:
            named = pa.table({name: by_name[name].values.take(pa.array(places)) for name in restrict})
            places = places[choose(named)]
        if places is not None and len(places) > limit:
            return None
        arrays = [by_name[c.name].values for c in columns]
        whole = pa.Table.from_arrays(arrays, schema=arrow_schema(list(columns)))
        if places is None:
            return whole if whole.num_rows <= limit else None
        return whole.take(pa.array(places))

    def has(self, path: str, columns: Collection[Column]) -> bool:
        """Does a data file have copies of these columns?"""
        with self._guard:
            file = self._files.get(path)
            return file is not None and all(c in file.copies for c in columns)

    def note_decoded(
        self, path: str, table: int, rows: int, of: int, columns: Iterable[Column], keys: Iterable[str]
    ) -> None:
        """A look-up has decoded `rows` of the `of` rows that a data file of a table has, to find `keys`."""
        with self._guard:
            file = self._files.setdefault(path, _File(table, of))
            file.decoded += rows
            file.wanted.update(columns)
            file.keys.update(keys)
            self._files.move_to_end(path)

    # ------------------------------------------------------------ copies

    def follow(self, table: int, files: Callable[[], Mapping[str, int]]) -> None:
        """Where files of a table have copies: new ones among those that it has now (path → rows) are to get the same,
        others lose theirs."""
        with self._guard:
            if not any(file.table == table and file.copies for file in self._files.values()):
                return
        now = files()
        with self._guard:
            old = {path: file for path, file in self._files.items() if file.table == table}
            copied = [file for file in old.values() if file.copies]
            wanted = set().union(*(file.copies for file in copied))
            keys = set().union(*(file.keys for file in copied))
            for path, rows in now.items():
                if path not in old:
                    self._files[path] = _File(table, rows, rows, set(wanted), set(keys))
            for path in old.keys() - now.keys():
                self._files.pop(path).remove()

    def keep_tables(self, tables: Container[int]) -> None:
        """Removes the copies of files of other tables, and what is known of them."""
        with self._guard:
            there = {path for path, file in self._files.items() if file.table in tables}
            for file in keep(self._files, there):
                file.remove()

    def fill(self, budget: int) -> int:
        """Makes the copies that pay, all together of at most `budget` bytes; how many files got some.

        That is where look-ups have decoded as much as the file has, or, while there is room, where other files of the
        table have copies.
        """
        done = 0
        with self._filling:
            if not budget:
                self._clear()
                return 0
            for path, file in self._due(budget):
                try:
                    done += self._copy(path, file, budget)
                except (OSError, pa.ArrowException):  # the file is gone, or the disk is full
                    with self._guard:
                        file.refuse()
        return done

    def close(self) -> None:
        """Removes the copies."""
        with self._filling:
            self._clear()

    def _clear(self) -> None:
        with self._guard:
            self._files.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _due(self, budget: int) -> list[tuple[str, _File]]:
        with self._guard:
            roomy = 2 * sum(file.nbytes for file in self._files.values()) < budget
            hot = {file.table for file in self._files.values() if file.copies and roomy}
            return [
                (path, file)
                for path, file in self._files.items()
                if file.wanted - file.copies.keys()
                and (file.decoded >= file.rows or (file.table in hot and not file.refused))
            ]

    def _copy(self, path: str, file: _File, budget: int) -> bool:
        """Copies what is wanted of a file; False where there is no room."""
        with self._guard:
            columns = sorted(file.wanted - file.copies.keys(), key=lambda c: c.name)
            keys = set(file.keys)
        if self._directory is None:
            place = Path(tempfile.gettempdir())
            self._directory = Path(tempfile.mkdtemp(dir=scratch_directory(place, "cq-engine-columns-")))
        rows = open_dataset([path], columns, self._filesystem).to_table(use_threads=False)
        if not self._room_for(path, rows.nbytes, budget):
            with self._guard:
                file.refuse()
            return False
        most = self._limits.column_copy_common
        copies = {
            c: _Copy.made(rows.column(c.name), self._directory, most if c.name in keys else 0)
            for c in columns
        }
        with self._guard:
            file.copies.update(copies)
        return True

    def _room_for(self, path: str, more: int, budget: int) -> bool:
        """Makes room within the budget; False where there is none."""
        assert self._directory is not None
        free = shutil.disk_usage(self._directory).free // self._limits.column_copy_share
        with self._guard:
            taken = sum(file.nbytes for file in self._files.values())
            for other, file in list(self._files.items()):
                if taken + more <= min(budget, taken + free):
                    break
                if other != path and file.copies:
                    taken -= file.nbytes
                    file.refuse()
            return taken + more <= min(budget, taken + free)


@dataclass
class _File:
    """What is known of a data file that was looked into."""

    table: int
    rows: int
    decoded: int = 0
    wanted: set[Column] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    refused: bool = False
    """Had it no room? Then it has to earn its copies again by what look-ups decode."""
    copies: dict[Column, _Copy] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(copy.nbytes for copy in self.copies.values())

    def remove(self) -> None:
        for copy in self.copies.values():
            copy.remove()

    def refuse(self) -> None:
        """Takes its copies away, and what it had earned."""
        self.remove()
        self.copies, self.decoded, self.refused = {}, 0, True


@dataclass
class _Copy(SortedColumn):
    """A column and its values in order, mapped from files."""

    nbytes: int
    paths: tuple[Path, ...]

    @classmethod
    def made(cls, column: pa.ChunkedArray, directory: Path, common: int) -> _Copy:
        """A copy that look-ups search where a value has on average at most `common` rows; 0: they do not."""
        paths = [_path(directory)]
        values = _map_columns(paths[0], {"values": column.combine_chunks()})["values"]
        ordered = places = None
        if common and can_be_sorted(column):
            numbers = numbers_of(values)
            if is_in_order(numbers):
                ordered = numbers
            elif len(column) <= common * len(pc.unique(column)):
                found, order = sort_numbers(numbers)
                paths.append(_path(directory))
                index = _map_columns(paths[1], {"ordered": pa.array(found), "places": pa.array(order)})
                ordered, places = numbers_of(index["ordered"]), numbers_of(index["places"])
        nbytes = sum(path.stat().st_size for path in paths)
        return cls(values, ordered, places, nbytes, tuple(paths))

    def remove(self) -> None:
        """Takes the files away; who reads them goes on."""
        for path in self.paths:
            with suppress(OSError):
                path.unlink()


def _path(directory: Path) -> Path:
    handle, name = tempfile.mkstemp(suffix=".arrow", dir=directory)
    with open(handle, "wb"):  # noqa: PTH123 - an open handle
        return Path(name)


def _map_columns(path: Path, columns: Mapping[str, pa.Array]) -> dict[str, pa.ChunkedArray]:
    """Columns that are written to a file and mapped from there."""
    rows = pa.table(dict(columns))
    faults.point("cache.write", path)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    with pa.memory_map(str(path)) as source:
        read = pa.ipc.open_file(source).read_all()
    return {name: read.column(name) for name in columns}
