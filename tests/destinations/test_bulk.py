"""Long intervals go through Spark and give what short ones give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.catalog.model import QueryStatus
from cq_engine.core.errors import DestinationError
from cq_engine.destinations import TableDestination, read_deltas
from cq_engine.destinations.layout import output_frame, output_rows
from cq_engine.destinations.log import commit_times, read_frame, read_pairs
from cq_engine.destinations.queues.consumer import Consumer
from cq_engine.destinations.queues.logs import Logs
from cq_engine.destinations.queues.message import Message
from cq_engine.grammar.clauses import DestinationRef
from cq_engine.storage.reader import Reader
from tests.limits import limit


@pytest.fixture
def bulk(world: Any, make: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A log of several versions that counts as long."""
    world.spark = lambda: spark
    world.define(make["table"]())
    row = make["row"]
    for _ in range(3):
        world.refresh(
            ("I", row(1, "o'x")),
            ("U", row(2), row(2, "b", "2.25")),
            ("D", row(3)),
            *(("I", row(n)) for n in range(9, 14)),
        )
    world.refresh(("U", row(1), row(1, "z")))
    yield world
    world.spark = world._no_spark


@pytest.fixture
def long(bulk: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Reader, "changes_arrow", lambda *_: None)
    limit(bulk, log_block_rows=4)
    return bulk


def counted(rows: Any) -> Counter[str]:
    return Counter(repr(sorted(line.items())) for line in rows.to_pylist())


@pytest.mark.parametrize("markers", [("I", "D", "U"), ("U",), ("D", "I")])
@pytest.mark.parametrize("with_old", [True, False])
def test_both_layouts_give_the_same_rows(bulk: Any, make: Any, markers: Any, with_old: bool) -> None:
    outputs = tuple(o for o in bulk.query.outputs if with_old or o.kind != "old")
    query = replace(bulk.query, outputs=outputs)
    start = make["Cursor"]("q", "d", 1)
    times = commit_times(bulk.services, 1, 4)
    (wide,) = read_pairs(bulk.services, query, start, 4, markers)
    small = output_rows(query, wide, times)
    changes = read_frame(bulk.services, query, start, 4, markers)
    large = output_frame(bulk.services, query, changes, times).toArrow().cast(small.schema)
    assert counted(large) == counted(small)
    assert large.column_names == small.column_names


def test_long_logs_are_read_in_order(bulk: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(read_deltas(bulk.services, bulk.query, 0, 4))
    monkeypatch.setattr(Reader, "changes_arrow", lambda *_: None)
    for size in (4, 7, 1000):
        limit(bulk, log_block_rows=size)
        assert list(read_deltas(bulk.services, bulk.query, 0, 4)) == expected
    start = make["Cursor"]("q", "d", 2, 3)
    blocks = list(read_pairs(bulk.services, bulk.query, start, 3))
    places = [(v, s) for b in blocks for v, s in zip(b["version"].to_pylist(), b["sequence"].to_pylist())]
    assert places == [
        (d.commit_version, d.sequence) for d in expected if (2, 3) < (d.commit_version, d.sequence) < (4, 0)
    ]


def test_executors_write_what_is_large(long: Any) -> None:
    destination = TableDestination(long.services, long.query, long.table())
    delivered = destination.deliver(4)
    assert delivered is not None
    assert (delivered.deltas, delivered.version) == (25, 5)
    assert destination.deliver(4) is None
    rows = long.services.reader.image(long.table().storage, 5).toArrow()
    assert rows.num_rows == 25
    assert len(set(rows.column(ROW_ID).to_pylist())) == 25
    assert Counter(rows.column("m").to_pylist()) == {"I": 18, "U": 4, "D": 3}


def test_a_primary_key_in_bulk(long: Any, make: Any, warehouse: Any) -> None:
    long.define(make["table"](primary_key=("id", "v")))
    destination = TableDestination(long.services, long.query, long.table())
    delivered = destination.deliver(2)
    assert delivered is not None
    long.start_at(destination, 0)
    with pytest.raises(DestinationError, match="violate the primary key of table sink: id = "):
        destination.deliver(1)
    assert destination.cursor.version == 0
    long.define(make["table"](primary_key=("m",)))
    destination = TableDestination(long.services, long.query, long.table())
    with pytest.raises(DestinationError, match="violate the primary key of table sink: m = "):
        destination.deliver(4)


def test_a_null_in_bulk(long: Any, make: Any) -> None:
    long.define(make["table"](primary_key=("was", "id", "v")))
    destination = TableDestination(long.services, long.query, long.table())
    with pytest.raises(DestinationError, match="NULL for column was"):
        destination.deliver(4)


def test_a_consumer_of_a_queue_takes_a_long_log_in_order(long: Any) -> None:
    wanted = [
        (d.commit_version, d.sequence, d.marker, d.old, d.new)
        for d in read_deltas(long.services, long.query, 0, long.catalog.newest_version)
    ]
    limit(long, queue_rows=5)
    query = replace(long.query, destinations=(DestinationRef("q", "QUEUE"),))
    state = replace(long.catalog.state, queries={query.name.lower(): query})
    with long.catalog.write() as unit:
        unit.set_state(state)
        unit.set_status(query.name, QueryStatus(long.catalog.newest_version))
    logs = Logs(long.services)
    consumer = Consumer(long.services, logs, "q", committed=lambda *_: None)
    found: list[Message] = []
    while some := consumer.take(4):
        if not found:
            assert some[0].reject(requeue=True)
            (again,) = consumer.take(1)
            assert (again.id, again.attempt) == (some[0].id, 2)
            some[0] = again
        found += some
        assert some[-1].ack(upto=True)
    logs.close()
    names = [c.name for c in query.result.columns[: query.width]]

    def row(values: tuple[Any, ...] | None) -> dict[str, Any] | None:
        return None if values is None else dict(zip(names, values))

    assert [(m.commit_version, m.given.sequence, m.marker, m.old, m.new) for m in found] == [
        (version, sequence, marker, row(old), row(new)) for version, sequence, marker, old, new in wanted
    ]
