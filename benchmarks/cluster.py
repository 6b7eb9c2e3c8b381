"""A standalone cluster on this machine: two one-core workers beside one, and small refreshes on it. `growth.py` has tasks and memory by size.

    python benchmarks/cluster.py                      # scale 0.3: 3 000 000 order lines
    python benchmarks/cluster.py --scale 1 --parts bulk

Master and workers are Spark's own, with directories of their own; the driver is a process for each kind of cluster. `bulk` are, by executors,
COPY of the order lines (Parquet), the start of the join of all tables with its snapshot, one refresh over 2 000
transactions of stream B, and a FULL recomputation after as many, with two workers beside one, each worker with all of its threads on a processor of its own; the first
time in a session, and once more in another warehouse, when executors have compiled what they run. Then refreshes after 20 transactions, as they
are, and with Spark for every statement (`arrow_rows=-1`), on the cluster and on local Spark. One JSON line per figure goes to standard
output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from frame import (
    JOINED,
    UNDISTURBED,
    Figure,
    apply,
    arguments,
    bars,
    create,
    driver,
    driver_arguments,
    ratio,
    run,
    timed,
)

import cq_engine
from cq_engine.core.limits import Limits
from estore import STREAM_B, TABLES, Shop, Sizes, change_tables
from estore.bulk import bulk_rows

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cluster import DRIVER, cluster

NAME = "cluster"
PARTS = ("bulk", "small")
ORDERS = 12
SMALL = ("every_line", "big_spenders")
BY_EXECUTORS = Limits(
    refresh_changes=0,
    driver_changes=-1,
    small_rows=0,
    start_rows=0,
    pending_rows=0,
    log_rows=-1,
    recompute_bytes=-1,
)
"""Whatever the size, executors do it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    if options.inside:
        for figure in _inside(options):
            print(json.dumps(figure), flush=True)
        return 0
    return run(NAME, options, lambda place, scale: measure(place, scale, options), draw=plot)


def measure(directory: Path, scale: float, options: argparse.Namespace) -> Iterator[Figure]:
    """Each part with each kind of cluster, in turns."""
    _child(directory, "generate", "local[2]", scale, options)
    parts = {"bulk": _beside, "small": _small_beside}
    for part in options.parts:
        yield from parts[part](directory, scale, options)


def _beside(directory: Path, scale: float, options: argparse.Namespace) -> Iterator[Figure]:
    """Two workers beside one."""
    taken: dict[str, dict[int, list[float]]] = {}
    for number in range(options.rounds):
        for workers in (1, 2)[:: 1 if number % 2 else -1]:
            place = directory / f"cluster-{number}-{workers}"
            place.mkdir()
            with cluster(place, workers, memory="3g", pinned=True) as made:
                for each in _child(directory, "bulk", made.url, scale, options):
                    taken.setdefault(each["of"], {}).setdefault(workers, []).append(each["seconds"])
    for of, by in taken.items():
        one, two = median(by[1]), median(by[2])
        yield {"figure": "two workers over one", "scale": scale, "of": of, "seconds_of_one": round(one, 3),
               "seconds_of_two": round(two, 3), "rounds": options.rounds, "ratio": ratio(one, two)}  # fmt: skip


def _small_beside(directory: Path, scale: float, options: argparse.Namespace) -> Iterator[Figure]:
    """Small refreshes on the cluster beside local ones."""
    place = directory / "cluster-small"
    place.mkdir()
    small: dict[tuple[str, str], dict[str, float]] = {}
    with cluster(place, 2, memory="3g") as made:
        for where, master in (("cluster", made.url), ("local", "local[2]")):
            for each in _child(directory, "small", master, scale, options):
                small.setdefault((each["of"], each["query"]), {})[where] = each["seconds"]
    for (of, query), seconds in small.items():
        yield {"figure": "refresh after 20 transactions", "scale": scale, "of": of, "query": query, **seconds,
               "ratio": ratio(seconds["cluster"], seconds["local"])}  # fmt: skip


# ---------------------------------------------------------------- the driver, a process of its own


def _child(
    directory: Path, part: str, master: str, scale: float, options: argparse.Namespace
) -> list[Figure]:
    return driver(
        __file__, part, master, directory, "--scale", scale, "--seed", options.seed, "--rounds", options.rounds,
        "--transactions", options.transactions,
    )  # fmt: skip


def _inside(options: argparse.Namespace) -> Iterator[Figure]:
    conf = {"spark.master": options.master, "spark.driver.memory": "2g"}
    if not options.master.startswith("local"):
        conf |= {**DRIVER, "spark.executor.memory": "2g"}
    spark = cq_engine.spark_session(conf)
    files = options.directory / f"files-{options.scales[0]:g}"
    if options.inside == "generate":
        for table, frame in bulk_rows(spark, Sizes(options.scales[0])).items():
            frame.write.parquet(f"{files}/{table}")
        return
    spark.range(10**6).selectExpr("sum(hash(id))").collect()  # executors are there, and their classes
    place = options.directory / f"warehouse-{os.getpid()}"
    if options.inside == "bulk":
        for when in ("first", "warm"):  # executors that have just begun compile what they run
            place = options.directory / f"warehouse-{os.getpid()}-{when}"
            with cq_engine.connect(
                place, spark=spark, scheduler=False, conf=UNDISTURBED, limits=BY_EXECUTORS
            ) as engine:
                for each in _bulk(engine, files, Shop(options.seed, options.scales[0]), options):
                    yield {**each, "of": f"{each['of']}, {when}"}
    else:
        with cq_engine.connect(place, spark=spark, scheduler=False, conf=UNDISTURBED) as engine:
            yield from _small(engine, files, Shop(options.seed, options.scales[0]))
    spark.stop()


def _copy(engine: cq_engine.Engine, files: Path, tables: Sequence[str] = tuple(TABLES)) -> None:
    for table in tables:
        engine.execute(TABLES[table])
        engine.execute(f"COPY INTO {table} FROM '{files}/{table}' FORMAT parquet")


def _bulk(engine: cq_engine.Engine, files: Path, shop: Shop, options: argparse.Namespace) -> Iterator[Figure]:
    _copy(engine, files, [table for table in TABLES if table != "orderline"])

    def commit() -> None:
        batch = list(islice(shop.transactions(mix=STREAM_B, orders=ORDERS), options.transactions))
        apply(engine, change_tables(batch))

    def start() -> None:
        query = JOINED["every_line"]
        engine.execute(f"CREATE CONTINUOUS QUERY every_line ON DEMAND START FROM SNAPSHOT AS {query}")

    works: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("COPY", lambda: None, lambda: _copy(engine, files, ("orderline",))),
        ("start of the join", lambda: None, start),
        ("catch-up", commit, lambda: engine.refresh("every_line")),
        ("FULL", lambda: (create(engine, "again", JOINED["every_line"], mode="COMPRESSED", options="refresh = 'full'"), commit()),
         lambda: engine.refresh("again")),  # one delta: for each transaction the tables would be read again
    ]  # fmt: skip
    for name, before, work in works:
        before()
        yield {"of": name, "seconds": timed(work)[0]}


def _small(engine: cq_engine.Engine, files: Path, shop: Shop) -> Iterator[Figure]:
    _copy(engine, files)
    for query in SMALL:
        create(engine, query, JOINED[query])
    for of, arrow_rows in (("Arrow", Limits().arrow_rows), ("Spark", -1)):
        engine.catalog.limits = Limits(arrow_rows=arrow_rows)
        taken: dict[str, list[float]] = {query: [] for query in SMALL}
        for number in range(9):
            apply(engine, change_tables(list(islice(shop.transactions(mix=STREAM_B, orders=ORDERS), 20))))
            for query, seconds in taken.items():
                spent = timed(lambda: engine.refresh(query))[0]  # noqa: B023 - called at once
                if number >= 3:
                    seconds.append(spent)
        for query, seconds in taken.items():
            yield {"of": of, "query": query, "seconds": round(median(seconds), 4)}


def plot(figures: Sequence[Figure], path: str) -> None:
    """The ratios."""
    found: dict[str, Any] = {f"{f['of']} {f.get('query', '')}": f["ratio"] for f in figures if "ratio" in f}
    bars(found, path, title="one worker over two; cluster over local")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__ or "", scales=(0.3,), rounds=2)
    parser.add_argument("--transactions", type=int, default=2000, help="of a catch-up (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    driver_arguments(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
