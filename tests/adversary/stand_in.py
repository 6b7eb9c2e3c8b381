"""What stands in for the engine where the adversary itself is tested: right by construction, or wrong on demand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cq_engine import AnalysisError, ConstraintError
from cq_engine.core.limits import DEFAULT_LIMITS
from tests.adversary.history import Addition, Transaction
from tests.adversary.twists import expanded
from tests.adversary.world import World
from tests.oracle.law import Row

__all__ = ["StandIn"]

_CREATE = re.compile(
    r"CREATE CONTINUOUS QUERY (\w+) COMPUTE (\w+) DELTA ON DEMAND (.*?) AS (SELECT|WITH)(.*)", re.DOTALL
)
_ALTER = re.compile(r"ALTER CONTINUOUS QUERY (\w+) AS (.*)", re.DOTALL)
_SOURCE = re.compile(r"\b(q\d+_\w+) (s\d+)\b")
_DATED = re.compile(r" VERSION AS OF (\d+)")


@dataclass
class _Query:
    text: str
    mode: str
    position: int
    rows: list[Row]
    stage: int
    sources: list[str]
    deltas: list[SimpleNamespace] = field(default_factory=list)


class StandIn:
    """Knows its world, and gives what DuckDB says of it. `loses`: every delta of so many is lost."""

    def __init__(self, world: World, loses: int = 0, allows: bool = False) -> None:
        self.world = world
        self.loses = loses
        self.allows = allows
        self.steps = (step for step in world.steps if not isinstance(step, Addition))
        self.images: dict[int, int] = {}
        """By version."""
        self.queries: dict[str, _Query] = {}
        self.catalog = SimpleNamespace(limits=DEFAULT_LIMITS, newest_version=0)
        self.given = 0
        self.stage = 0

    # ------------------------------------------------------------ commits

    def _commit(self, image: int) -> int:
        self.catalog.newest_version += 1
        self.images[self.catalog.newest_version] = image
        return int(self.catalog.newest_version)

    @property
    def image(self) -> int:
        return self.images.get(self.catalog.newest_version, -1)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        step = next(self.steps)
        assert isinstance(step, Transaction)
        handle = SimpleNamespace(execute=lambda _: None, insert=lambda *_: None, commit_version=None)
        yield handle
        if step.outcome == "refused" and not self.allows:
            raise ConstraintError("refused")
        if self.image < 0 or not step.after.same_as(self.world.images[self.image]):
            handle.commit_version = self._commit(self.image + 1)

    def apply_changes(self, *_: Any, **__: Any) -> list[int]:
        step = next(self.steps)
        assert not isinstance(step, Transaction)
        return [self._commit(self.image + 1) for _ in step.after]

    # ------------------------------------------------------------ queries

    def execute(self, sql: str) -> Any:
        if made := _CREATE.fullmatch(sql):
            self._create(made[1], made[2], made[3], made[4] + made[5])
        elif altered := _ALTER.fullmatch(sql):
            query = self.queries[altered[1]]
            query.text = expanded(altered[2], self.world.stages[query.stage])
            if query.text != expanded(altered[2], self.world.stages[self.stage]):
                raise AnalysisError("another kind of result")
            self._move(query, [self._commit(self.image)])
        elif "ADD COLUMN" in sql:
            self.stage += 1
        elif sql.startswith("DROP"):
            del self.queries[sql.rsplit(maxsplit=1)[-1]]
        elif sql.startswith(("SELECT", "WITH")):
            return SimpleNamespace(fetchall=lambda: self._select(sql))
        return SimpleNamespace(message="")

    def _select(self, sql: str) -> list[Row]:
        if dated := _DATED.search(sql):
            text, image = _DATED.sub("", sql), self.images[int(dated[1])]
            whole = re.fullmatch(r"SELECT \* FROM (t\d)", text)
            return self._table(whole[1], image) if whole else self._result(text, image)
        named = re.fullmatch(r"SELECT \* FROM (q\w+)", sql)
        return self.queries[named[1]].rows if named else self._result(sql, self.image)

    def _table(self, name: str, image: int) -> list[Row]:
        width = next(len(t.columns) for t in self.world.stages[self.stage] if t.name == name)
        return [row[:width] for row in self.world.images[image].rows[name]]

    def _result(self, text: str, image: int) -> list[Row]:
        return self.world.copies.result(self._whole(text), image) or []

    def _whole(self, text: str) -> str:
        return _SOURCE.sub(lambda found: f"({self._whole(self.queries[found[1]].text)}) {found[2]}", text)

    def _create(self, name: str, mode: str, start: str, text: str) -> None:
        past = re.search(r"VERSION (\d+)", start)
        version = int(past[1]) if past else self.catalog.newest_version
        sources = [found[1] for found in _SOURCE.finditer(text)]
        for source in sources:
            self.refresh(source)
        text = expanded(text, self.world.stages[self.stage])
        rows = self._result(text, self.images[version])
        query = _Query(text, mode, version, rows, self.stage, sources)
        self.queries[name] = query
        if "SNAPSHOT" in start:
            rows, query.rows = query.rows, []
            self._give(query, version, rows)

    def refresh(self, name: str) -> None:
        query = self.queries[name]
        for source in query.sources:
            self.refresh(source)
        versions = list(range(query.position + 1, self.catalog.newest_version + 1))
        self._move(query, versions if query.mode == "TRANSACTIONAL" else versions[-1:])

    def _move(self, query: _Query, versions: list[int]) -> None:
        for version in versions:
            self._give(query, version, self._result(query.text, self.images[version]))
        query.position = self.catalog.newest_version

    def _give(self, query: _Query, version: int, rows: list[Row]) -> None:
        before, after = Counter(query.rows), Counter(rows)
        gone, come = (before - after).elements(), (after - before).elements()
        for marker, new, old in [("D", None, r) for r in gone] + [("I", r, None) for r in come]:
            self.given += 1
            if self.loses and self.given % self.loses == 0:
                continue
            delta = SimpleNamespace(
                commit_version=version, sequence=self.given, marker=marker, key=None, new=new, old=old
            )
            query.deltas.append(delta)
        query.rows = rows

    def deltas(self, name: str, after: int | None = None) -> list[SimpleNamespace]:
        return [d for d in self.queries[name].deltas if after is None or d.commit_version > after]

    def describe(self, name: str) -> Any:
        assert name in self.queries
        return SimpleNamespace(key=None, columns=[], verdict="INCREMENTAL")

    def maintain(self) -> None:
        """Has nothing to do."""

    def close(self) -> None:
        """Stays as it is: it is opened again."""
