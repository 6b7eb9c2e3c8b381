"""R and S of `mesh.py`: tables in Parquet files, streams with their keys, and the nested loops that a mesh join is compared with."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import frame  # noqa: F401 - with it the examples are found
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from flights.source import DataMissingError, data_directory
from weather.source import Source

from cq_engine.core.columns import Column
from cq_engine.mesh.pages import Pages
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image

__all__ = [
    "COLUMNS",
    "FILE",
    "ROW_BYTES",
    "DataMissingError",
    "Keys",
    "NestedLoops",
    "Relation",
    "Table",
    "Weather",
    "forget",
    "full",
    "met",
]

ROW_BYTES = 120
COLUMNS = (Column("k", "bigint"), *(Column(f"c{n}", "bigint") for n in range(14)))
FILE = 500_000
"""Rows of a file."""

Keys = npt.NDArray[np.int64]


class Relation:
    """R: its files, what of it is read, and the column that its primary key is."""

    columns: Sequence[Column]
    key: str

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.numbers = np.random.default_rng(seed)
        self.files: list[str] = []
        self.rows = 0
        self.bytes = 0
        """What all rows take, decoded."""

    def stream(self, count: int, skew: float = 0.0) -> Keys:
        """The keys of the next changes, in the order of their arrival."""
        raise NotImplementedError

    def keys(self, changes: int, skew: float = 0.0) -> pa.Array:
        """The different ones of so many changes, in the order of their first arrival."""
        return pc.unique(pa.array(self.stream(changes, skew)))

    def mesh(self, memory: int) -> tuple[TableMesh, Image]:
        pages = Pages(None, 1_024)
        return TableMesh(pages, memory), pages.image(self.files, self.columns)

    def forget(self) -> None:
        """Takes the files out of the system's cache."""
        for path in self.files:
            forget(path)

    def write(self, name: str, rows: pa.Table, group: int) -> None:
        """A further file, with row groups of so many rows."""
        path = str(self.directory / f"{name}.parquet")
        pq.write_table(rows, path, row_group_size=group, compression="zstd")
        self.files.append(path)
        self.rows += rows.num_rows


class Table(Relation):
    """Fifteen numbers a row, in random order of the key; with a skew, keys are drawn by Zipf's law and repeat."""

    columns = COLUMNS
    key = "k"

    def __init__(self, directory: Path, rows: int, skew: float = 0.0, *, group: int, seed: int) -> None:
        super().__init__(directory, seed)
        keys = self.numbers.permutation(rows) if not skew else zipf(self.numbers, rows, skew, rows)
        for start in range(0, rows, FILE):
            part = keys[start : start + FILE]
            data = {"k": part, **{f"c{n}": self.numbers.integers(0, 2**40, len(part)) for n in range(14)}}
            self.write(f"r{skew:g}-{start:09d}", pa.table(data), group)
        self.bytes = rows * ROW_BYTES

    def stream(self, count: int, skew: float = 0.0) -> Keys:
        if not skew:
            return self.numbers.integers(0, self.rows, count)
        return zipf(self.numbers, self.rows, skew, count)


class Weather(Relation):
    """The weather of every hour at many places, and departures that refer to it (`cq example weather`), over and over in random order."""

    columns = (
        Column("observation", "bigint"), Column("place", "string"), Column("time_hour", "timestamp"),
        *(Column(name, "double") for name in ("temp", "wind_speed", "precip", "visib")),
    )  # fmt: skip
    key = "observation"

    def __init__(self, directory: Path, places: int, *, group: int, seed: int) -> None:
        super().__init__(directory, seed)
        source = Source(data_directory(), places, seed)
        weather = source.weather.select([column.name for column in self.columns])
        departures = source.departures(10**9, 1)
        self._departures = departures["observation"].to_numpy()
        for start in range(0, weather.num_rows, FILE):
            self.write(f"weather-{start:09d}", weather.slice(start, FILE), group)
        self.bytes = weather.nbytes

    def stream(self, count: int, skew: float = 0.0) -> Keys:  # noqa: ARG002 - they are as skew as people fly
        years = -(-count // len(self._departures))
        return np.concatenate([self.numbers.permutation(self._departures) for _ in range(years)])[:count]


def full(draw: Callable[[int], Keys], keys: int, most: int) -> Keys:
    """A stream until it has so many different keys, but of at most so many changes."""
    drawn = draw(min(keys, most))
    while True:
        _, firsts = np.unique(drawn, return_index=True)
        if len(firsts) >= keys:
            return drawn[: np.sort(firsts)[keys - 1] + 1]
        if len(drawn) >= most:
            return drawn
        drawn = np.concatenate([drawn, draw(min(len(drawn), most - len(drawn)))])


def zipf(numbers: np.random.Generator, domain: int, skew: float, count: int) -> Keys:
    """Ranks 0 to domain - 1 with weights 1 / rank^skew, whose places in the domain are shuffled."""
    weights = np.cumsum(1.0 / np.arange(1, domain + 1) ** skew)
    ranks = np.searchsorted(weights / weights[-1], numbers.random(count))
    return np.random.default_rng(1).permutation(domain)[ranks]


def forget(path: str) -> None:
    """Takes a file out of the system's cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


class NestedLoops:
    """Index nested loops over R in a B-tree that is clustered by its key (SQLite), with a page cache of so many bytes."""

    PAGE = 4096
    """Bytes of a page of SQLite."""

    def __init__(self, relation: Relation) -> None:
        self.path = str(relation.directory / "r.sqlite")
        names = [column.name for column in relation.columns]
        columns = ", ".join(f"{n} INTEGER PRIMARY KEY" if n == relation.key else n for n in names)
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute(f"CREATE TABLE r ({columns})")
            for batch in self._sorted(relation):
                rows = zip(*(column.to_pylist() for column in batch.columns))
                connection.executemany(f"INSERT INTO r VALUES ({', '.join('?' * len(names))})", rows)
        connection.close()
        self._probe = f"SELECT * FROM r WHERE {relation.key} = ?"

    @staticmethod
    def _sorted(relation: Relation) -> list[pa.RecordBatch]:
        whole = pa.concat_tables([pq.read_table(file) for file in relation.files]).sort_by(relation.key)
        for n, field in enumerate(whole.schema):
            if pa.types.is_timestamp(field.type):
                whole = whole.set_column(n, field.name, whole[field.name].cast(pa.int64()))
        return whole.to_batches(50_000)

    def rate(self, memory: int, stream: Callable[[int], Keys], probes: int) -> float:
        """Changes per second, of so many, after as many others as fill the cache. The file is forgotten by the system every 100 changes, so
        that what is not in the page cache is read."""
        connection = sqlite3.connect(self.path)
        connection.execute(f"PRAGMA cache_size = -{max(1, memory // 1024)}")
        before = 2 * (memory // self.PAGE)
        values = stream(before + probes).tolist()
        self._seconds(connection, values[:before])
        seconds = self._seconds(connection, values[before:])
        connection.close()
        return probes / seconds

    def _seconds(self, connection: sqlite3.Connection, values: Sequence[int]) -> float:
        seconds = 0.0
        for start in range(0, len(values), 100):
            forget(self.path)
            began = time.perf_counter()
            for key in values[start : start + 100]:
                connection.execute(self._probe, (key,)).fetchall()
            seconds += time.perf_counter() - began
        return seconds


def met(keys: Keys, rows: pa.Table, key: str, block: int = 65_536) -> int:
    """Joins changes with the rows that were found for their keys, some at a time, as a refresh hands them on; how many."""
    place = pc.index_in(pa.array(keys), value_set=rows[key].combine_chunks())
    place, rows = place.drop_null(), rows.combine_chunks()
    return sum(rows.take(place.slice(start, block)).num_rows for start in range(0, len(place), block))
