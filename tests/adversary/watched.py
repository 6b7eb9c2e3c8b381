"""A continuous query under watch: its deltas, added up, are what the oracles say, version by version."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from cq_engine import CQError
from tests.adversary.oracles import normal
from tests.adversary.recorder import Recorder
from tests.adversary.twists import named
from tests.adversary.world import World
from tests.oracle.law import Account, Broken, Change, Row, difference

__all__ = ["Judge", "Tally", "Watched"]

_TABLE = re.compile(r"\b(t\d) (s\d+)\b")
Sources = Mapping[int, "Watched"]
"""The queries that one reads, by the numbers that it calls them by."""


@dataclass
class Tally:
    """What has been done. `checks` are comparisons of an accumulated result with that from scratch, at one version."""

    checks: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)


@dataclass
class Judge:
    """Says what a query gives. `versions[i]` is the commit version of `world.images[i]`."""

    world: World
    recorder: Recorder
    tally: Tally
    versions: list[int] = field(default_factory=list)
    spark_only: set[str] = field(default_factory=set)
    """Queries of which DuckDB has another opinion than Spark."""

    def by_spark(self, text: str, at: int) -> list[Row]:
        """The engine's own SELECT at a version."""
        self.tally.counts["SELECT … VERSION AS OF"] += 1
        version = self.versions[at]
        dated = _TABLE.sub(rf"\1 VERSION AS OF {version} \2", text)
        return [normal(row) for row in self.recorder.quiet(dated)]

    def begin(self, text: str, at: int) -> list[Row]:
        """The result at a version by all oracles, which shall agree."""
        ours, theirs = self.by_spark(text, at), self.world.copies.result(text, at)
        if theirs is None:
            self.spark_only.add(text)
            self.tally.counts["queries that DuckDB cannot read"] += 1
        elif different := difference(ours, theirs):
            self.differ(text, at, different)
        return ours

    def differ(self, text: str, at: int, problem: str) -> None:
        self.spark_only.add(text)
        self.tally.differences.append(f"{self.world.seed} at {at}: {problem}\n  {text}")

    def check(self, account: Account, text: str, at: int, last: bool) -> None:
        """What is accumulated is the result at a version. Spark is asked where DuckDB cannot say, or disagrees."""
        known = None if text in self.spark_only else self.world.copies.result(text, at)
        where = f"at version {self.versions[at]} (image {at})"
        if known is not None:
            self.tally.checks += 1
            problem = difference(account.rows, known)
            if not problem:
                return
            account.check(self.by_spark(text, at), where)
            self.differ(text, at, problem)
        elif last:
            self.tally.checks += 1
            account.check(self.by_spark(text, at), where)


def whole(text: str, sources: Sources) -> str:
    """The query over tables alone."""
    return named(text, lambda number: f"({sources[number].whole})")


class Watched:
    """A query that was created when the tables were at `image`, and had got columns so often as `stage` says."""

    def __init__(
        self, judge: Judge, name: str, text: str, mode: str, image: int, rows: list[Row] | None,
        sources: Sources, stage: int,
    ) -> None:  # fmt: skip
        self.judge = judge
        self.name = name
        self.number = int(name[1:].split("_", maxsplit=1)[0])
        self.text = text
        self.mode = mode
        self.sources = sources
        self.stage = stage
        self.image = image
        described = judge.recorder.engine.describe(name)
        self.keyed = described.key is not None
        self.verdict = described.verdict
        columns = [c.lower() for c in described.columns]
        self.places = [columns.index(k.lower()) for k in described.key or ()]
        self.account = Account(rows or [], self.keyed)
        if self.keyed and rows is not None:
            self.account.start(self.places)
        newest = image == len(judge.versions) - 1
        self.seen = judge.recorder.engine.catalog.newest_version if newest else judge.versions[image]
        if rows is None:
            self._take_snapshot()

    def __str__(self) -> str:
        return f"{self.name} ({self.mode}, {self.verdict}, {'key' if self.keyed else 'bag'}): {self.text}"

    @property
    def whole(self) -> str:
        """What it gives, as a query over tables alone."""
        return whole(self.text, self.sources)

    @property
    def upstream(self) -> list[Watched]:
        """The queries that it reads, and those that they read, which come first."""
        found = [each for source in self.sources.values() for each in (*source.upstream, source)]
        return list(dict.fromkeys(found))

    @property
    def packed(self) -> bool:
        """Its result changes at refreshes only, its own or those of what it reads."""
        return self.mode == "COMPRESSED" or any(source.packed for source in self.sources.values())

    def _take_snapshot(self) -> None:
        version = self.seen
        changes = self.changes(None)
        if any(c.marker != "I" or c.version != version for c in changes):
            raise Broken(f"START FROM SNAPSHOT at {version} gives {changes[:3]}")
        self.account.apply(changes)
        self.judge.check(self.account, self.whole, self.image, True)

    def changes(self, after: int | None) -> list[Change]:
        def converted(row: tuple[object, ...] | None) -> Row | None:
            return None if row is None else normal(row)

        return [
            Change(
                d.commit_version, d.sequence, d.marker, converted(d.key), converted(d.new), converted(d.old)
            )
            for d in self.judge.recorder.engine.deltas(self.name, after)
        ]

    def refresh(self, newest: int) -> None:
        """Processes what is committed, up to image `newest`, and checks each version, or the last."""
        if newest == self.image:
            return
        self.judge.recorder.refresh(self.name)
        self.judge.tally.counts["refreshes"] += 1
        for source in self.upstream:  # which are refreshed first
            source.follow(newest)
        self.follow(newest)

    def follow(self, newest: int) -> None:
        """Checks the deltas up to image `newest`, which are there."""
        if newest == self.image:
            return
        changes = self.changes(self.seen)
        if self.mode == "COMPRESSED":
            if len({c.version for c in changes}) > 1:
                raise Broken(f"a compressed refresh gives several versions: {changes}")
            self.account.apply(changes)
            self.judge.check(self.account, self.whole, newest, True)
        else:
            self._follow_each(changes, newest)
        self.image, self.seen = newest, self.judge.recorder.engine.catalog.newest_version

    def _follow_each(self, changes: list[Change], newest: int) -> None:
        by_version: dict[int, list[Change]] = defaultdict(list)
        for change in changes:
            by_version[change.version].append(change)
        images = range(self.image + 1, newest + 1)
        versions = [self.judge.versions[at] for at in images]
        if unknown := set(by_version) - set(versions):
            raise Broken(f"law 4: deltas of versions {sorted(unknown)}, which changed nothing")
        for at, version in zip(images, versions):
            self.account.apply(by_version[version])
            if at == newest or not self.packed:
                self.judge.check(self.account, self.whole, at, at == newest)

    def redefined(self, text: str) -> None:
        """The difference of the results is one more delta; of this query's, or of one that it reads."""
        changes = self.changes(self.seen)
        if len({c.version for c in changes}) > 1:
            raise Broken(f"a redefinition gives several versions: {changes}")
        self.account.apply(changes)
        self.text = text
        self.judge.check(self.account, self.whole, self.image, True)
        self.seen = self.judge.recorder.engine.catalog.newest_version

    def check_reading(self) -> None:
        """The result from scratch by the engine's own SELECT, and what the query's name reads as."""
        self.account.check(self.judge.by_spark(self.whole, self.image), "by the engine's own SELECT")
        read = [normal(row) for row in self.judge.recorder.quiet(f"SELECT * FROM {self.name}")]
        self.account.check(read, f"by SELECT * FROM {self.name}")
        self.judge.tally.checks += 2

    def fails_in_spark(self, upto: int) -> bool:
        """Whether Spark's own SELECT fails, too, at one of the versions to be processed."""
        for at in range(self.image + 1, upto + 1):
            try:
                for each in (*self.upstream, self):
                    self.judge.by_spark(each.whole, at)
            except CQError:
                return True
        return False
