"""Callbacks: batches, chunks, retries, resuming; and how a DESTINATION clause finds its destination."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.errors import DestinationError
from cq_engine.core.limits import Limits
from cq_engine.destinations import (
    CallbackDestination,
    Callbacks,
    Retry,
    TableDestination,
    kind_of,
    resolve,
)
from cq_engine.destinations.batches import in_batches
from cq_engine.grammar.clauses import DestinationRef
from tests.limits import limit


class Recorder:
    """A callback that fails when told to."""

    def __init__(self, failures: int = 0) -> None:
        self.batches: list[Any] = []
        self.failures = failures
        self.tried = 0

    def __call__(self, batch: Any) -> None:
        self.tried += 1
        if self.failures:
            self.failures -= 1
            raise ValueError("not now")
        self.batches.append(batch)

    def ids(self) -> list[list[int]]:
        return [[(d.new or d.old)[0] for d in batch] for batch in self.batches]


def test_one_batch_for_each_commit(world: Any, make: Any) -> None:
    row = make["row"]
    seen = Recorder()
    world.refresh(("I", row(1)), ("I", row(2)))
    world.refresh()
    upto = world.refresh(("D", row(1)))
    CallbackDestination(world.services, world.query, "Alerts", seen).deliver(upto)
    assert seen.ids() == [[1, 2], [1]]
    assert [batch.last for batch in seen.batches] == [True, True]
    assert world.catalog.cursor("totals", "callback:alerts").version == upto


def test_large_commits_come_in_chunks(world: Any, make: Any) -> None:
    row = make["row"]
    seen = Recorder()
    world.refresh(*(("I", row(n)) for n in range(5)))
    upto = world.refresh(*(("U", row(n), row(n, "x")) for n in range(4)))
    limit(world, batch_deltas=2)
    CallbackDestination(world.services, world.query, "a", seen).deliver(upto)
    assert seen.ids() == [[0, 1], [2, 3], [4], [0, 1], [2, 3]]
    assert [batch.last for batch in seen.batches] == [False, False, True, False, True]
    assert [batch.idempotency_key[2] for batch in seen.batches] == [2, 4, 5, 2, 4]


def test_no_cursor_stands_on_sequence_zero_within_a_commit(world: Any, make: Any) -> None:
    seen = Recorder()
    upto = world.refresh(*(("I", make["row"](n)) for n in range(4)), first=0)
    limit(world, batch_deltas=1)
    CallbackDestination(world.services, world.query, "a", seen).deliver(upto)
    assert seen.ids() == [[0, 1], [2], [3]]


def test_retries_with_growing_pauses(world: Any, make: Any) -> None:
    pauses: list[float] = []
    seen = Recorder(failures=3)
    upto = world.refresh(("I", make["row"](1)))
    retry = Retry(attempts=4, base=1, cap=3)
    CallbackDestination(world.services, world.query, "a", seen, retry=retry, sleep=pauses.append).deliver(
        upto
    )
    assert pauses == [1, 2, 3]
    assert seen.ids() == [[1]]
    cursor = world.catalog.cursor("totals", "callback:a")
    assert (cursor.version, cursor.failures, cursor.error) == (upto, 0, "")


def test_gives_up_and_comes_back(world: Any, make: Any) -> None:
    row = make["row"]
    seen = Recorder()
    limit(world, batch_deltas=2)
    destination = CallbackDestination(
        world.services, world.query, "a", seen, retry=Retry(attempts=2), sleep=lambda _: None
    )
    first = world.refresh(*(("I", row(n)) for n in range(3)))
    upto = world.refresh(("D", row(1)))
    original = seen.__call__

    def third_time(batch: Any) -> None:
        if len(seen.batches) == 1:
            seen.tried += 1
            raise ValueError("not now")
        original(batch)

    destination.function = third_time
    with pytest.raises(DestinationError, match=f"callback a failed on commit {first} .*ValueError: not now"):
        destination.deliver(upto)
    cursor = destination.cursor
    assert (cursor.version, cursor.sequence, cursor.failures) == (first, 2, 2)
    assert "not now" in cursor.error
    destination.function = seen
    destination.deliver(upto)
    assert seen.ids() == [[0, 1], [2], [1]]
    assert destination.cursor.failures == 0


def test_an_interrupt_is_no_failure(world: Any, make: Any) -> None:
    def interrupted(batch: Any) -> None:
        raise KeyboardInterrupt

    upto = world.refresh(("I", make["row"](1)))
    destination = CallbackDestination(world.services, world.query, "a", interrupted)
    with pytest.raises(KeyboardInterrupt):
        destination.deliver(upto)
    assert destination.cursor.failures == 0


def test_a_callback_may_commit(world: Any, make: Any) -> None:
    def commits(batch: Any) -> None:
        world.refresh(("I", make["row"](99)))

    upto = world.refresh(("I", make["row"](1)))
    CallbackDestination(world.services, world.query, "a", commits).deliver(upto)
    assert world.catalog.newest_version == upto + 1


@pytest.mark.parametrize("sizes", [[1] * 7, [7], [3, 4], [2, 2, 3]])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_batches_do_not_depend_on_blocks(sizes: list[int], chunk: int) -> None:
    versions, sequences = [1, 1, 1, 1, 2, 3, 3], [1, 2, 3, 4, 1, 1, 2]
    whole = pa.table({"version": versions, "sequence": sequences})
    blocks = []
    start = 0
    for size in sizes:
        blocks.append(whole.slice(start, size))
        start += size
    found = [(b.column("version")[0].as_py(), b.num_rows, last) for b, last in in_batches(blocks, chunk)]
    expected = []
    for version, count in ((1, 4), (2, 1), (3, 2)):
        full, rest = divmod(count, chunk)
        parts = [chunk] * full + ([rest] if rest else [])
        expected += [(version, part, n == len(parts) - 1) for n, part in enumerate(parts)]
    assert found == expected


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="at least one delta"):
        Limits(batch_deltas=0)
    with pytest.raises(ValueError, match="at least once"):
        Retry(attempts=0)


# ---------------------------------------------------------------- registry


def test_a_bare_name(world: Any, make: Any) -> None:
    world.define(make["table"]())
    callbacks = Callbacks()
    assert isinstance(
        resolve(world.services, world.query, DestinationRef("SINK"), callbacks), TableDestination
    )
    callbacks.register("Sink", print)
    found = resolve(world.services, world.query, DestinationRef("SINK"), callbacks)
    assert isinstance(found, CallbackDestination)
    assert found.function is print
    declared = {"sink": DeclaredDestination("sink", "TABLE")}
    again = resolve(world.services, world.query, DestinationRef("SINK"), callbacks, declared=declared)
    assert isinstance(again, TableDestination)
    assert callbacks.names() == ("Sink",)


def test_a_named_kind(world: Any, make: Any) -> None:
    world.define(make["table"]())
    callbacks = Callbacks()
    callbacks.register("sink", print)
    table = resolve(world.services, world.query, DestinationRef("sink", "TABLE"), callbacks)
    callback = resolve(world.services, world.query, DestinationRef("sink", "CALLBACK"), callbacks)
    assert (table.kind, callback.kind) == ("TABLE", "CALLBACK")
    assert table.cursor.destination != callback.cursor.destination


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        (DestinationRef("q", "KAFKA"), "there is no kafka q", "declare it first"),
        (DestinationRef("q", "TRIGGER"), "there is no trigger q", "CREATE DESTINATION q TYPE trigger"),
        (DestinationRef("q", "WEBHOOK"), "there is no webhook q", "declare it first"),
        (DestinationRef("snik"), "snik, which is no table and no registered callback", "did you mean sink?"),
        (DestinationRef("zzz", "TABLE"), "zzz, which is no table", "create table zzz"),
        (DestinationRef("alert", "CALLBACK"), "callback alert .* is not registered", "did you mean Alerts?"),
    ],
)
def test_what_cannot_be_resolved(
    world: Any, make: Any, reference: DestinationRef, message: str, hint: str
) -> None:
    world.define(make["table"]())
    callbacks = Callbacks()
    callbacks.register("Alerts", print)
    with pytest.raises(DestinationError, match=message) as raised:
        resolve(world.services, world.query, reference, callbacks)
    assert hint in raised.value.hint


def test_kind_of(world: Any) -> None:
    callbacks = Callbacks()
    assert kind_of(DestinationRef("a"), callbacks) == DestinationRef("a", "TABLE")
    callbacks.register("A", print)
    assert kind_of(DestinationRef("a"), callbacks) == DestinationRef("a", "CALLBACK")
