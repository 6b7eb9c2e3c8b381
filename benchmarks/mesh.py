"""The mesh join beside index nested loops and look-ups, within the same memory (Polyzotis et al., ICDE 2007, Figures 6 a to d).

    python benchmarks/mesh.py                          # R of 3 500 000 rows of 120 bytes: a quarter of an hour
    python benchmarks/mesh.py --rows 35000000 --parts memory

R is a table of Parquet files as this engine writes them, with row groups of 10 000 rows, in random order of its key; the stream has keys of R,
uniform or by Zipf's law. `memory` is a share of R's 120 bytes per row:

    6a pages       different keys per second over b, the pages of a read, at 5 % of R: predicted by the model that was fitted to one setting, and
                   measured
    6b memory      changes per second over the budget, 0.1 to 10 % of R, for streams of skew 0, 0.5 and 1, which fill the window with different keys (or have
                   twice as many changes as R has rows); beside index nested loops over SQLite whose page cache has as much, and is full, and beside
                   this engine's look-up of the same keys at once without copies of columns, which is a scan for each batch, with as much memory
                   as it likes. Each change is joined with its row, and that is timed for all three. `mesh keys` are different keys per second of the scan
                   alone, `predicted keys` what the cost model says of a full window; `predicted` compares them where it is full
    6c skew        different keys per second over the skew of R's key (0 to 1) at 5 %, where values of R repeat
    6d weather     as 6b, of a year's departures and the weather of every hour at 100 places (`cq example weather`), at 1 to 10 %; the departures come
                   in random order, and again and again until the window is full
    peak           bytes of the mesh's own structures at most, over the budget, while far more keys wait than fit

The file cache of the system is emptied of the files that are read before every setting (`posix_fadvise`), and of SQLite's file before every
hundred changes. A cycle ends with the same rows as a look-up of the same keys: every setting of 6b and 6d checks that.

One JSON line per figure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from frame import Figure, arguments, canvas, ratio, run
from mesh_world import FILE, DataMissingError, Keys, NestedLoops, Relation, Table, Weather, full, met
from pyspark.sql import SparkSession

from cq_engine.core.limits import Limits
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image
from cq_engine.storage.file_look_ups import FileLookUps

NAME = "mesh"
SHARES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
PARTS = ("pages", "memory", "skew", "weather", "peak")


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:  # noqa: ARG001 - as of the others
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    return run(NAME, options, lambda place, _: measure(place, options), draw=plot)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__.partition("\n")[0], scales=(), rounds=3)
    parser.add_argument("--rows", type=int, default=3_500_000, help="rows of R (default: %(default)s)")
    parser.add_argument(
        "--probes",
        type=int,
        default=2_000,
        help="changes that nested loops look up (default: %(default)s)",
    )
    parser.add_argument("--places", type=int, default=100, help="places with weather (default: %(default)s)")
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
    table = Table(directory, options.rows, group=options.group, seed=options.seed)
    parts = {"pages": _pages, "memory": _memory, "skew": _skew, "weather": _weather, "peak": _peak}
    for part in options.parts:
        yield from parts[part](table, options)


def _served(relation: Relation, mesh: TableMesh, image: Image, keys: pa.Array) -> tuple[float, pa.Table]:
    """Keys per second of a stream that fills the window, after a first cycle over the same table; the rows."""
    relation.forget()
    started = time.perf_counter()
    rows = mesh.rows(image, None, {relation.key: keys}, relation.columns)
    return len(keys) / (time.perf_counter() - started), rows


def _window(relation: Relation, mesh: TableMesh, image: Image) -> int:
    return max(1, int(mesh.tuning(image, relation.columns).window))


def _pages(table: Relation, _: argparse.Namespace) -> Iterator[Figure]:
    """Figure 6 (a)."""
    memory = int(0.05 * table.bytes)
    fitted, image = table.mesh(memory)
    for _ in range(2):
        _served(table, fitted, image, table.keys(_window(table, fitted, image)))
    model = fitted.model(image, table.columns)
    most = int(memory * 0.75 / model.relation.page_bytes)
    for chunk in sorted({1, 2, 3, 5, 7, 9, 11, most - 1}):
        batch = model.largest_batch(memory * 0.75, chunk)
        if not 1 <= chunk <= most or batch <= 0:
            continue
        predicted = model.of(batch, chunk)
        mesh, image = table.mesh(memory)
        mesh.tuning = _always(predicted)  # type: ignore[method-assign]
        mesh._chunk = _always(chunk)  # type: ignore[method-assign]  # noqa: SLF001 - the experiment says b
        keys = table.keys(max(1, int(predicted.window)))
        rate, _ = _served(table, mesh, image, keys)
        yield {
            "figure": "6a pages", "b": chunk, "window": int(predicted.window), "predicted": round(predicted.rate),
            "measured": round(rate), "ratio": ratio(rate, predicted.rate),
        }  # fmt: skip


def _always(value):
    return lambda *_: value


def _memory(table: Relation, options: argparse.Namespace) -> Iterator[Figure]:
    """Figure 6 (b), with the stream's skew of the paper (0.5), uniform, and 1."""
    loops = NestedLoops(table)
    for skew in (0.0, 0.5, 1.0):
        for share in options.shares:
            figure = _beside(table, loops, options, share, skew)
            yield {"figure": "6b memory", "skew": skew, "share": share, **figure}


def _weather(_: Relation, options: argparse.Namespace) -> Iterator[Figure]:
    """Figure 6 (d)."""
    with tempfile.TemporaryDirectory(prefix="cq-bench-") as directory:
        try:
            weather = Weather(Path(directory), options.places, group=options.group, seed=options.seed)
        except DataMissingError as problem:
            print(f"6d weather left out: {problem}", file=sys.stderr)
            return
        loops = NestedLoops(weather)
        for share in [each for each in options.shares if each >= 0.01]:
            yield {"figure": "6d weather", "share": share, **_beside(weather, loops, options, share)}


def _beside(
    relation: Relation, loops: NestedLoops, options: argparse.Namespace, share: float, skew: float = 0.0
) -> Figure:
    """A mesh join, nested loops and look-ups of a stream, in changes per second."""

    def stream(count: int) -> Keys:
        return relation.stream(count, skew)

    memory = int(share * relation.bytes)
    mesh, image = relation.mesh(memory)
    for _ in range(2):  # learns the factors, and warms nothing: files are forgotten
        _served(relation, mesh, image, relation.keys(_window(relation, mesh, image), skew))
    predicted = mesh.tuning(image, relation.columns)
    changes = full(stream, _window(relation, mesh, image), 2 * relation.rows)
    found, alone, seconds = _joined(relation, changes, lambda keys: _mesh(mesh, image, relation, keys))
    looked_up, _, look_up_seconds = _joined(relation, changes, lambda keys: _look_ups(relation, keys))
    if sorted(found[relation.key].to_pylist()) != sorted(looked_up[relation.key].to_pylist()):
        raise AssertionError("the mesh gives other rows than a look-up")
    keys = len(np.unique(changes))
    rate, probed = len(changes) / seconds, loops.rate(memory, stream, options.probes)
    return {
        "memory": memory, "changes": len(changes), "keys": keys, "window": int(predicted.window), "mesh": round(rate),
        "nested loops": round(probed), "look-ups": round(len(changes) / look_up_seconds), "mesh keys": round(keys / alone),
        "predicted keys": round(predicted.rate), "over nested loops": ratio(rate, probed),
        "over look-ups": ratio(look_up_seconds, seconds),
        "predicted": ratio(predicted.rate, keys / alone) if keys >= 0.99 * predicted.window else None,
    }  # fmt: skip


def _joined(
    relation: Relation, changes: Keys, look_up: Callable[[pa.Array], pa.Table]
) -> tuple[pa.Table, float, float]:
    """The rows that the changes' keys have, the seconds of finding them, and those of joining the changes with them, altogether."""
    relation.forget()
    started = time.perf_counter()
    keys = pc.unique(pa.array(changes))
    begun = time.perf_counter()
    rows = look_up(keys)
    alone = time.perf_counter() - begun
    met(changes, rows, relation.key)
    return rows, alone, time.perf_counter() - started


def _mesh(mesh: TableMesh, image: Image, relation: Relation, keys: pa.Array) -> pa.Table:
    return mesh.rows(image, None, {relation.key: keys}, relation.columns)


def _look_ups(relation: Relation, keys: pa.Array) -> pa.Table:
    """This engine's look-up of the same keys at once, without copies of columns: it decodes the row groups that may have them."""
    files = [(path, FILE) for path in relation.files]
    return FileLookUps(Limits()).rows(1, files, relation.columns, {relation.key: keys}, 10**9)


def _skew(table: Relation, options: argparse.Namespace) -> Iterator[Figure]:
    """Figure 6 (c)."""
    memory = int(0.05 * table.bytes)
    for skew in (0.1, 0.5, 1.0):
        with tempfile.TemporaryDirectory(prefix="cq-bench-") as directory:
            skewed = Table(Path(directory), table.rows, skew, group=options.group, seed=options.seed)
            mesh, image = skewed.mesh(memory)
            for _ in range(2):
                _served(skewed, mesh, image, skewed.keys(_window(skewed, mesh, image) // 4, 0.5))
            asked = skewed.keys(_window(skewed, mesh, image) // 4, 0.5)
            rate, rows = _served(skewed, mesh, image, asked)
            yield {
                "figure": "6c skew", "skew": skew, "keys": len(asked), "rows": rows.num_rows, "mesh": round(rate),
                "peak_share": round(mesh.counters.peak / memory, 3),
            }  # fmt: skip


def _peak(table: Relation, options: argparse.Namespace) -> Iterator[Figure]:
    """A stream that is faster than the rate: three windows wait at once."""
    for share in options.shares:
        memory = int(share * table.bytes)
        mesh, image = table.mesh(memory)
        keys = table.keys(3 * _window(table, mesh, image))
        rate, _ = _served(table, mesh, image, keys)
        yield {
            "figure": "peak", "share": share, "memory": memory, "peak": mesh.counters.peak,
            "peak_share": round(mesh.counters.peak / memory, 3), "keys": len(keys), "mesh": round(rate),
            "spilled": mesh.counters.spilled,
        }  # fmt: skip


def plot(figures: Sequence[Figure], path: str) -> None:
    """Rates over pages, memory and skew, and over memory with weather; what the structures take."""
    drawn = canvas(5, shared=False)
    if drawn is None:
        return
    drawing, (pages, memory, skew, weather, peak) = drawn

    def of(figure: str) -> list[Figure]:
        return [each for each in figures if each["figure"] == figure]

    for name in ("predicted", "measured"):
        pages.plot([f["b"] for f in of("6a pages")], [f[name] for f in of("6a pages")], "o-", label=name)
    pages.set(title="6 (a) 5 % of R", xlabel="b, pages of a read", ylabel="keys per second")
    for name in ("mesh", "nested loops", "look-ups"):
        chosen = [f for f in of("6b memory") if f["skew"] == 0.5]
        memory.plot([100 * f["share"] for f in chosen], [f[name] for f in chosen], "o-", label=name)
        real = of("6d weather")
        weather.plot([100 * f["share"] for f in real], [f[name] for f in real], "o-", label=name)
    memory.set(title="6 (b) stream of skew 0.5", ylabel="changes per second")
    weather.set(title="6 (d) departures and weather")
    for panel in (memory, weather):
        panel.set(xlabel="memory, % of R", xscale="log", yscale="log")
    skew.plot([f["skew"] for f in of("6c skew")], [f["mesh"] for f in of("6c skew")], "o-", label="mesh")
    skew.set(title="6 (c) 5 % of R", xlabel="skew of R's key", yscale="log")
    for name in ("memory", "peak"):
        peak.plot(
            [100 * f["share"] for f in of("peak")],
            [f[name] / 2**20 for f in of("peak")],
            "o-",
            label=name,
        )
    peak.set(title="bytes held", xlabel="memory, % of R", ylabel="MB", xscale="log", yscale="log")
    for panel in (pages, memory, skew, weather, peak):
        panel.legend()
    drawing.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
