"""Loading tables, and the first result of an aggregate, beside what Spark alone does with the same files.

    python benchmarks/load.py                       # scales 0.1 and 1: ten minutes
    python benchmarks/load.py --scale 0.1 --rounds 5

    load     COPY INTO an empty table with a primary key, as many rounds, each into a warehouse of its own, beside Spark reading the same Parquet
             files, sorting the rows by the key and writing them as Parquet, in turns. The orders' and lines' files are in the order of the key, or
             `shuffled`. `ratio` is how many times as long COPY takes
    create   CREATE CONTINUOUS QUERY with its first result, which it does not deliver but keeps as a state, beside Spark's GROUP BY over the same
             files, written as Parquet
    first    the first refresh after CREATE, after 20 transactions of stream B, beside the median of the tenth to the twelfth; `ratio` is
             how many times as long it takes

Default settings, with background work on, in a session that has run a query before. Medians of the rounds; one JSON line per figure.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from frame import QUERIES, Figure, apply, arguments, bars, create, ratio, run, timed
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark programs use

import cq_engine
from estore import STREAM_B, TABLES, Shop, Sizes, change_tables
from estore.bulk import bulk_rows

NAME = "load"
KEYS = {"customer": ["cid"], "orders": ["oid"], "orderline": ["oid", "line"]}
QUERY = "big_spenders"


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    return run(NAME, options, lambda place, scale: measure(place, scale, options, spark), draw=plot)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    return arguments(__doc__.partition("\n")[0], rounds=3).parse_args(argv)


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale."""
    session = spark or cq_engine.spark_session()
    for table, rows in bulk_rows(session, Sizes(scale)).items():
        rows.write.parquet(str(directory / "sorted" / table))
        rows.orderBy(F.hash(*KEYS[table])).write.parquet(str(directory / "shuffled" / table))
    for order in ("sorted", "shuffled"):
        taken: dict[str, dict[str, list[float]]] = {table: {"copy": [], "spark": []} for table in TABLES}
        for number in range(options.rounds + 1):
            with _engine(directory, session) as engine:
                for table, statement in TABLES.items():
                    engine.execute(statement)
                    _load(engine, directory / order / table, table, taken[table], first=number % 2 == 0)
        for table, seconds in taken.items():
            yield {"figure": "load", "scale": scale, "of": table, "place": order, **_medians(seconds, "copy")}
    yield from _created(directory, scale, options, session)


def _engine(directory: Path, spark: SparkSession) -> cq_engine.Engine:
    place = directory / "warehouse"
    shutil.rmtree(place, ignore_errors=True)
    return cq_engine.connect(str(place), spark=spark, scheduler=False)


def _load(
    engine: cq_engine.Engine, files: Path, table: str, taken: dict[str, list[float]], *, first: bool
) -> None:
    """Both ways, one after the other."""
    out = str(files.parent / "written")

    def by_spark() -> None:
        engine.spark.read.parquet(str(files)).sort(*KEYS[table]).write.mode("overwrite").parquet(out)

    def copy() -> None:
        engine.execute(f"COPY INTO {table} FROM '{files}' FORMAT parquet")

    works = {"spark": by_spark, "copy": copy}
    for name in list(works)[:: 1 if first else -1]:
        taken[name].append(timed(works[name])[0])


def _created(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession
) -> Iterator[Figure]:
    """CREATE and the first refreshes of an aggregate over the join of all tables."""
    created: dict[str, list[float]] = {"create": [], "spark": []}
    refreshed: dict[str, list[float]] = {"first": [], "tenth": []}
    for _ in range(options.rounds + 1):
        with _engine(directory, spark) as engine:
            shop = Shop(options.seed, scale)
            for table, statement in TABLES.items():
                engine.execute(statement)
                engine.execute(f"COPY INTO {table} FROM '{directory}/sorted/{table}' FORMAT parquet")
                spark.read.parquet(f"{directory}/sorted/{table}").createOrReplaceTempView(table)
            query, out = QUERIES[QUERY], f"{directory}/grouped"
            created["spark"].append(timed(lambda: spark.sql(query).write.mode("overwrite").parquet(out))[0])  # noqa: B023
            created["create"].append(timed(lambda: create(engine, QUERY, query))[0])  # noqa: B023
            taken = []
            for _ in range(12):
                apply(engine, change_tables(list(islice(shop.transactions(mix=STREAM_B), 20))))
                taken.append(timed(lambda: engine.refresh(QUERY))[0])
            refreshed["first"].append(taken[0])
            refreshed["tenth"].append(median(taken[9:]))
    yield {"figure": "create", "scale": scale, "query": QUERY, **_medians(created, "create")}
    yield {"figure": "first", "scale": scale, "query": QUERY, **_medians(refreshed, "first")}


def _medians(taken: dict[str, list[float]], mine: str) -> Figure:
    """Of the rounds after the first, and how many times as long `mine` takes as the other."""
    found = {name: median(seconds[1:]) for name, seconds in taken.items()}
    (other,) = (seconds for name, seconds in found.items() if name != mine)
    rounded = {f"{name}_seconds": round(seconds, 3) for name, seconds in found.items()}
    return {**rounded, "ratio": ratio(found[mine], other)}


def plot(figures: Sequence[Figure], path: str) -> None:
    """The ratios."""
    found = {
        f"{f['figure']} {f.get('of', '')} {f.get('place', '')} {f['scale']:g}": f["ratio"]
        for f in figures
        if "ratio" in f
    }
    bars(found, path, title="COPY and CREATE over Spark's own; first refresh over the tenth")


if __name__ == "__main__":
    raise SystemExit(main())
