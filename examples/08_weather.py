"""A year of flights with the weather of every hour and place: a mesh join, and its rate over its memory.

    python examples/08_weather.py                     # 100 places, 870 000 hours of weather
    python examples/08_weather.py --places 12 --flights 4000
    python examples/08_weather.py --plot rate.png     # with matplotlib

Reports of departures come in random order, each with the number of an observation of the weather where it goes to. So their keys are spread over all of the
weather, and looking each of them up would read a page for nearly each. A mesh join (MESHJOIN, Polyzotis et al. 2007) reads the weather from
one end to the other instead, for all reports that its memory has room for, which `memory` bounds. The same number of reports comes for every
budget; more memory means fewer scans. The prediction is the cost model's, of the scan alone, and for a stream that fills the window: with much memory
the reports that are there do not.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from flights.source import DataMissingError, data_directory
from rich.console import Console
from rich.table import Table
from weather.source import Source

import cq_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent / "weather"
QUERY = "departures_weather"
BUDGETS = ("64 KB", "128 KB", "256 KB", "512 KB", "1 MB", "4 MB", "16 MB")
TEMP = 6
"""The place of the temperature among the columns of the query."""
COMMIT = 500
"""Departures of a transaction."""
WIDE = 20

_RUN = re.compile(
    r"weather: (\d+) keys in \d+ batches of the window, \d+ keys/s \(predicted (\d+)\), (\d+) of (\d+) pages in (\d+) reads,"
    r".* memory at most ([\d.]+ [KM]B)"
)
_SECONDS = re.compile(r"altogether: ([\d.]+) s")


@dataclass(frozen=True)
class Measured:
    """What a budget gave: departures per second of the refresh, what the cost model says of the scan alone, and what was read."""

    memory: str
    rate: float
    predicted: float
    scans: float
    """How often all of the weather was read."""
    peak: str
    """The most that the join's own structures have taken."""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the example; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    try:
        directory = data_directory()
    except DataMissingError as missing:
        print(missing, file=sys.stderr)
        return 2
    console = Console()
    with tempfile.TemporaryDirectory(prefix="cq-weather-") as place:
        console.print("Reading the flights of 2013, and the weather")
        source = Source(directory, options.places)
        with cq_engine.connect(
            f"{place}/warehouse", spark=spark, scheduler=False, conf={"maintenance": "manual"}
        ) as engine:
            load(engine, source, Path(place), console)
            engine.apply_changes(
                {"departures": source.departures(COMMIT, 1)}, op="op", transaction="txn", order="seq"
            )
            engine.refresh(QUERY)  # the first one starts Spark, and measures what pages cost
            measured = [measure(engine, source, memory, options.flights) for memory in options.memory]
            show(console, measured)
            right = check(engine, console)
    if options.plot is not None:
        plot(measured, options.plot)
        console.print(f"The plot is in {options.plot}")
    return 0 if right else 1


def load(engine: cq_engine.Engine, source: Source, place: Path, console: Console) -> None:
    """The tables, the weather, and the query."""
    console.print(f"Loading {source.weather.num_rows} observations at {len(source.places)} places")
    engine.run_script(HERE / "tables.cql")
    pq.write_table(source.weather, place / "weather.parquet")
    engine.execute(f"COPY INTO weather FROM '{(place / 'weather.parquet').as_posix()}' FORMAT parquet")
    engine.compact("weather")


def measure(engine: cq_engine.Engine, source: Source, memory: str, flights: int) -> Measured:
    """Departures that are committed, and then joined within `memory`."""
    engine.execute(f"ALTER CONTINUOUS QUERY {QUERY} SET WITH (memory = '{memory}')")
    engine.apply_changes(
        {"departures": source.departures(flights, max(1, flights // COMMIT))},
        op="op", transaction="txn", order="seq",
    )  # fmt: skip
    told = "\n".join(row[0] for row in engine.execute(f"EXPLAIN ANALYZE CONTINUOUS QUERY {QUERY}").fetchall())
    runs, seconds = _RUN.findall(told), _SECONDS.search(told)
    assert runs, told
    assert seconds is not None, told
    return Measured(
        memory,
        flights / float(seconds[1]),
        float(runs[-1][1]),
        sum(int(run[2]) / int(run[3]) for run in runs),
        max((run[5] for run in runs), key=_bytes),
    )


def show(console: Console, measured: Sequence[Measured]) -> None:
    """The rate over the memory."""
    table = Table(title="departures joined with their weather", title_justify="left")
    for name in ("memory", "used at most", "scans", "predicted/s", "joined/s"):
        table.add_column(name, justify="right")
    table.add_column("")
    most = max(each.rate for each in measured)
    for each in measured:
        bar = "█" * max(1, round(WIDE * each.rate / most))
        table.add_row(
            each.memory,
            each.peak,
            f"{each.scans:.1f}",
            f"{each.predicted:.0f}",
            f"{each.rate:.0f}",
            bar,
        )
    console.print(table)


def check(engine: cq_engine.Engine, console: Console) -> bool:
    """Do the deltas have what Spark's own join gives?"""
    found = [delta.new for delta in engine.deltas(QUERY) if delta.new is not None]
    warm = sum(row[TEMP] or 0.0 for row in found)
    ((count, expected),) = engine.execute(
        "SELECT count(*), coalesce(sum(w.temp), 0.0)"
        " FROM departures d LEFT JOIN weather w ON w.observation = d.observation"
    ).fetchall()
    right = len(found) == count and abs(warm - expected) < 1e-6 * max(1.0, abs(expected))
    console.print(
        f"{len(found)} departures have their weather: {'it adds up' if right else 'it does NOT add up'}"
    )
    return right


def plot(measured: Sequence[Measured], path: str) -> None:
    """The same as a picture, with matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    memory = [_bytes(each.memory) / 2**20 for each in measured]
    axes.plot(memory, [each.rate for each in measured], "o-", label="joined, with all that a refresh does")
    axes.plot(memory, [each.predicted for each in measured], "s--", label="the scan alone, as predicted")
    axes.set(xscale="log", yscale="log", xlabel="memory (MB)", ylabel="departures per second")
    axes.legend()
    figure.savefig(path)


def _bytes(memory: str) -> int:
    number, unit = memory.split()
    return round(float(number) * {"KB": 2**10, "MB": 2**20}[unit.upper()])


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Departures of 2013 with their weather, by a mesh join.")
    parser.add_argument("--places", type=int, default=100, help="places with weather (default: 100)")
    parser.add_argument(
        "--flights", type=int, default=20_000, help="departures for each budget (default: 20000)"
    )
    parser.add_argument("--memory", nargs="+", default=list(BUDGETS), help="the budgets, as in '64 KB'")
    parser.add_argument("--plot", metavar="FILE", help="also draw the plot into this file")
    options = parser.parse_args(argv)
    if not 7 <= options.places <= 100:
        parser.error("--places is 7 to 100: with fewer the weather is kept in memory, and more there are not")
    if options.flights < 1 or options.flights * len(options.memory) > 300_000:
        parser.error("--flights, for all budgets together, are 1 to 300000")
    if not all(re.fullmatch(r"\d+ [KM]B", each) for each in options.memory):
        parser.error("--memory has budgets such as '64 KB' or '4 MB'")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
