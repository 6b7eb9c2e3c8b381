"""`join = 'auto'` beside look-ups, mesh joins and Spark's own join per batch, through the whole engine (Polyzotis et al., ICDE 2007).

    python benchmarks/mesh_choice.py                          # R of 3 500 000 rows of 120 bytes: twenty minutes
    python benchmarks/mesh_choice.py --rows 35000000 --shares 0.01 --keys 2000 200000

R is a table with a primary key, in row groups as the engine writes them; the stream is a table to which each commit adds rows whose keys are
uniform over R. Three queries join the two, with `join` set to look_up, mesh and auto; each is refreshed after each commit, in turns, and what they
deliver is compared. Beside them Spark joins the rows of the commit with the files of R, and gives the result as Arrow. The system's file cache is emptied
before each of them.

    batch     seconds of a refresh, the median of the rounds after the first two, for so many keys a commit, so much memory for the mesh (a share of
              R's 120 bytes per row), and look-ups by copies of columns, which is the default; by a scan of the files that may have
              a key, where there is no memory for copies (`look_up_cache = 'off'`); or by executors, where files are more than the driver
              opens (`Limits.look_up_files`). `auto over better` is how many times longer auto took than the better of look-ups and mesh;
              `spark over mesh` how many times longer Spark's join took
    choice    in how many of the settings auto took at most 1.2 times as long as the better one

One JSON line per figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from frame import UNDISTURBED, Figure, arguments, canvas, ratio, run, timed
from mesh_world import COLUMNS, ROW_BYTES, Table, forget
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark programs use

import cq_engine
from cq_engine.core.limits import Limits

NAME = "mesh_choice"
JOINS = ("look_up", "mesh", "auto")
LOOK_UPS = {
    "copies": ("2 GB", Limits()),
    "scan": ("off", Limits()),
    "executors": ("off", Limits(look_up_files=1)),
}
WITHIN = 1.2


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    return run(NAME, options, lambda place, _: measure(place, options, spark), conclude=conclude, draw=plot)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__.partition("\n")[0], scales=(), rounds=5)
    parser.add_argument("--rows", type=int, default=3_500_000, help="rows of R (default: %(default)s)")
    parser.add_argument("--keys", type=int, nargs="+", default=[100, 2_000, 20_000, 200_000])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.05])
    parser.add_argument("--look-ups", nargs="+", default=list(LOOK_UPS), choices=LOOK_UPS)
    parser.set_defaults(scales=[1.0], group=10_000)
    return parser.parse_args(argv)


def measure(directory: Path, options: argparse.Namespace, spark: SparkSession | None) -> Iterator[Figure]:
    """All settings over one R."""
    session = spark or cq_engine.spark_session()
    table, stream = (
        Table(directory, options.rows, group=options.group, seed=options.seed),
        Stream(options.seed, options.rows),
    )
    warehouse = str(directory / "warehouse")
    with cq_engine.connect(warehouse, spark=session, scheduler=False, conf=UNDISTURBED) as engine:
        columns = ", ".join(f"{c.name} BIGINT" for c in COLUMNS)
        engine.execute(f"CREATE TABLE r ({columns}, PRIMARY KEY (k))")
        for file in table.files:
            engine.execute(f"COPY INTO r FROM '{file}' FORMAT parquet")
        engine.execute("CREATE TABLE s (id BIGINT PRIMARY KEY, k BIGINT)")
        engine.execute("COMPACT TABLE r")
    for kind in options.look_ups:
        cache, limits = LOOK_UPS[kind]
        with cq_engine.connect(
            warehouse, spark=session, scheduler=False, limits=limits,
            conf={**UNDISTURBED, "look_up_cache": cache},
        ) as engine:  # fmt: skip
            for share, keys in product(options.shares, options.keys):
                memory = int(share * options.rows * ROW_BYTES)
                figure = _setting(engine, table, stream, keys, memory=memory, rounds=options.rounds)
                yield {"figure": "batch", "look-ups by": kind, "share": share, "keys": keys, **figure}


class Stream:
    """Rows with keys of R, and numbers of their own."""

    def __init__(self, seed: int, rows: int) -> None:
        self.numbers = np.random.default_rng(seed)
        self.rows = rows
        self.next = 0

    def batch(self, count: int) -> pa.Table:
        self.next += count
        ids = np.arange(self.next - count, self.next)
        return pa.table({"id": ids, "k": self.numbers.integers(0, self.rows, count)})


def _setting(
    engine: cq_engine.Engine, table: Table, stream: Stream, keys: int, *, memory: int, rounds: int
) -> Figure:
    seconds: dict[str, list[float]] = {name: [] for name in (*JOINS, "spark")}
    for join in JOINS:
        engine.execute(
            f"CREATE CONTINUOUS QUERY by_{join} COMPUTE COMPRESSED DELTA ON DEMAND"
            f" WITH (join = '{join}', memory = '{memory // 1024} KB')"
            " AS SELECT s.id, r.* FROM s JOIN r ON r.k = s.k"
        )
    try:
        begin = engine.describe("by_auto").position
        for number in range(rounds + 2):
            batch = stream.batch(keys)
            engine.apply_changes({"s": batch.append_column("op", pa.repeat("INSERT", keys))}, op="op")
            for turn in range(len(JOINS)):
                join = JOINS[(number + turn) % len(JOINS)]
                _forget(table)
                seconds[join].append(timed(lambda join=join: engine.refresh(f"by_{join}"))[0])
            _forget(table)
            seconds["spark"].append(timed(lambda batch=batch: _spark_join(engine.spark, table, batch))[0])
            engine.maintain()
        _compare(engine, begin)
    finally:
        for join in JOINS:
            engine.execute(f"DROP CONTINUOUS QUERY by_{join}")
    medians = {name: median(each[2:]) for name, each in seconds.items()}
    better = min(medians["look_up"], medians["mesh"])
    return {
        **{f"{name.replace('_', '-')}_seconds": round(each, 4) for name, each in medians.items()},
        "auto over better": ratio(medians["auto"], better),
        "spark over mesh": ratio(medians["spark"], medians["mesh"]),
    }


def _forget(table: Table) -> None:
    """Takes all that is in files out of the system's cache."""
    for path in table.directory.rglob("*.parquet"):
        forget(str(path))


def _spark_join(spark: SparkSession, table: Table, batch: pa.Table) -> pa.Table:
    """What a program without an engine does for every batch."""
    return spark.read.parquet(*table.files).join(F.broadcast(spark.createDataFrame(batch)), "k").toArrow()


def _compare(engine: cq_engine.Engine, begin: int) -> None:
    """All three have delivered the same rows."""
    found = []
    for join in JOINS:
        sql = f"SELECT id, k, c0, c13 FROM by_{join} CHANGES FROM VERSION {begin + 1}"
        rows = engine.execute(sql).to_arrow()
        found.append(rows.sort_by("id").combine_chunks())
    if not found[0].num_rows or any(not each.equals(found[0]) for each in found):
        raise AssertionError("the joins deliver different rows")


def conclude(figures: Sequence[Figure]) -> Iterator[Figure]:
    """How often auto was near the better one."""
    settings = [figure for figure in figures if figure["figure"] == "batch"]
    near = sum(figure["auto over better"] <= WITHIN for figure in settings)
    yield {
        "figure": "choice",
        "settings": len(settings),
        "near": near,
        "ratio": round(near / len(settings), 2),
    }


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds over keys, a panel for each memory and cache."""
    settings = [figure for figure in figures if figure["figure"] == "batch"]
    kinds = list(dict.fromkeys((f["look-ups by"], f["share"]) for f in settings))
    drawn = canvas(len(kinds))
    if drawn is None:
        return
    drawing, panels = drawn
    for panel, (kind, share) in zip(panels, kinds):
        chosen = [f for f in settings if (f["look-ups by"], f["share"]) == (kind, share)]
        for name in ("look-up", "mesh", "auto", "spark"):
            panel.plot([f["keys"] for f in chosen], [f[f"{name}_seconds"] for f in chosen], "o-", label=name)
        panel.set(
            title=f"{100 * share:g} % of R, look-ups by {kind}",
            xlabel="keys a commit",
            xscale="log",
            yscale="log",
        )
        panel.legend()
    panels[0].set_ylabel("seconds of a refresh")
    drawing.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
