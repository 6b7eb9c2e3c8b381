"""What a tick of a capture costs PostgreSQL, by method and by how much of the table is captured (Carnes & Hanson, Figures 9 and 10).

    python benchmarks/captured_shares.py --url postgresql://me@127.0.0.1/bench                     # its table wide is made anew
    python benchmarks/captured_shares.py --url postgresql://me@127.0.0.1/bench --rows 10000000

One table: a key, eight columns of twenty characters, a timestamp, a delete flag. 1 % of the rows was changed, scattered over the table,
before each tick. `columns` captures 1, 4 or 8 of the eight columns of all rows, `rows` all columns of 10, 50 or 100 % of the rows.

    pages        of the table and its indexes that the tick has read, by the server's own statistics
    read         rows that it has read from them, table and indexes together
    shipped      rows that came from the source, keys and checksums alone among them
    seconds      of the tick

One JSON line per figure.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
from frame import Figure, arguments, canvas, run, timed
from pyspark.sql import SparkSession

import cq_engine

NAME = "captured_shares"
METHODS = {
    "TDI": "TIMESTAMP (ts, DELETED gone)",
    "ATDI": "TIMESTAMP (ts, DELETED gone) WITH (index = 'covering')",
    "TLCS": "CHECKSUM",
    "ID/RCS": "RANGES (rows = 1000, CHECKSUM)",
    "MDS": "COPY",
    "MDS at the source": "COPY WITH (at = 'source')",
}
COLUMNS = tuple(f"v{number}" for number in range(1, 9))
SHARES = (("columns", 1), ("columns", 4), ("columns", 8), ("rows", 10), ("rows", 50), ("rows", 100))
STATISTICS = """
SELECT o.heap_blks_read + o.heap_blks_hit + coalesce(o.idx_blks_read + o.idx_blks_hit, 0),
  t.seq_tup_read + coalesce((SELECT sum(greatest(i.idx_tup_read, i.idx_tup_fetch)) FROM pg_stat_user_indexes AS i WHERE i.relid = t.relid), 0)
FROM pg_statio_user_tables AS o JOIN pg_stat_user_tables AS t ON t.relid = o.relid WHERE o.relname = 'wide'
"""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines."""
    options = _options(argv)
    options.scales = [float(options.rows)]
    os.environ["CQ_BENCH_SOURCE"] = options.url

    def measure(directory: Path, _: float) -> Iterator[Figure]:
        with psycopg.connect(options.url, autocommit=True) as database:
            for what, share in SHARES:
                fill(database, options.rows, COLUMNS[:share] if what == "columns" else COLUMNS)
                path = directory / f"{what}{share}"
                for figure in ticks(path, database, (what, share), options, spark):
                    yield {"of": f"{options.rows} rows", "share": what, "captured": share, **figure}

    return run(NAME, options, measure, draw=plot)


def plot(figures: Sequence[Figure], path: str) -> None:
    """Pages by share, a line for each method."""
    drawn = canvas(2)
    if drawn is None:
        return
    drawing, panels = drawn
    for what, panel in zip(("columns", "rows"), panels):
        for name in METHODS:
            points = [
                (f["captured"], f["pages"]) for f in figures if f.get("share") == what and f["method"] == name
            ]
            panel.plot(*zip(*points), marker="o", label=name)
        panel.set(title=f"pages read at the source, by {what} captured", yscale="log")
        panel.legend()
    drawing.savefig(path, dpi=150)


def fill(database: psycopg.Connection, rows: int, covered: Sequence[str]) -> None:
    """The table, and an index that has all that is captured."""
    values = ", ".join(f"lpad((n * {7 + place})::text, 20, 'x')" for place in range(len(COLUMNS)))
    moment = "timestamp '2020-01-01' + n * interval '1 second'"
    for statement in (
        "DROP TABLE IF EXISTS wide",
        f"CREATE TABLE wide (id INT PRIMARY KEY, {', '.join(f'{c} text' for c in COLUMNS)}, ts timestamp, gone BOOLEAN)",
        f"INSERT INTO wide SELECT n, {values}, {moment}, false FROM generate_series(0, {rows - 1}) AS n",
        "CREATE INDEX wide_ts ON wide (ts)",
        f"CREATE INDEX wide_all ON wide (ts) INCLUDE (gone, id, {', '.join(covered)})",
        "VACUUM ANALYZE wide",
    ):
        database.execute(statement)  # type: ignore[call-overload]


def ticks(
    directory: Path,
    database: psycopg.Connection,
    captured: tuple[str, int],
    options: argparse.Namespace,
    spark: SparkSession | None,
) -> Iterator[Figure]:
    """A tick of each method after 1 % of the rows was changed."""
    what, share = captured
    columns = ("id", *(COLUMNS[:share] if what == "columns" else COLUMNS))
    where = f" WHERE 'id % 100 < {share}'" if what == "rows" and share < 100 else ""
    declared = ", ".join(f"{c} {'INT' if c == 'id' else 'STRING'}" for c in columns)
    with cq_engine.connect(directory, spark=spark, conf={"maintenance": "manual"}, scheduler=False) as engine:
        engine.execute("CREATE SOURCE shop TYPE postgresql WITH (url = '${CQ_BENCH_SOURCE}')")
        for number, using in enumerate(METHODS.values()):
            engine.execute(f"CREATE TABLE t{number} ({declared}, PRIMARY KEY (id))")
            engine.execute(
                f"CREATE CAPTURE c{number} INTO t{number} FROM shop TABLE 'wide' ({', '.join(columns)}){where}"
                f" USING {using} ON DEMAND"
            )
            engine.refresh_capture(f"c{number}")
        count = options.rows // 100
        chosen = random.Random(options.seed).sample(range(options.rows), count)
        database.execute(
            f"UPDATE wide SET v1 = 'y' || v1, ts = ts + interval '{options.rows} seconds' WHERE id = ANY(%s)",  # type: ignore[arg-type]
            (chosen,),
        )
        database.execute("VACUUM wide")
        for number, name in enumerate(METHODS):
            before = read(database)
            seconds, done = timed(lambda number=number: engine.refresh_capture(f"c{number}"))
            after = read(database)
            yield {
                "figure": "tick", "method": name, "pages": after[0] - before[0], "read": after[1] - before[1],
                "shipped": done.rows_read, "differences": done.rows // 2, "seconds": round(seconds, 3),
            }  # fmt: skip
            engine.execute(f"DROP CAPTURE c{number}")


def read(database: psycopg.Connection) -> tuple[int, int]:
    """Pages and rows that have been read so far. Servers report a second after a transaction, at the latest."""
    time.sleep(1.2)
    row = database.execute(STATISTICS).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__.split("\n", 1)[0], scales=(), rounds=1)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table (default: %(default)s)")
    parser.add_argument("--url", required=True, help="of the database")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
