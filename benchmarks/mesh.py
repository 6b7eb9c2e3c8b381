"""The mesh join beside index nested loops and look-ups, within the same memory (Polyzotis et al., ICDE 2007, Figures 6 a to d).

    python benchmarks/mesh.py                          # R of 3 500 000 rows of 120 bytes: a quarter of an hour
    python benchmarks/mesh.py --rows 35000000 --parts memory

R is a table of Parquet files as this engine writes them, with row groups of 10 000 rows, in random order of its key; the stream has keys of R,
uniform or by Zipf's law. `memory` is a share of R's 120 bytes per row. Rates are keys per second, each for the keys that met all of R:

    6a pages       the rate over b, the pages of a read, at 5 % of R: predicted by the model that was fitted to one setting, and measured
    6b memory      the rate over the budget, 0.1 to 10 % of R, for streams of skew 0, 0.5 and 1, beside index nested loops over SQLite whose page cache
                   has as much, and beside this engine's look-up of the same keys at once without copies of columns, which is a scan
                   for each batch, with as much memory as it likes
    6c skew        the rate over the skew of R's key (0 to 1) at 5 %, where values of R repeat
    6d peak        not of the paper, whose Figure 6 (d) is (b) over weather data that are not at hand: bytes of the mesh's own structures at most, over the budget, while far more keys wait than fit

The file cache of the system is emptied of the files that are read before every setting (`posix_fadvise`), and of SQLite's file before every
hundred keys. A cycle ends with the same rows as a look-up of the same keys: every setting of 6b checks that.

One JSON line per figure.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from frame import Figure, arguments, canvas, ratio, run
from pyspark.sql import SparkSession

from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.mesh.pages import Pages
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image
from cq_engine.storage.file_look_ups import FileLookUps

NAME = "mesh"
ROW_BYTES = 120
COLUMNS = (Column("k", "bigint"), *(Column(f"c{n}", "bigint") for n in range(14)))
SHARES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
PARTS = ("pages", "memory", "skew", "peak")
FILE = 500_000


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:  # noqa: ARG001 - as of the others
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    return run(NAME, options, lambda place, _: measure(place, options), draw=plot)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__.partition("\n")[0], scales=(), rounds=3)
    parser.add_argument("--rows", type=int, default=3_500_000, help="rows of R (default: %(default)s)")
    parser.add_argument(
        "--probes", type=int, default=2_000, help="keys that nested loops look up (default: %(default)s)"
    )
    parser.add_argument(
        "--group", type=int, default=10_000, help="rows of a row group (default: %(default)s)"
    )
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        default=list(SHARES),
        help="budgets, as shares of R (default: %(default)s)",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.set_defaults(scales=[1.0])
    return parser.parse_args(argv)


def measure(directory: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """All parts."""
    table = Table(directory, options.rows, 0.0, options)
    for part in options.parts:
        yield from {"pages": _pages, "memory": _memory, "skew": _skew, "peak": _peak}[part](table, options)


# ---------------------------------------------------------------- R and S


class Table:
    """R in Parquet files; with a skew, its keys are drawn by Zipf's law and repeat."""

    def __init__(self, directory: Path, rows: int, skew: float, options: argparse.Namespace) -> None:
        self.directory = directory
        self.rows = rows
        self.numbers = np.random.default_rng(options.seed)
        self.files: list[str] = []
        keys = self.numbers.permutation(rows) if not skew else zipf(self.numbers, rows, skew, rows)
        for start in range(0, rows, FILE):
            part = keys[start : start + FILE]
            data = {"k": part, **{f"c{n}": self.numbers.integers(0, 2**40, len(part)) for n in range(14)}}
            path = str(directory / f"r{skew:g}-{start:09d}.parquet")
            pq.write_table(pa.table(data), path, row_group_size=options.group, compression="zstd")
            self.files.append(path)

    @property
    def bytes(self) -> int:
        return self.rows * ROW_BYTES

    def forget(self) -> None:
        """Takes the files out of the system's cache."""
        for path in self.files:
            forget(path)

    def mesh(self, memory: int) -> tuple[TableMesh, Image]:
        pages = Pages(None, 1_024)
        return TableMesh(pages, memory), pages.image(self.files, COLUMNS)

    def keys(self, count: int, skew: float = 0.0) -> pa.Array:
        """Distinct keys of a stream, in the order of their first arrival: of so many changes."""
        drawn = (
            self.numbers.integers(0, self.rows, count)
            if not skew
            else zipf(self.numbers, self.rows, skew, count)
        )
        return pc.unique(pa.array(drawn))


def zipf(numbers: np.random.Generator, domain: int, skew: float, count: int) -> np.ndarray:
    """Ranks 0 to domain - 1 with weights 1 / rank^skew, whose places in the domain are shuffled."""
    weights = np.cumsum(1.0 / np.arange(1, domain + 1) ** skew)
    ranks = np.searchsorted(weights / weights[-1], numbers.random(count))
    return np.random.default_rng(1).permutation(domain)[ranks]


def forget(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


# ---------------------------------------------------------------- figures


def _served(table: Table, mesh: TableMesh, image: Image, keys: pa.Array) -> tuple[float, pa.Table]:
    """Keys per second of a stream that fills the window, after a first cycle over the same table; the rows."""
    table.forget()
    started = time.perf_counter()
    rows = mesh.rows(image, None, {"k": keys}, COLUMNS)
    return len(keys) / (time.perf_counter() - started), rows


def _window(mesh: TableMesh, image: Image) -> int:
    return max(1, int(mesh.tuning(image, COLUMNS).window))


def _pages(table: Table, _: argparse.Namespace) -> Iterator[Figure]:
    """Figure 6 (a)."""
    memory = int(0.05 * table.bytes)
    fitted, image = table.mesh(memory)
    for _ in range(2):
        _served(table, fitted, image, table.keys(_window(fitted, image)))
    model = fitted.model(image, COLUMNS)
    most = int(memory * 0.75 / model.relation.page_bytes)
    for chunk in sorted({1, 2, 3, 5, 7, 9, 11, most - 1}):
        batch = model.largest_batch(memory * 0.75, chunk)
        if not 1 <= chunk <= most or batch <= 0:
            continue
        predicted = model.of(batch, chunk)
        mesh, image = table.mesh(memory)
        mesh.tuning = _always(predicted)  # type: ignore[method-assign]
        mesh._chunk = _always(chunk)  # type: ignore[method-assign]  # noqa: SLF001 - the experiment says b
        rate, _ = _served(table, mesh, image, table.keys(max(1, int(predicted.window))))
        yield {
            "figure": "6a pages", "b": chunk, "window": int(predicted.window), "predicted": round(predicted.rate),
            "measured": round(rate), "ratio": ratio(rate, predicted.rate),
        }  # fmt: skip


def _always(value):
    return lambda *_: value


def _memory(table: Table, options: argparse.Namespace) -> Iterator[Figure]:
    """Figure 6 (b), with the stream's skew of the paper (0.5), uniform, and 1."""
    database = _sqlite(table)
    for skew in (0.0, 0.5, 1.0):
        for share in options.shares:
            memory = int(share * table.bytes)
            mesh, image = table.mesh(memory)
            for _ in range(2):  # learns the factors, and warms nothing: files are forgotten
                _served(table, mesh, image, table.keys(_window(mesh, image), skew))
            predicted = mesh.tuning(image, COLUMNS)
            keys = table.keys(_window(mesh, image), skew)
            rate, rows = _served(table, mesh, image, keys)
            loops = _nested_loops(database, memory, table.keys(options.probes, skew))
            looked_up, seconds = _look_ups(table, keys)
            if sorted(rows.column("k").to_pylist()) != sorted(looked_up.column("k").to_pylist()):
                raise AssertionError("the mesh gives other rows than a look-up")
            yield {
                "figure": "6b memory", "skew": skew, "share": share, "memory": memory, "keys": len(keys),
                "mesh": round(rate), "predicted": round(predicted.rate), "nested loops": round(loops),
                "look-ups": round(len(keys) / seconds), "over nested loops": ratio(rate, loops),
                "over look-ups": ratio(rate, len(keys) / seconds),
            }  # fmt: skip


def _sqlite(table: Table) -> str:
    """R in a B-tree, clustered by its key."""
    path = str(table.directory / "r.sqlite")
    with sqlite3.connect(path) as connection:
        names = ", ".join(f"c{n} INT" for n in range(14))
        connection.execute(f"CREATE TABLE r (k INTEGER PRIMARY KEY, {names})")
        whole = pa.concat_tables([pq.read_table(file) for file in table.files]).sort_by("k")
        for batch in whole.to_batches(50_000):
            rows = zip(*(column.to_pylist() for column in batch.columns))
            connection.executemany(f"INSERT INTO r VALUES ({', '.join('?' * 15)})", rows)
    connection.close()
    return path


def _nested_loops(path: str, memory: int, keys: pa.Array) -> float:
    """Keys per second of probes one by one, with a page cache of so many bytes; the file is forgotten by the system every 100 keys, so
    that what is not in the page cache is read."""
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA cache_size = -{max(1, memory // 1024)}")
    forget(path)
    seconds = 0.0
    values = keys.to_pylist()
    for start in range(0, len(values), 100):
        forget(path)
        began = time.perf_counter()
        for key in values[start : start + 100]:
            connection.execute("SELECT * FROM r WHERE k = ?", (key,)).fetchall()
        seconds += time.perf_counter() - began
    connection.close()
    return len(values) / seconds


def _look_ups(table: Table, keys: pa.Array) -> tuple[pa.Table, float]:
    """This engine's look-up of the same keys at once, without copies of columns: it decodes the row groups that may have them."""
    table.forget()
    look_ups = FileLookUps(Limits())
    files = [(path, FILE) for path in table.files]
    started = time.perf_counter()
    rows = look_ups.rows(1, files, COLUMNS, {"k": keys}, 10**9)
    return rows, time.perf_counter() - started


def _skew(table: Table, options: argparse.Namespace) -> Iterator[Figure]:
    """Figure 6 (c)."""
    memory = int(0.05 * table.bytes)
    for skew in (0.1, 0.5, 1.0):
        with tempfile.TemporaryDirectory(prefix="cq-bench-") as directory:
            skewed = Table(Path(directory), table.rows, skew, options)
            mesh, image = skewed.mesh(memory)
            for _ in range(2):
                _served(skewed, mesh, image, skewed.keys(_window(mesh, image) // 4, 0.5))
            keys = skewed.keys(_window(mesh, image) // 4, 0.5)
            rate, rows = _served(skewed, mesh, image, keys)
            yield {
                "figure": "6c skew", "skew": skew, "keys": len(keys), "rows": rows.num_rows, "mesh": round(rate),
                "peak_share": round(mesh.counters.peak / memory, 3),
            }  # fmt: skip


def _peak(table: Table, options: argparse.Namespace) -> Iterator[Figure]:
    """A stream that is faster than the rate: three windows wait at once."""
    for share in options.shares:
        memory = int(share * table.bytes)
        mesh, image = table.mesh(memory)
        keys = table.keys(3 * _window(mesh, image))
        rate, _ = _served(table, mesh, image, keys)
        yield {
            "figure": "6d peak", "share": share, "memory": memory, "peak": mesh.counters.peak,
            "peak_share": round(mesh.counters.peak / memory, 3), "keys": len(keys), "mesh": round(rate),
            "spilled": mesh.counters.spilled,
        }  # fmt: skip


def plot(figures: Sequence[Figure], path: str) -> None:
    """Rates over pages, memory and skew; what the structures take."""
    drawn = canvas(4, shared=False)
    if drawn is None:
        return
    drawing, (pages, memory, skew, peak) = drawn

    def of(figure: str) -> list[Figure]:
        return [each for each in figures if each["figure"] == figure]

    for name in ("predicted", "measured"):
        pages.plot([f["b"] for f in of("6a pages")], [f[name] for f in of("6a pages")], "o-", label=name)
    pages.set(title="6 (a) 5 % of R", xlabel="b, pages of a read", ylabel="keys per second")
    for name in ("mesh", "predicted", "nested loops", "look-ups"):
        chosen = [f for f in of("6b memory") if f["skew"] == 0.5]
        memory.plot([100 * f["share"] for f in chosen], [f[name] for f in chosen], "o-", label=name)
    memory.set(title="6 (b) stream of skew 0.5", xlabel="memory, % of R", xscale="log", yscale="log")
    skew.plot([f["skew"] for f in of("6c skew")], [f["mesh"] for f in of("6c skew")], "o-", label="mesh")
    skew.set(title="6 (c) 5 % of R", xlabel="skew of R's key", yscale="log")
    for name in ("memory", "peak"):
        peak.plot(
            [100 * f["share"] for f in of("6d peak")],
            [f[name] / 2**20 for f in of("6d peak")],
            "o-",
            label=name,
        )
    peak.set(title="bytes held", xlabel="memory, % of R", ylabel="MB", xscale="log", yscale="log")
    for panel in (pages, memory, skew, peak):
        panel.legend()
    drawing.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
