"""A catalog with queries that deliver to one queue, whose logs tests write themselves, and a model of its consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import (
    CatalogState,
    ContinuousQuery,
    Cursor,
    DeclaredDestination,
    QueryStatus,
    VersionedTable,
)
from cq_engine.catalog.store import Catalog
from cq_engine.context.services import Services
from cq_engine.core.clock import ManualClock
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema
from cq_engine.destinations import with_dead_letters
from cq_engine.destinations.contract.world import _KINDS, _START
from cq_engine.destinations.queues.consumer import Consumer
from cq_engine.destinations.queues.logs import Logs
from cq_engine.destinations.queues.message import Message
from cq_engine.grammar.clauses import DestinationRef
from cq_engine.storage.reader import Reader
from cq_engine.storage.rows import change_columns

SECOND = 1_000_000
VISIBILITY = 30 * SECOND
ATTEMPTS = 3
COLUMNS = (Column("k", "int"), Column("v", "string"))


def query(name: str, number: int, **changed: Any) -> ContinuousQuery:
    log = VersionedTable(number + 50, "delta", name, COLUMNS, ("k",))
    made = ContinuousQuery(
        name, number, "", "", log, ("k",), "TRANSACTIONAL", ("I", "D", "U"), width=2,
        destinations=(DestinationRef("q", "QUEUE"),),
    )  # fmt: skip
    return replace(made, **changed)


QUERIES = (query("Keyed", 10), query("Bag", 11, key=None), query("Few", 12, markers=("I",)))
"""With a key, without one, and one that delivers inserted rows only."""


class Queues:
    """The catalog, and what writes to it; `clock` is the time by which messages become due, in microseconds."""

    def __init__(
        self,
        warehouse: Path,
        url: str | None = None,
        queries: Iterable[ContinuousQuery] = QUERIES,
        **declared: str,
    ) -> None:
        self.time = ManualClock(_START)
        self.catalog = Catalog.open(str(warehouse), url=url, clock=self.time)
        self.services = services(self.catalog)
        self.logs = Logs(self.services)
        self.clock = 1_000 * SECOND
        self.catalog.database_time = lambda _: self.clock  # type: ignore[method-assign]
        self.queries = {each.name: each for each in queries}
        self.commits: list[int] = []
        options = {"max_attempts": str(ATTEMPTS), **declared}
        state = CatalogState(
            {}, {name.lower(): each for name, each in self.queries.items()}, 100,
            destinations={"q": DeclaredDestination("q", "QUEUE", tuple(options.items()))},
        )  # fmt: skip
        with self.catalog.write() as unit:
            unit.set_state(with_dead_letters(state, "q", 0))
            for name in self.queries:
                unit.set_status(name, QueryStatus(0))
                unit.set_cursor(Cursor(name, "queue:q", 0))

    def commit(self, deltas: dict[str, list[tuple[str, int, str]]], *, refreshed: bool = True) -> int:
        """A commit with deltas (marker, k, v) of each query, that all of the queries have processed, if so said."""
        self.time.set(self.time.now() + timedelta(minutes=1))
        with self.catalog.lock, self.catalog.write() as unit:
            version = self.catalog.newest_version + 1
            unit.add_commit(version, self.time.now())
            for name, some in deltas.items():
                if some:
                    log = self.queries[name].result
                    unit.add_changes(log, version, version, self._rows(log, version, some))
            for name in self.queries if refreshed else ():
                unit.set_status(name, QueryStatus(version))
        return version

    def _rows(self, log: VersionedTable, version: int, deltas: list[tuple[str, int, str]]) -> pa.Table:
        schema = arrow_schema(change_columns(log))
        lines = [
            (k, f"{v}{n}", kind, version, number, self.time.now())
            for number, (marker, k, v) in enumerate(deltas, 1)
            for n, kind in enumerate(_KINDS[marker])
        ]
        arrays = [pa.array([line[n] for line in lines], each.type) for n, each in enumerate(schema)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def consumer(self, group: str = "default", label: str = "") -> Consumer:
        return Consumer(self.services, self.logs, "q", group, committed=self._committed, label=label)

    def _committed(self, version: int, changed: dict[str, frozenset[str]]) -> None:
        assert changed == {"q_dead": frozenset({"INSERT"})}
        self.commits.append(version)

    def dead(self) -> Counter[tuple[str, int, int]]:
        """(query, version, sequence) of the dead letters."""
        table = self.catalog.state.tables["q_dead"].storage
        image = self.services.reader.small_image(table, self.catalog.newest_version)
        assert image is not None
        rows = image.select(["query", "commit_version", "sequence"]).to_pylist()
        return Counter((row["query"], row["commit_version"], row["sequence"]) for row in rows)

    def forget(self) -> None:
        """As if another process went on."""
        self.logs = Logs(self.services)


def services(catalog: Catalog) -> Services:
    def no_spark() -> Any:
        raise AssertionError("no Spark is needed here")

    return Services(catalog, Reader(catalog, no_spark), no_spark, ManualClock(_START))


# ---------------------------------------------------------------- the model

Name = tuple[int, str, int]
"""(version, query, sequence): the order of messages."""


@dataclass
class Entry:
    """What a group knows of a message: who has it until when, by which receipt, and for which time."""

    key: tuple[str, Any]
    attempt: int = 0
    holder: str = ""
    due: int = 0
    receipt: int = 0
    over: str = ""

    def held(self, now: int) -> bool:
        return not self.over and self.holder != "" and self.due > now


@dataclass
class Model:
    """One group. `given` checks every message against what it promises."""

    entries: dict[Name, Entry] = field(default_factory=dict)

    def add(self, name: Name, key: tuple[str, Any]) -> None:
        self.entries[name] = Entry(key)

    def of_key(self, name: Name, *, behind: bool) -> list[Entry]:
        key = self.entries[name].key
        return [
            e for n, e in sorted(self.entries.items()) if e.key == key and (n > name if behind else n < name)
        ]

    def exhaust(self, now: int) -> None:
        """What has been given too often goes to the dead letters before anything is given."""
        for each in self.entries.values():
            if not each.over and each.attempt >= ATTEMPTS and each.due <= now:
                each.over = "dead"

    def may_have(self, consumer: str, now: int) -> list[Name]:
        """What a consumer may be given, each by itself: nothing before it is somebody else's, or waits."""
        found = []
        for name, each in sorted(self.entries.items()):
            same = [*self.of_key(name, behind=False), *self.of_key(name, behind=True)]
            elsewhere = any(other.held(now) and other.holder != consumer for other in same)
            before = [other for other in self.of_key(name, behind=False) if not other.over]
            if not each.over and not each.held(now) and not elsewhere and all(o.held(now) for o in before):
                found.append(name)
        return found

    def given(self, message: Message, consumer: str, now: int) -> None:
        name = name_of(message)
        each = self.entries[name]
        assert not each.over
        assert message.attempt == each.attempt + 1 <= ATTEMPTS
        assert not each.held(now)
        for other in self.of_key(name, behind=False):
            assert other.over or (other.held(now) and other.holder == consumer)
        for other in self.of_key(name, behind=True):
            if other.held(now):
                assert other.holder == consumer
                self.take_back(other, now)
        each.attempt, each.holder = message.attempt, consumer
        each.due, each.receipt = now + VISIBILITY, message.given.receipt

    def take_back(self, each: Entry, now: int) -> None:
        each.attempt, each.holder, each.receipt, each.due = each.attempt - 1, "", 0, now


def name_of(message: Message) -> Name:
    return message.commit_version, message.query.lower(), message.given.sequence


def key_of(each: ContinuousQuery, k: int, v: str) -> tuple[str, Any]:
    return each.name, k if each.key is not None else (k, v)
