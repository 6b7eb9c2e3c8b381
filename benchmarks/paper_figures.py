"""The figures of the paper's evaluation (Witkowski et al., Continuous Queries in Oracle, VLDB 2007), one by one.

    python benchmarks/paper_figures.py                           # scale 1, the paper's; about twenty minutes
    python benchmarks/paper_figures.py --scale 0.01 --rounds 2 --sizes 10 100 --transactions 200 --figures 1 2

The paper's shop has 10 M order lines, 1 M orders and 100 K customers, which is scale 1; a customer buys about 10 items
per order. Its slides 28 to 32 show seven figures:

    1  general, FK-PK          by the size of the delta, tables in no useful order    paper (hash join): up to 10x
    2  the same                tables clustered by their keys                         paper (nested loops): up to 4x
    3  FK-PK, FK-PK units      by the size of the delta, tables in no useful order    paper: 5x to 0.8x
    4  the same                tables clustered by their keys                         paper: 1.5x to 2x
    5  FK-PK, FK-PK units      by the share of the delta's lines whose order is not in the delta; units are ahead
                               with less than 80 % in the paper
    6  pre-image by SQL, undo  by the size of the delta                               paper: up to 1.5x, small deltas
    7  frequency               7 000 transactions of 10 orders refreshed every 10 ... 7 000; paper: every 10 is 35x
                               slower than once, and beyond 100 the frequency matters little

A size is the number of orders in the delta; an order and its lines are a transaction, an FK-PK unit. For 6 the delta
is of stream B (see `recompute_and_diff.py`), because inserts have no pre-image. "No useful order" means files that are
clustered by names and prices, and no copies of columns for look-ups (`look_up_cache`), which are sorted: a look-up by key
has to read all of the table, as it has to without an index.

Order numbers are scattered, as random identifiers are. Of numbers that grow with time, as most do, the statistics of
the files say that no older row has a new one, so that the general form reads no more than the others (measured: ratios
between 0.8 and 1.3 for every size of 1 to 4).

Every plan is a query of its own with WITH (form = ...) or WITH (pre_image = ...) over the same join; all of them
refresh the same commits one after the other, beginning with another one in every round. Their deltas must be equal.
Seconds are medians over the rounds, without the first; in figure 7 they are the sum over all refreshes. An engine
without these options says so: then 1 to 6 are left out, and 7 runs with the plan that the engine chooses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from frame import (
    JOINED,
    UNDISTURBED,
    DeltaMismatchError,
    Figure,
    apply,
    arguments,
    canvas,
    check,
    create,
    net,
    ratio,
    run,
    timed,
)
from pyspark.sql import SparkSession

import cq_engine
from estore import STREAM_A, STREAM_B, TABLES, Shop, Transaction, change_tables, load

NAME = "paper_figures"
FIGURES = (1, 2, 3, 4, 5, 6, 7)
UNORDERED = {"customer": ("cid", "name"), "orders": ("oid", "paid"), "orderline": ("oid, line", "price")}
"""What the tables are clustered by, and what they are to be clustered by so that it helps no join."""

FORMS = {form: f"form = '{form}'" for form in ("general", "fk_pk", "fk_pk_units")}
PRE_IMAGES = {image: f"form = 'general', pre_image = '{image}'" for image in ("sql", "undo")}


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    return run(NAME, options, lambda directory, scale: measure(directory, scale, options, spark), draw=plot)


def measure(
    directory: Path, scale: float, options: argparse.Namespace, spark: SparkSession | None
) -> Iterator[Figure]:
    """The figures of one scale: first those over tables in no useful order, then those over clustered ones."""
    for clustered, numbers in ((False, {1, 3}), (True, {2, 4, 5, 6, 7})):
        wanted = numbers & set(options.figures)
        if not wanted:
            continue
        warehouse = str(directory / ("clustered" if clustered else "unordered"))
        conf = UNDISTURBED if clustered else {**UNDISTURBED, "look_up_cache": "off"}
        with cq_engine.connect(warehouse, spark=spark, scheduler=False, conf=conf) as engine:
            load(engine, scale, tables=TABLES if clustered else unordered_tables(), scatter=True)
            bench = _Bench(engine, Shop(options.seed, scale), options.query, options.rounds)
            for figure in _of_warehouse(bench, wanted, clustered, options):
                yield {"figure": figure.pop("figure"), "scale": scale, **figure}


def unordered_tables() -> dict[str, str]:
    """CREATE TABLE per table, clustered by columns that nothing is looked up by."""
    return {
        table: TABLES[table].replace(f"CLUSTER BY ({keys})", f"CLUSTER BY ({other})")
        for table, (keys, other) in UNORDERED.items()
    }


def _of_warehouse(
    bench: _Bench, wanted: set[int], clustered: bool, options: argparse.Namespace
) -> Iterator[Figure]:
    general, units = (2, 4) if clustered else (1, 3)
    forms: tuple[str, ...] = ()
    if general in wanted:
        forms = ("general", "fk_pk")
    if wanted & {units, 5}:
        forms = (*forms, "fk_pk", "fk_pk_units")
    asked = {form: FORMS[form] for form in dict.fromkeys(forms)}
    if asked and _knows(bench.engine, "form", min(wanted & {general, units, 5}), "fk_pk"):
        with bench.queries(asked) as refreshed:
            if wanted & {general, units}:
                points = [refreshed.by_size(size, STREAM_A) for size in options.sizes]
                if general in wanted:
                    yield from _compared(general, "general", "fk_pk", points, clustered)
                if units in wanted:
                    yield from _compared(units, "fk_pk", "fk_pk_units", points, clustered)
            if 5 in wanted:
                size = options.share_size
                points = [refreshed.by_share(size, share / 100) for share in options.shares]
                yield from _compared(5, "fk_pk", "fk_pk_units", points, clustered)
    if 6 in wanted and _knows(bench.engine, "pre_image", 6, "undo"):
        with bench.queries(PRE_IMAGES) as refreshed:
            points = [refreshed.by_size(size, STREAM_B) for size in options.sizes]
            yield from _compared(6, "sql", "undo", points, clustered)
    if 7 in wanted:
        plan = FORMS["fk_pk"] if _knows(bench.engine, "form", 7, "fk_pk") else ""
        yield from _frequencies(bench, plan, options)


def _knows(engine: cq_engine.Engine, option: str, number: int, value: str) -> bool:
    """Whether the engine has the option: it takes a value that means something, and rejects one that means nothing."""
    taken: list[bool] = []
    for tried in ("no such value", value):
        try:
            create(engine, "probe", JOINED["every_line"], options=f"{option} = '{tried}'")
            engine.execute("DROP CONTINUOUS QUERY probe")
            taken.append(True)
        except cq_engine.CQError:
            taken.append(False)
    if taken != [False, True]:
        print(f"figure {number}: the engine has no option {option}", file=sys.stderr)
    return taken == [False, True]


# ---------------------------------------------------------------- plans side by side


@dataclass(frozen=True)
class _Point:
    """Median seconds per plan for one kind of delta, and how many changed rows it had."""

    at: Mapping[str, float]
    changes: int
    seconds: Mapping[str, float]
    delta_rows: int
    n: int


@dataclass(frozen=True)
class _Bench:
    """A loaded shop, and what is to be watched in it."""

    engine: cq_engine.Engine
    shop: Shop
    query: str
    rounds: int

    def queries(self, plans: Mapping[str, str]) -> _Plans:
        return _Plans(self, plans)


class _Plans:
    """One query per plan while the block runs, all over the same join."""

    def __init__(self, bench: _Bench, plans: Mapping[str, str]) -> None:
        self._bench = bench
        self._plans = plans

    def __enter__(self) -> _Plans:
        for plan, options in self._plans.items():
            create(self._bench.engine, f"by_{plan}", JOINED[self._bench.query], options=options)
        return self

    def __exit__(self, *exc: object) -> None:
        for plan in self._plans:
            self._bench.engine.execute(f"DROP CONTINUOUS QUERY by_{plan}")
        _compact(self._bench.engine)

    def by_size(self, size: int, mix: Mapping[str, float]) -> _Point:
        """Deltas of so many transactions with one order each."""
        stream = self._bench.shop.transactions(mix=mix)
        return self._rounds({"orders": size}, lambda: ([], list(islice(stream, size))))

    def by_share(self, size: int, share: float) -> _Point:
        """Deltas of the lines of so many orders, a share of which was there before."""
        stream = self._bench.shop.transactions(mix=STREAM_A)

        def batches() -> tuple[list[Transaction], list[Transaction]]:
            orders = list(islice(stream, size))
            early = round(size * share)
            return (
                [replace(one, changes=one.changes[:1]) for one in orders[:early]],
                [replace(one, changes=one.changes[1:]) for one in orders[:early]] + orders[early:],
            )

        return self._rounds({"orders": size, "share": share}, batches)

    def _rounds(
        self, at: Mapping[str, float], batches: Callable[[], tuple[list[Transaction], list[Transaction]]]
    ) -> _Point:
        """Refreshes every plan, in turns, after each batch; what is to be there before the delta is not timed."""
        engine = self._bench.engine
        names = list(self._plans)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        rows = changes = 0
        for number in range(self._bench.rounds + 1):
            before, delta = batches()
            engine.maintain()
            if before:
                apply(engine, change_tables(before, scatter=True))
                self._refresh(names)
            start = engine.catalog.newest_version
            apply(engine, change_tables(delta, scatter=True))
            turn = number % len(names)
            took = self._refresh(names[turn:] + names[:turn])
            changes, rows = sum(len(one.changes) for one in delta), self._check(start)
            if number:
                for name in names:
                    seconds[name].append(took[name])
        return _Point(at, changes, {n: median(s) for n, s in seconds.items()}, rows, self._bench.rounds)

    def _refresh(self, names: Sequence[str]) -> dict[str, float]:
        engine = self._bench.engine
        return {name: timed(partial(engine.refresh, f"by_{name}"))[0] for name in names}

    def _check(self, since: int) -> int:
        """How many deltas there are since a version. Raises DeltaMismatchError where plans disagree."""
        first, *others = self._plans
        deltas = list(self._bench.engine.deltas(f"by_{first}", after_version=since))
        for other in others:
            check(f"by_{other}", self._bench.engine.deltas(f"by_{other}", after_version=since), net(deltas))
        return len(deltas)


def _compared(
    number: int, base: str, other: str, points: Sequence[_Point], clustered: bool
) -> Iterator[Figure]:
    """A line per point; the ratio says how many times faster `other` is."""
    for point in points:
        yield {
            "figure": f"{number} {base} over {other}",
            "clustered": clustered,
            **point.at,
            "changes": point.changes,
            f"{base}_seconds": round(point.seconds[base], 4),
            f"{other}_seconds": round(point.seconds[other], 4),
            "ratio": ratio(point.seconds[base], point.seconds[other]),
            "delta_rows": point.delta_rows,
            "n": point.n,
        }


# ---------------------------------------------------------------- frequency


def _frequencies(bench: _Bench, plan: str, options: argparse.Namespace) -> Iterator[Figure]:
    """The same transactions, by one query per frequency."""
    engine, total = bench.engine, options.transactions
    frequencies = sorted({min(every, total) for every in options.every})
    names = {every: f"every_{every}" for every in frequencies}
    for name in names.values():
        create(engine, name, JOINED[bench.query], options=plan)
    start = engine.catalog.newest_version
    seconds = dict.fromkeys(frequencies, 0.0)
    refreshes = dict.fromkeys(frequencies, 0)
    stream = bench.shop.transactions(mix=STREAM_A, orders=options.orders)
    done = changes = 0
    for step in _steps(frequencies, total):
        batch = list(islice(stream, step - done))
        changes += sum(len(transaction.changes) for transaction in batch)
        apply(engine, change_tables(batch, scatter=True))
        for every in frequencies:
            if step % every == 0 or step == total:
                seconds[every] += timed(partial(engine.refresh, names[every]))[0]
                refreshes[every] += 1
        engine.maintain()
        done = step
    rows = _equal_counts(engine, list(names.values()), start)
    once = seconds[frequencies[-1]]
    for every in frequencies:
        yield {
            "figure": "7 refresh frequency",
            "every": every,
            "transactions": total,
            "changes": changes,
            "form": "fk_pk" if plan else "chosen by the engine",
            "refreshes": refreshes[every],
            "seconds": round(seconds[every], 3),
            "ratio": ratio(seconds[every], once),
            "delta_rows": rows,
            "n": 1,
        }


def _steps(frequencies: Sequence[int], total: int) -> list[int]:
    """The transactions after which some query is refreshed."""
    return sorted({total, *(n for every in frequencies for n in range(every, total, every))})


def _equal_counts(engine: cq_engine.Engine, names: Sequence[str], since: int) -> int:
    """How many deltas every query has. Raises DeltaMismatchError where they are not equally many, or sum up differently."""
    found = set()
    for name in names:
        totals = engine.execute(
            f"SELECT count(*) AS n, sum(hash(*)) AS h FROM (SELECT * EXCEPT (_commit_timestamp) FROM {name} "
            f"CHANGES FROM VERSION {since + 1}) AS d"
        ).to_arrow()
        found.add(tuple(totals.to_pylist()[0].values()))
    if len(found) > 1:
        raise DeltaMismatchError(f"the deltas depend on the frequency: {found}")
    ((rows, _),) = found
    return int(rows)


def _compact(engine: cq_engine.Engine) -> None:
    for table in TABLES:
        engine.compact(table)
    engine.maintain()


# ---------------------------------------------------------------- plots, arguments


def plot(figures: Sequence[Figure], path: str) -> None:
    """One panel per figure, at the largest scale: seconds over size, share or frequency."""
    shown: dict[str, list[Figure]] = {}
    largest = max((figure["scale"] for figure in figures if "scale" in figure), default=None)
    for figure in figures:
        if "scale" in figure and figure["scale"] == largest:
            shown.setdefault(figure["figure"], []).append(figure)
    drawing = canvas(len(shown), shared=False) if shown else None
    if drawing is None:
        return
    for panel, (name, points) in zip(drawing[1], sorted(shown.items())):
        over = "every" if "every" in points[0] else "share" if "share" in points[0] else "orders"
        for column in [c for c in points[0] if c.endswith("seconds")]:
            label = column.removesuffix("seconds").strip("_") or "all refreshes"
            panel.plot([p[over] for p in points], [p[column] for p in points], marker="o", label=label)
        clustered = ", clustered" if points[0].get("clustered", True) else ", no useful order"
        panel.set(title=f"{name}{clustered}", xlabel=over, ylabel="seconds", yscale="log")
        panel.title.set_fontsize("small")
        if over != "share":
            panel.set_xscale("log")
        panel.legend(fontsize="small")
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("The figures of the paper's evaluation.", scales=(1.0,))
    several: dict[str, Any] = {"nargs": "+", "type": int}
    parser.add_argument("--figures", **several, choices=FIGURES, default=list(FIGURES), metavar="N")
    parser.add_argument(
        "--sizes", **several, default=[10, 50, 200, 1000, 5000, 20000], metavar="N",
        help="orders per delta (default: 10 50 200 1000 5000 20000)",
    )  # fmt: skip
    parser.add_argument(
        "--shares", **several, default=[0, 20, 40, 50, 60, 80, 100], metavar="PERCENT",
        help="of the lines whose order is not in the delta (default: 0 20 40 50 60 80 100)",
    )  # fmt: skip
    parser.add_argument(
        "--share-size", type=int, default=200, help="orders per delta of figure 5 (default: 200)"
    )
    parser.add_argument("--transactions", type=int, default=7000, help="of figure 7 (default: 7000)")
    parser.add_argument("--orders", type=int, default=10, help="per transaction of figure 7 (default: 10)")
    parser.add_argument(
        "--every", **several, default=[10, 20, 50, 100, 500, 1000, 2000, 7000], metavar="N",
        help="transactions per refresh of figure 7 (default: 10 20 50 100 500 1000 2000 7000)",
    )  # fmt: skip
    parser.add_argument("--query", choices=["every_line", "northern_shoes"], default="every_line")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
