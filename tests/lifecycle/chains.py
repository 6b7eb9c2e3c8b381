"""Continuous queries over continuous queries, replayed by the engine and checked against DuckDB at every position."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import DEFAULT_LIMITS, Limits
from tests.oracle.generate import History, core_histories, nested_histories
from tests.oracle.law import Account, Broken, Change, Row, difference, row_of
from tests.oracle.queries import QueryMaker
from tests.oracle.recorded import Recorded, record

__all__ = ["Chain", "Step", "chains", "check_chain", "oracle"]


@dataclass(frozen=True)
class Step:
    """One query of a chain, which may read the tables and the steps before it."""

    name: str
    query: str
    mode: str = "TRANSACTIONAL"


@dataclass(frozen=True)
class Chain:
    """A history, without queries of its own, and queries that read its tables and each other."""

    history: History
    steps: tuple[Step, ...]

    @property
    def script(self) -> str:
        lines = [
            f"CREATE CONTINUOUS QUERY {s.name} COMPUTE {s.mode} DELTA ON DEMAND AS {s.query};"
            for s in self.steps
        ]
        return "\n".join([self.history.script(), *lines])


def oracle(chain: Chain) -> Recorded:
    """The history in DuckDB, where each step is a query with those before it as CTEs."""
    texts = []
    for number, step in enumerate(chain.steps):
        before = ", ".join(f"{s.name} AS ({s.query})" for s in chain.steps[:number])
        texts.append(f"WITH {before} {step.query}" if before else step.query)
    made = chain.history
    return record(History(made.tables, made.initial, made.transactions, tuple(texts), made.seed))


@st.composite
def chains(draw: Callable[[Any], Any], nested: bool, modes: Sequence[str], depth: int = 4) -> Chain:
    """Histories with queries of which each may read the tables and the queries before it, the last one most likely."""
    histories = nested_histories if nested else core_histories
    history = draw(histories(queries=0, transactions=(3, 4)))
    sources = [(t.name, tuple(t.refs)) for t in history.tables]
    steps: list[Step] = []
    for number in range(depth):
        shown = [sources[-1], sources[-1], *sources[-3:]] if steps else sources
        relation = QueryMaker(draw, shown, nested).relation(1)
        steps.append(Step(f"q{number}", relation.sql, modes[number % len(modes)]))
        sources.append((f"q{number}", relation.columns))
    return Chain(history, tuple(steps))


class _Replay:
    """One warehouse, driven at random. After each action every position that a query has is noted, to be checked."""

    def __init__(
        self, chain: Chain, recorded: Recorded, directory: Path, spark: SparkSession, limits: Limits
    ) -> None:
        self.chain = chain
        self.recorded = recorded
        self.directory = directory
        self.spark = spark
        self.limits = limits
        self.random = random.Random(chain.history.seed)
        self.engine = self._open()
        self.versions: list[int] = []
        self.positions: dict[str, set[int]] = defaultdict(set)

    def _open(self) -> cq_engine.Engine:
        return cq_engine.connect(self.directory, spark=self.spark, scheduler=False, limits=self.limits)

    def run(self) -> None:
        for table in self.chain.history.tables:
            self.engine.execute(table.ddl(True))
        self.commit(self.recorded.transactions[0])
        for step in self.chain.steps:
            self.engine.execute(
                f"CREATE CONTINUOUS QUERY {step.name} COMPUTE {step.mode} DELTA ON DEMAND AS {step.query}"
            )
        for statements in self.recorded.transactions[1:]:
            self.commit(statements)
            if self.random.random() < 0.6:
                self.refresh(self.random.choice(self.chain.steps).name)
            if self.random.random() < 0.2:
                self.engine.close()
                self.engine = self._open()
        last = list(self.chain.steps)
        self.random.shuffle(last)
        for step in last:
            self.refresh(step.name)

    def commit(self, statements: Sequence[str]) -> None:
        with self.engine.transaction() as transaction:
            for statement in statements:
                transaction.execute(statement)
        self.versions.append(max(1, transaction.commit_version or 0))

    def refresh(self, name: str) -> None:
        self.engine.refresh(name)
        for step in self.chain.steps:
            self.positions[step.name].add(self.engine.describe(step.name).position)

    # ------------------------------------------------------------ checks

    def check(self) -> None:
        packed: set[str] = set()
        for number, step in enumerate(self.chain.steps):
            sources = self.engine.catalog.state.queries[step.name].sources
            if step.mode == "COMPRESSED" or packed & set(sources):
                packed.add(step.name)
            self.check_step(number, step, every=step.name not in packed)

    def check_step(self, number: int, step: Step, every: bool) -> None:
        """The law at every commit, or `every` False: at every position that was seen."""
        described = self.engine.describe(step.name)
        if described.position != self.versions[-1]:
            raise Broken(f"{step.name} stands at {described.position}, not at {self.versions[-1]}")
        results = {v: self.recorded.results[i + 1][number] for i, v in enumerate(self.versions)}
        names = [name.lower() for name, _ in self.recorded.columns[number]]
        account = Account(results[self.versions[0]], described.key is not None)
        if described.key is not None:
            account.start([names.index(k.lower()) for k in described.key])
        by_version = self.changes(step.name)
        if unknown := set(by_version) - set(results):
            raise Broken(f"{step.name}: deltas of versions that were no commits: {unknown}")
        for version in self.versions[1:]:
            account.apply(by_version[version])
            if every or version in self.positions[step.name]:
                account.check(results[version], f"of {step.name} at version {version}")
        self.check_relation(step.name, results)
        known = self.versions if every else sorted(self.positions[step.name])
        for version in {self.random.choice(known), self.versions[-1]} - {self.versions[0]}:
            read = self.engine.execute(f"SELECT * FROM {step.name} VERSION AS OF {version}").fetchall()
            if different := difference(map(row_of, read), results[version]):
                raise Broken(f"SELECT * FROM {step.name} VERSION AS OF {version}: {different}")

    def check_relation(self, name: str, results: Mapping[int, Sequence[Row]]) -> None:
        """What other queries read is the result, too."""
        relation = self.engine.catalog.state.queries[name].relation
        if relation is None:
            return
        shown = [f"`{c.name}`" for c in relation.columns]
        frame = self.engine.reader.image(relation.storage, self.versions[-1]).select(*shown)
        different = difference([row_of(r) for r in frame.collect()], results[self.versions[-1]])
        if different:
            raise Broken(f"what others read of {name}: {different}")

    def changes(self, name: str) -> dict[int, list[Change]]:
        def converted(row: tuple[object, ...] | None) -> Row | None:
            return None if row is None else row_of(row)

        found: dict[int, list[Change]] = defaultdict(list)
        for d in self.engine.deltas(name):
            change = Change(
                d.commit_version, d.sequence, d.marker, converted(d.key), converted(d.new), converted(d.old)
            )
            found[change.version].append(change)
        return found


def check_chain(chain: Chain, spark: SparkSession, directory: Path, limits: Limits = DEFAULT_LIMITS) -> None:
    """Replays a chain in a new warehouse; raises Broken with a script that shows the problem."""
    recorded = oracle(chain)
    if recorded.newest < 2:
        return
    replay = _Replay(chain, recorded, directory, spark, limits)
    try:
        replay.run()
        replay.check()
    except AssertionError as problem:
        raise Broken(f"{problem}\n{chain.script}") from problem
    finally:
        replay.engine.close()
