"""A recorded history replayed by the engine: one warehouse with many queries, all modes side by side."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

import cq_engine
from cq_engine.core.limits import Limits
from tests.limits import forced
from tests.oracle.generate import History
from tests.oracle.law import Broken, Change, Row, difference, replay, row_of, unique_columns
from tests.oracle.recorded import Recorded, record

__all__ = ["Tally", "check_history", "check_in_fresh_warehouse"]


@dataclass
class Tally:
    """How much was checked."""

    queries: int = 0
    refreshes: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)


class _Replay:
    """Queries `eachN` (a refresh per commit), `batchN` (one at the end), `packedN` (compressed), `ownN` (declared key)."""

    def __init__(self, recorded: Recorded, engine: cq_engine.Engine, tally: Tally, options: str) -> None:
        self.options = f"WITH ({options})" if options else ""
        self.recorded = recorded
        self.engine = engine
        self.tally = tally
        self.random = random.Random(recorded.history.seed)
        self.versions: list[int] = []
        self.points: list[int] = []
        self.owned: dict[int, tuple[str, ...]] = {}

    def create(self) -> None:
        for table in self.recorded.history.tables:
            self.engine.execute(table.ddl(True))
        self.commit(self.recorded.transactions[0])
        for number, text in enumerate(self.recorded.history.queries):
            for name, mode in (
                ("each", "TRANSACTIONAL"),
                ("batch", "TRANSACTIONAL"),
                ("packed", "COMPRESSED"),
            ):
                start = f"{'START FROM SNAPSHOT' if name == 'batch' else ''} {self.options_of(mode)}"
                self.engine.execute(
                    f"CREATE CONTINUOUS QUERY {name}{number} COMPUTE {mode} DELTA ON DEMAND {start} AS {text}"
                )
            results = [each[number] for each in self.recorded.results[1:]]
            columns = [name for name, _ in self.recorded.columns[number]]
            keys = unique_columns(results, len(columns))
            if keys:
                self.owned[number] = tuple(columns[i] for i in self.random.choice(keys))
                key = ", ".join(self.owned[number])
                self.engine.execute(
                    f"CREATE CONTINUOUS QUERY own{number} PRIMARY KEY ({key}) ON DEMAND {self.options_of('TRANSACTIONAL')} AS {text}"
                )
            verdict = self.engine.describe(f"each{number}").verdict
            self.tally.verdicts[verdict] = self.tally.verdicts.get(verdict, 0) + 1
            self.tally.queries += 1

    def options_of(self, mode: str) -> str:
        """WITH (...); recomputation is for compressed deltas."""
        return "" if mode == "TRANSACTIONAL" and "recompute" in self.options else self.options

    def commit(self, statements: Sequence[str]) -> None:
        with self.engine.transaction() as transaction:
            for statement in statements:
                transaction.execute(statement)
        if transaction.commit_version is not None:
            self.versions.append(transaction.commit_version)
        elif len(self.versions) or self.recorded.images[1] != self.recorded.images[0]:
            raise Broken(f"{statements} changed nothing")
        else:
            self.versions.append(0)

    def refresh(self, name: str) -> None:
        self.engine.refresh(name)
        self.tally.refreshes += 1

    def run(self) -> None:
        numbers = range(len(self.recorded.history.queries))
        for statements in self.recorded.transactions[1:]:
            self.commit(statements)
            for number in numbers:
                self.refresh(f"each{number}")
            if self.random.random() < 0.4:
                self.pack()
            if self.random.random() < 0.15:
                self.engine.compact(self.random.choice(self.recorded.history.tables).name)
            if self.random.random() < 0.3:
                self.engine.maintain()
        self.pack()
        for number in numbers:
            self.refresh(f"batch{number}")
            if number in self.owned:
                self.refresh(f"own{number}")

    def pack(self) -> None:
        self.points.append(self.versions[-1])
        for number in range(len(self.recorded.history.queries)):
            self.refresh(f"packed{number}")

    # ------------------------------------------------------------ checks

    def check(self, number: int) -> None:
        text = self.recorded.history.queries[number]
        got = [row_of(r) for r in self.engine.execute(text).fetchall()]
        different = difference(got, self.recorded.results[-1][number])
        if different:
            raise AssertionError(f"Spark and DuckDB disagree on the query itself: {different}")
        first = self.versions[0]
        snapshot = [c for c in self.changes(f"batch{number}") if c.version <= max(first, 1)]
        different = difference([c.new or () for c in snapshot], self.recorded.results[1][number])
        if different or any(c.marker != "I" for c in snapshot):
            raise Broken(f"START FROM SNAPSHOT: {different}")
        each = self.changes(f"each{number}")
        batch = [c for c in self.changes(f"batch{number}") if c.version > max(first, 1)]
        commits = list(zip(self.versions[1:], range(2, self.recorded.newest + 1)))
        self.law(f"each{number}", each, commits)
        self.law(f"batch{number}", batch, commits)
        different = difference(map(_flat, each), map(_flat, batch))
        if different:
            raise Broken(f"a batch gives other deltas than single refreshes: {different}")
        self.law(
            f"packed{number}", self.changes(f"packed{number}"), [c for c in commits if c[0] in self.points]
        )
        if number in self.owned:
            self.law(f"own{number}", self.changes(f"own{number}"), commits)
        self.read(number, commits)

    def read(self, number: int, commits: Sequence[tuple[int, int]]) -> None:
        """What the queries' names read as, at the newest version and at another one."""
        index = dict(commits)
        names = [f"{kind}{number}" for kind in ("each", "batch", "packed")]
        for name in [*names, f"own{number}"] if number in self.owned else names:
            for version in {commits[-1][0], self.random.choice(commits)[0]}:
                past = [v for v in self.points if v <= version] if name.startswith("packed") else [version]
                wanted = self.recorded.results[index[past[-1]] if past else 1][number]
                got = self.engine.execute(f"SELECT * FROM {name} VERSION AS OF {version}").fetchall()
                if different := difference(map(row_of, got), wanted):
                    raise Broken(f"SELECT * FROM {name} VERSION AS OF {version}: {different}")

    def law(self, name: str, changes: Sequence[Change], commits: Sequence[tuple[int, int]]) -> None:
        number = int("".join(filter(str.isdigit, name)))
        described = self.engine.describe(name)
        names = [name.lower() for name, _ in self.recorded.columns[number]]
        places = None if described.key is None else [names.index(k.lower()) for k in described.key]
        results = [(version, self.recorded.results[index][number]) for version, index in commits]
        try:
            replay(self.recorded.results[1][number], places, changes, results)
        except Broken as problem:
            raise Broken(f"{name}, key {described.key}, {described.verdict}: {problem}") from None

    def changes(self, name: str) -> list[Change]:
        def converted(row: tuple[object, ...] | None) -> Row | None:
            return None if row is None else row_of(row)

        return [
            Change(
                d.commit_version, d.sequence, d.marker, converted(d.key), converted(d.new), converted(d.old)
            )
            for d in self.engine.deltas(name)
        ]


def _flat(change: Change) -> Row:
    return (change.version, change.marker, *(change.new or ()), "|", *(change.old or ()))


def check_history(
    recorded: Recorded,
    spark: SparkSession,
    directory: Path | str,
    tally: Tally,
    options: str = "",
    *,
    catalog: str | None = None,
    conf: Mapping[str, str] | None = None,
    paths: Mapping[str, int] | None = None,
) -> None:
    """Replays a history with one warehouse; raises Broken with a script that shows the problem.

    `options` are those of WITH (...) that every query gets. `paths` are limits, by default some that force other ways.
    """
    seed = recorded.history.seed
    if paths is None:
        ways = {"bulk": seed % 3 == 0, "large": seed % 2 == 0, "spark": seed % 3 == 1}
        paths = forced(**ways, arrow=seed % 8 < 4, slices=seed % 5 < 2)
    with cq_engine.connect(
        directory, catalog, spark, scheduler=False, conf={"maintenance": "manual", **(conf or {})},
        limits=Limits(**paths),
    ) as engine:  # fmt: skip
        replayed = _Replay(recorded, engine, tally, options)
        replayed.create()
        replayed.run()
        for number, query in enumerate(recorded.history.queries):
            try:
                replayed.check(number)
            except AssertionError as problem:
                shown = recorded.history.script(query)
                raise Broken(f"{problem}\n{options or 'no options'}; limits: {paths}\n{shown}") from problem


def check_in_fresh_warehouse(
    history: History,
    spark: SparkSession,
    tally: Tally,
    options: str = "",
    paths: Mapping[str, int] | None = None,
) -> None:
    """Likewise a history that has not been recorded, in a directory of its own, which goes with the call; nothing is checked
    where it comes to fewer than two commits."""
    recorded = record(history)
    if recorded.newest < 2:
        return
    with tempfile.TemporaryDirectory(prefix="cq_oracle_", ignore_cleanup_errors=True) as directory:
        check_history(recorded, spark, directory, tally, options, paths=paths)
