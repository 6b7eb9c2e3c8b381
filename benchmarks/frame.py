"""What the benchmarks share: arguments, JSON lines, a query computed from scratch, differences, plots."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark programs use

import cq_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from estore import QUERIES

__all__ = [
    "JOINED",
    "UNDISTURBED",
    "DeltaMismatchError",
    "Figure",
    "Rows",
    "Scratch",
    "apply",
    "arguments",
    "bars",
    "canvas",
    "check",
    "create",
    "difference",
    "discard",
    "driver",
    "driver_arguments",
    "growth",
    "net",
    "ratio",
    "run",
    "timed",
]

Figure = dict[str, Any]
Rows = Counter[tuple[Any, ...]]

EVERY_LINE = """
        SELECT ol.oid, ol.line, ol.item, ol.price, ol.qty, o.odate, o.paid, c.cid, c.name, c.region, c.segment
        FROM orderline ol
        JOIN orders o ON ol.oid = o.oid
        JOIN customer c ON o.cid = c.cid"""

UNDISTURBED = {"maintenance": "manual"}
"""For `connect`: nothing is merged in the background while something is timed; call `maintain` between the rounds."""

JOINED: dict[str, str] = {"every_line": EVERY_LINE, **QUERIES}
"""The shop's queries and the join of all its tables without any condition: as many rows as there are order lines."""


class DeltaMismatchError(Exception):
    """The deltas are not the difference between two results."""


# ---------------------------------------------------------------- a program


def arguments(
    description: str, *, scales: Sequence[float] = (0.1, 1.0), rounds: int = 5
) -> argparse.ArgumentParser:
    """A parser with the arguments that all benchmarks have; without `scales` it is not over the shop."""
    parser = argparse.ArgumentParser(description=description)
    if scales:
        parser.add_argument(
            "--scale",
            "--scales",
            dest="scales",
            type=float,
            nargs="+",
            default=list(scales),
            metavar="S",
            help="1 is 100 000 customers, 1 000 000 orders, 10 000 000 lines (default: "
            + " ".join(f"{scale:g}" for scale in scales)
            + ")",
        )
    parser.add_argument("--rounds", type=int, default=rounds, help="counted rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--lines", type=Path, metavar="JSONL", help="write the JSON lines to this file, too")
    parser.add_argument("--plot", metavar="PNG", help="draw the figures (needs matplotlib)")
    return parser


def run(
    benchmark: str,
    options: argparse.Namespace,
    measure: Callable[[Path, float], Iterator[Figure]],
    *,
    conclude: Callable[[Sequence[Figure]], Iterable[Figure]] = lambda _: (),
    draw: Callable[[Sequence[Figure], str], None],
) -> int:
    """Measures at every scale, each in a directory of its own; prints, and saves where wanted, a line per figure."""
    figures: list[Figure] = []
    if options.lines is not None:
        options.lines.write_text("")

    def report(figure: Figure) -> None:
        figures.append({"benchmark": benchmark, **figure})
        line = json.dumps(figures[-1])
        print(line, flush=True)
        if options.lines is not None:
            with options.lines.open("a") as file:
                file.write(line + "\n")

    report(machine())
    for scale in sorted(options.scales):
        with tempfile.TemporaryDirectory(prefix="cq-bench-", ignore_cleanup_errors=True) as directory:
            for figure in measure(Path(directory), scale):
                report(figure)
    for figure in conclude(figures):
        report(figure)
    if options.plot is not None:
        draw(figures, options.plot)
    return 0


def driver_arguments(parser: argparse.ArgumentParser) -> None:
    """What `driver` tells the process that it starts: `inside`, empty in the one that a person starts."""
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--master", default="", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)


def driver(program: str, part: str, master: str, directory: Path, *words: object) -> list[Figure]:
    """A part of a benchmark in a process of its own, with a Spark of its own; the JSON lines that it prints."""
    given = ["--inside", part, "--master", master, "--directory", directory, *words]
    started = [sys.executable, program, *map(str, given)]
    done = subprocess.run(started, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def machine() -> Figure:
    """What the figures were taken on. `load` is the number of processes that wanted a core in the last minute."""
    return {
        "figure": "machine",
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "duckdb": version("duckdb"),
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of wall clock, and what `work` gave."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def ratio(longer: float, shorter: float) -> float:
    """How many times longer, to three digits."""
    return float(f"{longer / shorter:.3g}")


def growth(figures: Sequence[Figure]) -> Iterator[Figure]:
    """How much longer a refresh takes at the largest scale than at the smallest, by stream and query."""
    seconds: dict[tuple[Any, ...], dict[float, float]] = {}
    for figure in figures:
        if "refresh_seconds" in figure and "scale" in figure:
            by = (figure["figure"], figure.get("stream"), figure["query"])
            seconds.setdefault(by, {})[figure["scale"]] = figure["refresh_seconds"]
    for (of, stream, query), by_scale in seconds.items():
        small, large = min(by_scale), max(by_scale)
        if small < large:
            yield {
                "figure": "growth",
                "of": of,
                **({} if stream is None else {"stream": stream}),
                "query": query,
                "scales": [small, large],
                "ratio": ratio(by_scale[large], by_scale[small]),
            }


# ---------------------------------------------------------------- the shop


def create(
    engine: cq_engine.Engine, name: str, query: str, *, mode: str = "TRANSACTIONAL", options: str = ""
) -> None:
    """A query that is refreshed only when asked to; `options` as in WITH (...)."""
    options = f"WITH ({options}) " if options else ""
    engine.execute(f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND {options}AS {query}")


def apply(engine: cq_engine.Engine, changes: Mapping[str, Any]) -> float:
    """Commits what `change_tables` gave, a version per transaction; seconds."""
    seconds, _ = timed(lambda: engine.apply_changes(changes, op="op", transaction="txn", order="seq"))
    return seconds


# ---------------------------------------------------------------- results from scratch


class Scratch:
    """A query that Spark computes from scratch, over the tables as they are now."""

    def __init__(self, engine: cq_engine.Engine, query: str, directory: Path) -> None:
        """Writes the result as it is now into `directory`."""
        self._engine = engine
        self._query = query
        self._directory = directory
        self._rounds = 0
        self._before = self._written()

    def computed(self) -> DataFrame:
        frame: DataFrame = self._engine.execute(self._query).to_df()
        return frame

    def difference(self) -> tuple[Rows, Rows]:
        """Computes the result and writes it, and compares it with the one before: rows that are gone, new rows."""
        before, after = self._before, self._written()
        changed = difference(before, after)
        self._before = after
        shutil.rmtree(self._path(self._rounds - 2))
        return changed

    def _path(self, number: int) -> Path:
        return self._directory / str(number)

    def _written(self) -> DataFrame:
        """The result, written as Parquet and read from there."""
        path = str(self._path(self._rounds))
        self._rounds += 1
        frame = self.computed()
        frame.write.parquet(path)
        spark: SparkSession = self._engine.spark
        return spark.read.schema(frame.schema).parquet(path)


def discard(frame: DataFrame) -> None:
    """Computes all rows and throws them away."""
    frame.write.format("noop").mode("overwrite").save()


def difference(before: DataFrame, after: DataFrame) -> tuple[Rows, Rows]:
    """The rows that are gone and those that are new, by EXCEPT ALL both ways."""
    changed = before.exceptAll(after).withColumn("weight", F.lit(-1))
    changed = changed.unionAll(after.exceptAll(before).withColumn("weight", F.lit(1)))
    rows = [tuple(row) for row in changed.collect()]
    removed = Counter(row[:-1] for row in rows if row[-1] < 0)
    return removed, Counter(row[:-1] for row in rows if row[-1] > 0)


def net(deltas: Iterable[cq_engine.Delta]) -> tuple[Rows, Rows]:
    """The rows that the deltas of several commits take away and add, net by result key."""
    first: dict[Any, tuple[Any, ...] | None] = {}
    last: dict[Any, tuple[Any, ...] | None] = {}
    for delta in deltas:
        left = delta.new if delta.marker == "D" and delta.old is None else delta.old
        first.setdefault(delta.key, None if delta.marker == "I" else left)
        last[delta.key] = None if delta.marker == "D" else delta.new
    changed = [key for key in first if first[key] != last[key]]
    return _rows(first, changed), _rows(last, changed)


def check(query: str, deltas: Iterable[cq_engine.Delta], *differences: tuple[Rows, Rows]) -> None:
    """Raises DeltaMismatchError where the deltas of a query are not what every difference says."""
    found = net(deltas)
    if any(found != difference for difference in differences):
        raise DeltaMismatchError(f"{query}: the deltas are not what changed in the result")


def _rows(by_key: Mapping[Any, tuple[Any, ...] | None], keys: Sequence[Any]) -> Rows:
    return Counter(row for key in keys if (row := by_key[key]) is not None)


# ---------------------------------------------------------------- plots


def bars(found: Mapping[str, float], path: str, **said: str) -> None:
    """Draws one bar for each; `said` is what matplotlib's `Axes.set` takes, as a title."""
    drawn = canvas(1)
    if drawn is None:
        return
    drawing, (panel,) = drawn
    panel.barh(list(found), list(found.values()))
    panel.set(**said)
    drawing.savefig(path, dpi=150)


def canvas(panels: int, across: int = 4, *, shared: bool = True) -> tuple[Any, list[Any]] | None:
    """A drawing with so many panels, and the panels; None, with a word to the user, without matplotlib."""
    try:
        figure: Any = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        print("no plot: pip install matplotlib", file=sys.stderr)
        return None
    across = min(across, panels)
    down = -(-panels // across)
    drawing = figure(figsize=(4 * across, 3.5 * down), layout="constrained")
    axes = list(drawing.subplots(down, across, sharey=shared, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    return drawing, axes[:panels]
