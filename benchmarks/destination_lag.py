"""How late destinations and followers are while commits come, and what a merged table costs beside the history of deltas.

    python benchmarks/destination_lag.py                                  # followers, then each type for 20 seconds
    python benchmarks/destination_lag.py --url redis=redis://127.0.0.1:6379/0 --seconds 60

`follow` is the time from the return of a commit until its row is with `engine.follow`, at 20 commits a second, and `refresh` the
time that the refreshes of these commits took by themselves, from SHOW REFRESHES. `lag` is how old the oldest delta is that a destination has
not received (`lag_seconds` of SHOW DESTINATIONS), asked for twice a second while one process commits 50 times a second
and refreshes after each. `behind` is how long it takes after the last commit until everything is there. One JSON line per figure.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from frame import Figure, arguments, bars, run
from pyspark.sql import SparkSession

import cq_engine
from destinations import OWN, cluster, declaration, webhook_server  # noqa: TID251 - the program beside this one

NAME = "destination_lag"
FOLLOWED = 20
COMMITS = 50
PATIENCE = 300.0


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    urls = dict(each.split("=", 1) for each in options.url)
    options.scales = [0.0]

    def measure(directory: Path, _: float) -> Iterator[Figure]:
        yield followed(directory / "follow", options.seconds, spark)
        with webhook_server() as hook:
            os.environ["CQ_BENCH_HOOK"] = hook
            for kind in [*options.kinds, *urls]:
                place = directory / kind
                place.mkdir()
                with cluster(urls.get(kind, "")) as url:
                    os.environ["CQ_BENCH_URL"] = url
                    yield lag(place, kind, options.seconds, spark)

    return run(NAME, options, measure, draw=plot)


def plot(figures: Sequence[Figure], path: str) -> None:
    """The lag by type."""
    found = {f["of"]: f["median"] for f in figures if f["figure"] == "lag"}
    bars(found, path, title=f"median lag in seconds at {COMMITS} commits a second")


def commits(engine: cq_engine.Engine, rate: int, seconds: float) -> list[float]:
    """So many commits a second of one row each; when each had returned. One that is late is followed at once by the next."""
    returned, begin = [], time.perf_counter()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        with engine.transaction() as tx:
            tx.insert("t", [(number, f"name of row {number}", number / 7)])
        returned.append(time.perf_counter())
    return returned


def warm(engine: cq_engine.Engine) -> None:
    """The first commits compile what later ones use."""
    for number in range(-20, 0):
        engine.execute(f"INSERT INTO t VALUES ({number}, 'x', 0)")
    engine.drain(timeout=PATIENCE)


def followed(directory: Path, seconds: float, spark: SparkSession | None) -> Figure:
    """From the commit to the follower."""
    came: dict[int, float] = {}
    with cq_engine.connect(directory, spark=spark) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, name STRING, amount DOUBLE)")
        engine.execute("CREATE CONTINUOUS QUERY q AS SELECT id, name, amount FROM t WHERE amount >= 0")
        warm(engine)
        wanted, start = int(FOLLOWED * seconds), engine.catalog.newest_version

        def follow() -> None:
            with engine.follow("q", start) as deltas:
                for delta in deltas:
                    if isinstance(delta, cq_engine.Delta) and delta.new is not None:
                        came[delta.new[0]] = time.perf_counter()
                    if len(came) == wanted:
                        return

        thread = threading.Thread(target=follow)
        thread.start()
        returned = commits(engine, FOLLOWED, seconds)
        thread.join(PATIENCE)
        own = refreshes(engine)
    late = sorted(came[number] - when for number, when in enumerate(returned))
    return {
        "figure": "follow",
        "commits_per_second": FOLLOWED,
        "reached": round(len(returned) / (returned[-1] - returned[0]), 1),
        "median": round(median(late), 4),
        "p99": round(late[int(len(late) * 0.99)], 4),
        "refresh": round(own, 4),
    }


def refreshes(engine: cq_engine.Engine) -> float:
    """The median of the last refreshes, in seconds."""
    shown = engine.execute("SHOW REFRESHES")
    place = shown.columns.index("seconds")
    return median(float(row[place]) for row in shown.fetchall())


def lag(directory: Path, kind: str, seconds: float, spark: SparkSession | None) -> Figure:
    """Of one type, while commits come."""
    seen: list[float] = []
    with cq_engine.connect(directory / "warehouse", spark=spark) as engine:
        engine.execute("CREATE TABLE t (id INT PRIMARY KEY, name STRING, amount DOUBLE)")

        @engine.callback("sink")
        def received(batch: cq_engine.DeltaBatch) -> None:
            list(batch)

        engine.execute(f"CREATE DESTINATION sink TYPE {declaration(kind, directory)}")
        engine.execute("CREATE CONTINUOUS QUERY q DESTINATION sink AS SELECT id, name, amount FROM t")
        warm(engine)
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.5):
                shown = engine.execute("SHOW DESTINATIONS")
                seen.append(shown.fetchall()[0][shown.columns.index("lag_seconds")])

        thread = threading.Thread(target=look)
        thread.start()
        returned = commits(engine, COMMITS, seconds)
        over.set()
        thread.join()
        engine.drain(timeout=PATIENCE)
        behind = time.perf_counter() - returned[-1]
    return {
        "figure": "lag",
        "of": kind,
        "commits_per_second": COMMITS,
        "reached": round(len(returned) / (returned[-1] - returned[0]), 1),
        "median": round(median(seen), 3),
        "greatest": round(max(seen), 3),
        "behind": round(behind, 3),
    }


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__ or "", scales=(), rounds=1)
    kinds = [kind for kind in OWN if kind != "queue"]
    parser.add_argument("--kinds", nargs="*", choices=kinds, default=kinds)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of commits for each figure (default: 20)"
    )
    parser.add_argument("--url", action="append", default=[], metavar="KIND=URL", help="of a server")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
