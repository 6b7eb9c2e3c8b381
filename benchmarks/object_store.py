"""A warehouse in a bucket beside one in a directory, and what executors pay for going through Arrow.

    python benchmarks/object_store.py                 # scale 0.01: 100 000 order lines

The bucket is moto's server on this machine, with two milliseconds added to each request; both catalogs are SQLite files beside
the warehouses. Timed is `REFRESH` of a join of all tables and of an aggregate after twenty transactions of stream B (see
`recompute_and_diff.py`), and applying these, in turns, with merging between the rounds. Then Spark's own Parquet reader and
writer against tasks that read and write through Arrow (`storage/arrow_files.py`), over local files: all columns, two of seven,
and a file for each of two cores. One JSON line per figure goes to standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import pyarrow.fs as pafs
from frame import JOINED, UNDISTURBED, Figure, apply, arguments, bars, create, discard, ratio, run, timed
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import cq_engine
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.core.limits import Limits
from cq_engine.core.types import columns_of
from cq_engine.storage.data_files import read_files, write_files
from estore import STREAM_B, Shop, change_tables, load

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import object_store

NAME = "object_store"
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's Python processes cannot import it
ORDERS = 12
QUERIES = ("every_line", "big_spenders")
_ROWS = """SELECT id, id % 1000 AS a, CAST(id AS DOUBLE) / 7 AS b, CAST(id AS DECIMAL(12, 2)) AS c,
    concat('customer ', id % 5000) AS d, concat('a comment on order ', id) AS e, timestamp_seconds(id) AS f FROM range({n})"""


class Elsewhere(LocalStore):
    """A directory that executors reach as they reach a bucket."""

    is_local: ClassVar[bool] = False

    @property
    def filesystem(self) -> pafs.FileSystem:
        return pafs.LocalFileSystem()


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)

    def measure(place: Path, scale: float) -> Iterator[Figure]:
        session = spark or cq_engine.spark_session()
        yield from refreshes(place, scale, options, session)
        yield from arrow_paths(place, options, session)

    return run(NAME, options, measure, draw=plot)


def refreshes(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession
) -> Iterator[Figure]:
    """Rounds of both, in turns, and how they compare."""
    with ExitStack() as opened:
        server = opened.enter_context(object_store.server())
        engines = {
            place: opened.enter_context(
                cq_engine.connect(
                    url,
                    f"sqlite:///{directory}/{place}.db",
                    spark,
                    conf={**UNDISTURBED, **conf},
                    scheduler=False,
                )
            )
            for place, url, conf in (
                ("directory", str(directory / "warehouse"), {}),
                ("bucket", "s3://lake/warehouse", server.options),
            )
        }
        for engine in engines.values():
            load(engine, scale, str(directory / "bulk"))
            for query in QUERIES:
                create(engine, query, JOINED[query])
        server.fault(object_store.Faults(delay=options.delay))
        seconds = _rounds(engines, scale, options)
    for (what, query), by_place in seconds.items():
        found = {place: median(each[2:]) for place, each in by_place.items()}
        for place, taken in found.items():
            yield {"figure": what, "scale": scale, "query": query, "place": place, "seconds": round(taken, 4)}
        yield {
            "figure": f"{what}, bucket over directory",
            "scale": scale,
            "query": query,
            "rounds": options.rounds,
            "ratio": ratio(found["bucket"], found["directory"]),
        }


def _rounds(
    engines: dict[str, cq_engine.Engine], scale: float, options: argparse.Namespace
) -> dict[tuple[str, str], dict[str, list[float]]]:
    transactions = Shop(options.seed, scale).transactions(mix=STREAM_B, orders=ORDERS)
    seconds: dict[tuple[str, str], dict[str, list[float]]] = {}
    for number in range(options.rounds + 2):
        changes = change_tables(list(islice(transactions, options.transactions)))
        for place, engine in list(engines.items())[:: 1 if number % 2 else -1]:  # each first as often
            engine.maintain()
            seconds.setdefault(("apply", "-"), {}).setdefault(place, []).append(apply(engine, changes))
            for query in QUERIES:
                taken, _ = timed(lambda: engine.refresh(query))  # noqa: B023 - called at once
                seconds.setdefault(("refresh", query), {}).setdefault(place, []).append(taken)
    for query in QUERIES:
        results = [sorted(map(repr, engine.execute(JOINED[query]).fetchall())) for engine in engines.values()]
        if results[0] != results[1]:
            raise AssertionError(f"{query}: the warehouses differ")
    return seconds


def arrow_paths(directory: Path, options: argparse.Namespace, spark: SparkSession) -> Iterator[Figure]:
    """Spark's own reader and writer, and tasks that go through Arrow, in turns."""
    limits = Limits()
    frame = spark.sql(_ROWS.format(n=options.rows)).repartition(2).persist()
    columns = columns_of(frame.schema)
    stores = {"spark": LocalStore(str(directory)), "arrow": Elsewhere(str(directory))}
    number = iter(range(10**6))
    files = {how: write_files(store, frame, f"read/{how}", ["id"], limits) for how, store in stores.items()}

    def reading(names: Sequence[str]) -> Callable[[str], Any]:
        read = [c for c in columns if c.name in names]
        return lambda how: discard(read_files(spark, stores[how], files["spark"], read, limits))

    def writing(how: str) -> Any:
        return write_files(stores[how], frame, f"write/{next(number)}", ["id"], limits)

    works: dict[str, Callable[[str], Any]] = {
        "read all columns": reading(frame.columns),
        "read two columns": reading(["id", "b"]),
        "write": writing,
    }
    for name, work in works.items():
        seconds = _times(work, list(stores), options.rounds)
        for how, taken in seconds.items():
            yield {"figure": name, "of": how, "rows": options.rows, "seconds": round(taken, 4)}
        yield {
            "figure": "arrow over spark",
            "of": name,
            "rows": options.rows,
            "rounds": options.rounds,
            "ratio": ratio(seconds["arrow"], seconds["spark"]),
        }
    _unpersist(frame)


def _times(work: Callable[[str], Any], ways: Sequence[str], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {how: [] for how in ways}
    for _ in range(rounds + 1):
        for how in ways:
            taken[how].append(timed(lambda: work(how))[0])  # noqa: B023 - called at once
    return {how: median(each[1:]) for how, each in taken.items()}


def _unpersist(frame: DataFrame) -> None:
    frame.unpersist(blocking=True)


def plot(figures: Sequence[Figure], path: str) -> None:
    """The ratios."""
    found = {f"{f['figure']}\n{f.get('query', f.get('of', ''))}": f["ratio"] for f in figures if "ratio" in f}
    bars(found, path, title="times longer")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__ or "", scales=(0.01,), rounds=7)
    parser.add_argument("--transactions", type=int, default=20, help="per round (default: 20)")
    parser.add_argument(
        "--delay", type=float, default=0.002, help="seconds added to each request (default: 0.002)"
    )
    parser.add_argument(
        "--rows", type=int, default=2_000_000, help="read and written by executors (default: 2000000)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
