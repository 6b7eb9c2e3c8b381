"""Whether the size of a state is felt: the same delta over tables and states that double in size, across every bound.

    python benchmarks/states.py                                  # up to 8.4 million groups, a quarter of an hour
    python benchmarks/states.py --most 65536 --queries balance
    python benchmarks/states.py --drawn states.jsonl --plot states.png

One warehouse has accounts and payments and a query of each shape; the results have from a ninetieth of a row to one for each
account, the aggregates a group. The accounts double, from 1 024 to `--most`; the queries catch up with the one commit that has
their payments, and the tables are merged. Then come commits of `--changes` rows, half of them new payments and half new amounts
of old ones, all over the accounts (of the fewest nearly every one), merged when that is due, as in the background; each query is
refreshed after each commit, in turn. The bounds of `cq_engine.core.limits.Limits` lie somewhere between two sizes: a table or a
state that passes one is read in another way.

    state    of a query and a number of groups: seconds of the commit and of the refresh (medians of the rounds; the first
             refresh after the doubling is given beside them), and of catching up with the doubling (one shot; of the first
             size, CREATE)
    cliff    of a query: the greatest factor by which a refresh, and a commit with it, take longer with twice as many groups
             (`with_commit`, at whatever size that is)
    growth   of a query: how many times longer a refresh takes with the most groups than with the fewest
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from frame import UNDISTURBED, Figure, apply, arguments, canvas, create, ratio, run, timed
from pyspark.sql import SparkSession

import cq_engine

NAME = "states"
LEAST = 1_024
NEW_IDS = 1_000_000_000
"""Payments of the deltas have ids from here on."""
TABLES = {
    "account": "CREATE TABLE account (acct BIGINT NOT NULL, branch INT, PRIMARY KEY (acct)) CLUSTER BY (acct)",
    "pay": """
        CREATE TABLE pay (
          id BIGINT NOT NULL, acct BIGINT NOT NULL, amt BIGINT, PRIMARY KEY (id),
          FOREIGN KEY (acct) REFERENCES account (acct) NOT ENFORCED RELY
        ) CLUSTER BY (acct)""",
}
LOADS = {
    "account": "INSERT INTO account SELECT id, CAST(id % 50 AS INT) FROM range({begin}, {end})",
    # A permutation: {step} is odd, and the numbers of a doubling are a power of two.
    "pay": """
        INSERT INTO pay SELECT id, {begin} + (id * {step}) % ({end} - {begin}), 100 + id % 7
        FROM range({begin}, {end})""",
}
STEP = 5
QUERIES = {
    "join": "SELECT p.id, p.amt, a.acct, a.branch FROM pay p JOIN account a ON p.acct = a.acct",
    "selective_join": """
        SELECT p.id, p.amt, a.acct FROM pay p JOIN account a ON p.acct = a.acct
        WHERE a.branch = 7 AND p.amt > 102""",
    "having_join": """
        SELECT a.acct, a.branch, sum(p.amt) AS total FROM pay p JOIN account a ON p.acct = a.acct
        GROUP BY a.acct, a.branch HAVING sum(p.amt) > 103""",
    "balance": "SELECT acct, sum(amt) AS total, max(amt) AS most FROM pay GROUP BY acct HAVING sum(amt) < 103",
    "window": "SELECT id, acct, amt, rank() OVER (PARTITION BY acct ORDER BY amt DESC) AS place FROM pay",
    "top_n": """
        SELECT id, acct, amt FROM pay
        QUALIFY row_number() OVER (PARTITION BY acct ORDER BY amt DESC, id) <= 2""",
    "left_join": "SELECT a.acct, a.branch, p.id, p.amt FROM account a LEFT JOIN pay p ON a.acct = p.acct",
}
CHANGES = pa.schema(
    {
        "op": pa.string(),
        "txn": pa.int64(),
        "seq": pa.int64(),
        "id": pa.int64(),
        "acct": pa.int64(),
        "amt": pa.int64(),
    }
)


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Runs the benchmark and prints its JSON lines; `spark` is a session to use instead of starting one."""
    options = _options(argv)
    if options.drawn is not None:
        plot([json.loads(line) for line in options.drawn.read_text().splitlines()], options.plot)
        return 0
    options.scales = [0.0]
    return run(NAME, options, lambda directory, _: measure(directory, options, spark), draw=plot)


def measure(directory: Path, options: argparse.Namespace, spark: SparkSession | None) -> Iterator[Figure]:
    """The figures of all sizes."""
    session = spark or cq_engine.spark_session()
    random = np.random.default_rng(options.seed)
    states: dict[str, list[Figure]] = {query: [] for query in options.queries}
    with cq_engine.connect(
        str(directory / "warehouse"), spark=session, scheduler=False, conf=UNDISTURBED
    ) as engine:
        for table in TABLES.values():
            engine.execute(table)
        begin, groups, ids = 0, LEAST, NEW_IDS
        while groups <= options.most:
            grown = _grow(engine, options.queries, begin, groups)
            rounds = []
            for _ in range(options.rounds + 1):
                changes = _changes(random, groups, options.changes, ids)
                ids += options.changes
                rounds.append(_round(engine, options.queries, changes))
                engine.maintain()
            for query, of in states.items():
                of.append(_state(query, groups, grown[query], rounds))
                yield of[-1]
            begin, groups = groups, 2 * groups
    for query, of in states.items():
        yield {"figure": "cliff", "query": query, **_cliff(of)}
        yield {"figure": "growth", "query": query, "ratio": ratio(_refresh(of[-1]), _refresh(of[0]))}


def _grow(engine: cq_engine.Engine, queries: Sequence[str], begin: int, end: int) -> dict[str, float]:
    """Makes the accounts from `begin` to `end`; seconds of each query's CREATE, or of catching up."""
    for load in LOADS.values():
        engine.execute(load.format(begin=begin, end=end, step=STEP))
    seconds = {}
    for query in queries:
        if begin == 0:
            seconds[query], _ = timed(lambda query=query: create(engine, query, QUERIES[query]))
        else:
            seconds[query], _ = timed(lambda query=query: engine.refresh(query))
    for table in TABLES:
        engine.execute(f"COMPACT TABLE {table}")
    engine.maintain()
    return seconds


def _changes(random: np.random.Generator, groups: int, rows: int, ids: int) -> pa.Table:
    """New payments and new amounts of old ones (one in seven is the old amount), one transaction, each row once."""
    old = random.choice(groups, min(groups, rows // 2), replace=False)
    new = np.arange(ids, ids + rows - old.size)
    accounts = np.concatenate([_account(old), random.integers(0, groups, new.size)])
    amounts = random.integers(100, 107, old.size + new.size)
    return pa.table(
        [
            pa.array(["U"] * old.size + ["I"] * new.size),
            np.zeros(old.size + new.size, np.int64),
            np.arange(old.size + new.size),
            np.concatenate([old, new]),
            accounts,
            amounts,
        ],
        schema=CHANGES,
    )


def _account(ids: np.ndarray) -> np.ndarray:
    """The accounts of payments that LOADS made."""
    begin = np.where(ids < LEAST, 0, 2 ** np.floor(np.log2(np.maximum(ids, 1))).astype(np.int64))
    return begin + (ids * STEP) % np.maximum(begin, LEAST)


def _round(engine: cq_engine.Engine, queries: Sequence[str], changes: pa.Table) -> Figure:
    committed = apply(engine, {"pay": changes})
    refreshes = {query: timed(lambda query=query: engine.refresh(query))[0] for query in queries}
    return {"commit": committed, **refreshes}


def _state(query: str, groups: int, grown: float, rounds: Sequence[Figure]) -> Figure:
    first, *others = rounds
    return {
        "figure": "state",
        "query": query,
        "groups": groups,
        "catch_up_seconds": round(grown, 3),
        "first_refresh_seconds": round(first[query], 4),
        "commit_seconds": round(median(each["commit"] for each in others), 4),
        "refresh_seconds": round(median(each[query] for each in others), 4),
    }


def _refresh(state: Figure) -> float:
    return float(state["refresh_seconds"])


def _both(state: Figure) -> float:
    return float(state["commit_seconds"] + state["refresh_seconds"])


def _cliff(states: Sequence[Figure]) -> Figure:
    steps = list(pairwise(states))
    worst: Figure = {"ratio": 1.0, "groups": states[-1]["groups"], "with_commit": 1.0}
    if steps:
        before, after = max(steps, key=lambda step: _refresh(step[1]) / _refresh(step[0]))
        worst = {"ratio": ratio(_refresh(after), _refresh(before)), "groups": after["groups"]}
        worst["with_commit"] = max(ratio(_both(later), _both(earlier)) for earlier, later in steps)
    return worst


def plot(figures: Sequence[Figure], path: str) -> None:
    """Seconds over groups, both by their logarithms: of a delta that stays the same, a level line."""
    states = [figure for figure in figures if figure["figure"] == "state"]
    drawing = canvas(3, shared=False)
    if drawing is None:
        return
    for name, panel in zip(("commit_seconds", "refresh_seconds", "catch_up_seconds"), drawing[1]):
        for query in dict.fromkeys(state["query"] for state in states):
            of = [state for state in states if state["query"] == query]
            panel.plot([s["groups"] for s in of], [s[name] for s in of], marker=".", label=query)
        panel.set(title=name.replace("_", " "), xlabel="groups", ylabel="seconds", xscale="log", yscale="log")
        panel.legend(fontsize="small")
    drawing[0].savefig(path, dpi=150)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("The same delta over states that double in size.", scales=())
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES), metavar="Q")
    parser.add_argument("--most", type=int, default=2**23, help="groups of the largest state")
    parser.add_argument("--changes", type=int, default=2_000, help="changed rows of a delta")
    parser.add_argument(
        "--drawn", type=Path, metavar="JSONL", help="only draw figures that were saved before"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
