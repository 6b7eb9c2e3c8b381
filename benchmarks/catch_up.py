"""How long it takes to catch up: thousands of transactions as one refresh.

    python benchmarks/catch_up.py                                # scales 0.1 and 1, about half an hour
    python benchmarks/catch_up.py --scale 0.01 --rounds 2 --transactions 200 --many 500

Every round commits the transactions, refreshes the queries once, and compacts the tables, so that every round starts
as the first one did. Committing, compacting and DuckDB's own changes are outside of the timing, and so is merging
changes into snapshots after a refresh, which an engine with a scheduler does in the background.

    catch up                       2 000 transactions of stream B (see `recompute_and_diff.py`), every query refreshed
                                   once in TRANSACTIONAL mode, which gives the deltas of each of them; changed rows of
                                   the tables per second; beside it DuckDB computes the query from scratch once, and
                                   compares it with the result before
    transactional over compressed  7 000 transactions of stream A, 10 orders each (about 770 000 rows), as one refresh
                                   of a query in TRANSACTIONAL and of the same query in COMPRESSED mode, which takes
                                   the first turn in every other round

The deltas of every round are checked against DuckDB's difference. Seconds are medians over the rounds, without the
first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from duck import Duck
from frame import JOINED, UNDISTURBED, Figure, apply, arguments, canvas, check, create, ratio, run
from pyspark.sql import SparkSession

import cq_engine
from estore import STREAM_A, STREAM_B, TABLES, Shop, Transaction, change_tables, load

NAME = "catch_up"
MODES = ("TRANSACTIONAL", "COMPRESSED")


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    return run(NAME, options, lambda directory, scale: measure(directory, scale, options, spark), draw=plot)


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale."""
    staging = str(directory / "bulk")
    with ExitStack() as stack:
        engine = stack.enter_context(
            cq_engine.connect(str(directory / "warehouse"), spark=spark, scheduler=False, conf=UNDISTURBED)
        )
        load(engine, scale, staging)
        duck = stack.enter_context(Duck(directory / "shop.duckdb", staging))
        bench = _Bench(engine, duck, Shop(options.seed, scale))
        for figure in (*_catch_up(bench, options), _both_modes(bench, options)):
            yield {"figure": figure.pop("figure"), "scale": scale, **figure}


@dataclass
class _Seconds:
    """What one query took, by round."""

    refresh: list[float] = field(default_factory=list)
    recompute: list[float] = field(default_factory=list)
    recompute_diff: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    deltas: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Bench:
    """The shop in both engines, and the stream of its transactions."""

    engine: cq_engine.Engine
    duck: Duck
    shop: Shop

    def commit(self, count: int, mix: Mapping[str, float], orders: int) -> int:
        """Commits so many transactions; how many rows they changed."""
        batch: list[Transaction] = list(islice(self.shop.transactions(mix=mix, orders=orders), count))
        changes = change_tables(batch)
        apply(self.engine, changes)
        self.duck.apply(changes)
        return sum(len(transaction.changes) for transaction in batch)

    def refresh(self, query: str) -> tuple[float, list[cq_engine.Delta]]:
        """Seconds until they are durable, and the new deltas."""
        before = self.engine.describe(query).position
        seconds = self.engine.refresh(query).seconds
        return seconds, list(self.engine.deltas(query, after_version=before))

    def compact(self) -> None:
        for table in TABLES:
            self.engine.compact(table)
        self.engine.maintain()


def _catch_up(bench: _Bench, options: argparse.Namespace) -> Iterator[Figure]:
    seconds = {query: _Seconds() for query in options.queries}
    for query in options.queries:
        create(bench.engine, query, JOINED[query])
        bench.duck.watch(query, JOINED[query])
    for number in range(options.rounds + 1):
        changes = bench.commit(options.transactions, STREAM_B, options.orders)
        for query, into in seconds.items():
            refresh, deltas = bench.refresh(query)
            recompute, recompute_diff, changed = bench.duck.recompute(query, JOINED[query])
            check(query, deltas, changed)
            if number:
                into.refresh.append(refresh)
                into.recompute.append(recompute)
                into.recompute_diff.append(recompute_diff)
                into.rates.append(changes / refresh)
                into.deltas.append(len(deltas))
        bench.compact()
    for query, into in seconds.items():
        refresh = median(into.refresh)
        yield {
            "figure": "catch up",
            "query": query,
            "transactions": options.transactions,
            "changes": changes,
            "refresh_seconds": round(refresh, 4),
            "changes_per_second": round(median(into.rates)),
            "duckdb_recompute_seconds": round(median(into.recompute), 4),
            "duckdb_recompute_diff_seconds": round(median(into.recompute_diff), 4),
            "duckdb_recompute_ratio": ratio(median(into.recompute), refresh),
            "duckdb_recompute_diff_ratio": ratio(median(into.recompute_diff), refresh),
            "delta_rows": median(into.deltas),
            "n": len(into.refresh),
        }


def _both_modes(bench: _Bench, options: argparse.Namespace) -> Figure:
    query = options.query
    names = {mode: f"{query}_{mode.lower()}" for mode in MODES}
    for mode, name in names.items():
        create(bench.engine, name, JOINED[query], mode=mode)
    bench.duck.watch("many", JOINED[query])
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    count: dict[str, int] = {}
    for number in range(options.rounds + 1):
        changes = bench.commit(options.many, STREAM_A, options.orders)
        _, _, changed = bench.duck.recompute("many", JOINED[query])
        for mode in MODES if number % 2 else reversed(MODES):
            refresh, deltas = bench.refresh(names[mode])
            check(names[mode], deltas, changed)
            count[mode] = len(deltas)
            if number:
                seconds[mode].append(refresh)
        bench.compact()
    transactional, compressed = (median(seconds[mode]) for mode in MODES)
    return {
        "figure": "transactional over compressed",
        "query": query,
        "transactions": options.many,
        "changes": changes,
        "transactional_seconds": round(transactional, 4),
        "compressed_seconds": round(compressed, 4),
        "ratio": ratio(transactional, compressed),
        "transactional_delta_rows": count["TRANSACTIONAL"],
        "compressed_delta_rows": count["COMPRESSED"],
        "n": len(seconds["COMPRESSED"]),
    }


def plot(figures: Sequence[Figure], path: str) -> None:
    """Changes per second of every query, and the seconds of both modes, by scale."""
    drawing = canvas(2, shared=False)
    if drawing is None:
        return
    speed, modes = drawing[1]
    caught_up = [figure for figure in figures if figure["figure"] == "catch up"]
    for query in dict.fromkeys(figure["query"] for figure in caught_up):
        points = [f for f in caught_up if f["query"] == query]
        speed.plot(
            [f["scale"] for f in points], [f["changes_per_second"] for f in points], marker="o", label=query
        )
    speed.set(title="catching up", xlabel="scale", xscale="log", ylabel="changes per second")
    speed.set_ylim(bottom=0)
    speed.legend(fontsize="small")
    both: list[Any] = [f for f in figures if f["figure"] == "transactional over compressed"]
    for mode in MODES:
        values = [f[f"{mode.lower()}_seconds"] for f in both]
        modes.plot([f["scale"] for f in both], values, marker="o", label=mode.lower())
    modes.set(title="one refresh of many transactions", xlabel="scale", xscale="log", ylabel="seconds")
    modes.set_ylim(bottom=0)
    modes.legend(fontsize="small")
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Thousands of transactions as one refresh, on a shop's data.")
    parser.add_argument("--transactions", type=int, default=2000, help="of stream B (default: 2000)")
    parser.add_argument("--many", type=int, default=7000, help="transactions of stream A (default: 7000)")
    parser.add_argument("--orders", type=int, default=10, help="per transaction (default: 10)")
    parser.add_argument("--queries", nargs="+", choices=list(JOINED), default=list(JOINED), metavar="Q")
    parser.add_argument(
        "--query", choices=list(JOINED), default="big_spenders", help="in both modes (default: big_spenders)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
