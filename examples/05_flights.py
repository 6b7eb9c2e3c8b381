"""A year of real flights, replayed as one transaction per day, watched by three continuous queries.

    python examples/05_flights.py              # 365 days, a refresh per week
    python examples/05_flights.py --daily      # a refresh per day
    python examples/05_flights.py --days 31

336 776 flights left New York City in 2013. Every day's flights and weather are one transaction whose commit time is
the evening of that day; the engine's clock is set to 2013 and moved by hand. However many days a refresh covers, a
transactional query delivers what every single day changed: `--daily` and the default give the same deltas.
With `--warehouse` a later run goes on after the last day that the warehouse has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from delivered import row_of, show_delivered, show_latest
from flights.source import FIRST_DAY, DataMissingError, Day, Replay, data_directory
from progress import Progress
from rich.console import Console

import cq_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent / "flights"
QUERIES = {
    "delayed_carriers": ("carrier", "name", "avg_delay"),
    "old_plane_routes": ("origin", "dest", "airline", "flights"),
    "bad_weather_departures": ("carrier", "flight", "airport", "visib", "precip"),
}
"""The continuous queries of flights/queries.cql, with the columns that are shown at the end."""

YEAR = 365


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the example; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    try:
        directory = data_directory()
    except DataMissingError as missing:
        print(missing, file=sys.stderr)
        return 2
    if options.warehouse is not None:
        replay(directory, options.warehouse, options.days, options.every, spark)
        return 0
    with tempfile.TemporaryDirectory(prefix="cq-flights-") as warehouse:
        replay(directory, warehouse, options.days, options.every, spark)
    return 0


def replay(data: Path, warehouse: str, days: int, every: int, spark: SparkSession | None) -> None:
    """Replays the first `days` days of 2013 into `warehouse`, refreshing the queries every `every` days."""
    console = Console()
    clock = cq_engine.ManualClock(FIRST_DAY)
    console.print(f"Opening {warehouse} and starting Spark")
    with cq_engine.connect(warehouse, spark=spark, clock=clock, scheduler=False) as engine:
        prepare(engine, data, console)
        done = days_of(engine)
        if done:
            console.print(f"{done} days are there; going on after them")
            clock.set(Day(done).closes)
        console.print("Reading the flights and the weather of 2013")
        source = Replay(data)
        refreshes: dict[str, list[cq_engine.Refresh]] = {query: [] for query in QUERIES}
        calendar = [Day(number) for number in range(done + 1, days + 1)]
        with Progress("days of 2013", total=len(calendar), console=console) as bar:
            for start in range(0, len(calendar), every):
                batch = calendar[start : start + every]
                clock.set(batch[-1].closes)
                engine.apply_changes(
                    source.batch(batch), op="op", transaction="txn", order="seq", commit_time="commit_time"
                )
                for query in QUERIES:
                    refreshes[query].append(engine.refresh(query))
                engine.drain()
                bar.advance(len(batch))
        for query, columns in QUERIES.items():
            show_latest(console, engine, query, columns)
        show_delivered(console, engine, refreshes)


def prepare(engine: cq_engine.Engine, data: Path, console: Console) -> None:
    """Tables, the three small ones filled from their CSV files, and the continuous queries, unless they are there."""
    engine.run_script(HERE / "tables.cql")
    for table in ("airlines", "airports", "planes"):
        if engine.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall():
            continue
        console.print(f"Loading {table}")
        path = (data / f"{table}.csv").as_posix()
        engine.execute(
            f"COPY INTO {table} FROM '{path}' FORMAT csv OPTIONS (header = 'true', nullValue = 'NA')"
        )

    @engine.callback("carrier_alerts")
    def carrier_alerts(batch: cq_engine.DeltaBatch) -> None:
        for delta in batch:
            _announce(console, delta)

    console.print(f"Defining {', '.join(QUERIES)}")
    engine.run_script(HERE / "queries.cql")


def days_of(engine: cq_engine.Engine) -> int:
    """How many days the warehouse has."""
    ((last,),) = engine.execute("SELECT max(flight_date) FROM flights").fetchall()
    return (last - FIRST_DAY.date()).days + 1 if isinstance(last, date) else 0


def _announce(console: Console, delta: cq_engine.Delta) -> None:
    """A line for a carrier that comes or leaves; its updates are left to the log table."""
    _, name, delay = row_of(delta)
    if delta.marker == "I":
        console.print(f"{delta.commit_time:%d %b}  [red]▲[/] {name}: {delay} minutes late on average")
    elif delta.marker == "D":
        console.print(f"{delta.commit_time:%d %b}  [green]▼[/] {name}: back to 15 minutes or less")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Replay the flights of 2013 under three continuous queries.")
    parser.add_argument("--days", type=int, default=YEAR, help="how many days of 2013 (default: all)")
    frequency = parser.add_mutually_exclusive_group()
    frequency.add_argument(
        "--every", type=int, default=7, metavar="N", help="refresh every N days (default: 7)"
    )
    frequency.add_argument("--daily", dest="every", action="store_const", const=1, help="refresh every day")
    parser.add_argument(
        "--warehouse",
        help="keep the warehouse here, or go on with the one that is here (default: a temporary one)",
    )
    options = parser.parse_args(argv)
    if not 1 <= options.days <= YEAR or options.every < 1:
        parser.error(f"--days is 1 to {YEAR}, --every at least 1")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
