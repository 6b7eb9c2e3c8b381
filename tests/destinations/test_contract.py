"""The contract of `Destination`, over every destination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from cq_engine.catalog.store import Catalog
from cq_engine.core.errors import DestinationError


def brief(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(line["v"], line["m"], line["id"]) for line in lines]


def test_rows_have_the_layout_of_the_select_list(subject: Any, make: Any) -> None:
    row = make["row"]
    version = subject.world.refresh(
        ("I", row(1)), ("U", row(2, "a", "1.00"), row(2, "b", "2.00")), ("D", row(3, "gone", "9.00"))
    )
    committed = subject.world.catalog.timestamp(version)
    subject.deliver()
    head = ("id", "name", "amount", "was", "doubled", "m")
    assert [tuple(line[n] for n in head) for line in subject.received()] == [
        (1, "n1", Decimal("1.50"), None, None, "I"),
        (2, "b", Decimal("2.00"), Decimal("1.00"), 4, "U"),
        (3, "gone", Decimal("9.00"), Decimal("9.00"), 6, "D"),
    ]
    for line in subject.received():
        assert line["committed"] == committed
        assert line["refreshed"] == committed + timedelta(seconds=1)
        assert line["v"] == version


def test_order_over_several_deliveries(subject: Any, make: Any) -> None:
    row = make["row"]
    first = subject.world.refresh(("I", row(1)), ("I", row(2)), ("I", row(3)))
    second = subject.world.refresh(("D", row(2)))
    subject.deliver()
    third = subject.world.refresh(("I", row(9)), ("I", row(4)))
    subject.deliver()
    assert brief(subject.received()) == [
        (first, "I", 1),
        (first, "I", 2),
        (first, "I", 3),
        (second, "D", 2),
        (third, "I", 9),
        (third, "I", 4),
    ]


def test_only_selected_markers(subject: Any, make: Any) -> None:
    row = make["row"]
    world = subject.world
    world.define(world.table(), query=replace(world.query, markers=("I", "D")))
    a = world.refresh(("I", row(1)), ("U", row(2), row(2, "new")), ("D", row(3)))
    world.refresh(("U", row(1), row(1, "other")))
    subject.deliver()
    assert brief(subject.received()) == [(a, "I", 1), (a, "D", 3)]
    assert subject.destination.cursor.version >= a + 1


def test_where_nothing_is_selected_only_the_cursor_moves(subject: Any, make: Any) -> None:
    world = subject.world
    world.define(world.table(), query=replace(world.query, markers=("D",)))
    upto = world.refresh(("I", make["row"](1)))
    delivered = subject.deliver()
    assert delivered is not None
    assert (delivered.deltas, delivered.version, dict(delivered.changed)) == (0, None, {})
    assert world.catalog.newest_version == upto
    assert (subject.destination.cursor.version, subject.destination.cursor.sequence) == (upto, 0)


def test_nothing_comes_twice(subject: Any, make: Any) -> None:
    subject.world.refresh(("I", make["row"](1)))
    upto = subject.world.catalog.newest_version
    assert subject.deliver(upto) is not None
    assert subject.deliver(upto) is None
    subject.deliver()
    assert len(subject.received()) == 1


def test_delivers_only_up_to_the_version_it_is_told(subject: Any, make: Any) -> None:
    row = make["row"]
    first = subject.world.refresh(("I", row(1)))
    second = subject.world.refresh(("I", row(2)))
    subject.deliver(first)
    assert brief(subject.received()) == [(first, "I", 1)]
    subject.deliver(second)
    assert brief(subject.received()) == [(first, "I", 1), (second, "I", 2)]


def test_starts_at_its_cursor(subject: Any, make: Any) -> None:
    row = make["row"]
    first = subject.world.refresh(("I", row(1)))
    second = subject.world.refresh(("I", row(2)))
    subject.world.start_at(subject.destination, first)
    subject.deliver()
    assert brief(subject.received()) == [(second, "I", 2)]


def test_starts_in_the_middle_of_a_version(subject: Any, make: Any) -> None:
    if subject.destination.remembers:
        pytest.skip("its transactions end between versions")
    row = make["row"]
    version = subject.world.refresh(("I", row(1)), ("I", row(2)), ("U", row(3), row(3, "x")))
    subject.world.start_at(subject.destination, version, 1)
    subject.deliver()
    assert brief(subject.received()) == [(version, "I", 2), (version, "U", 3)]


def test_a_failure_is_counted_and_loses_nothing(subject: Any, make: Any) -> None:
    row = make["row"]
    first = subject.world.refresh(("I", row(1)))
    subject.break_down()
    for failures in (1, 2):
        with pytest.raises(DestinationError) as raised:
            subject.deliver()
        cursor = subject.destination.cursor
        assert (cursor.version, cursor.failures, cursor.error) == (0, failures, raised.value.message)
    subject.repair()
    second = subject.world.refresh(("D", row(1)))
    subject.deliver()
    assert brief(subject.received()) == [(first, "I", 1), (second, "D", 1)]
    assert (subject.destination.cursor.failures, subject.destination.cursor.error) == (0, "")


@pytest.mark.parametrize("point", ["deliver.begin", "deliver.before_cursor", "deliver.after_cursor"])
@pytest.mark.parametrize("hit", [1, 2, 3])
def test_a_crash_loses_nothing(
    subject: Any,
    make: Any,
    crash_at: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    hit: int,
) -> None:
    row = make["row"]
    first = subject.world.refresh(*(("I", row(n)) for n in range(5)))
    second = subject.world.refresh(("U", row(1), row(1, "x")))
    expected = [(first, "I", n) for n in range(5)] + [(second, "U", 1)]
    with monkeypatch.context() as patch:
        crash_at(point, hit)
        if subject.destination.exactly_once and hit > 1:
            subject.deliver(second)  # one delivery is one transaction, and passes each point once
        else:
            with pytest.raises(make["Crash"]):
                subject.deliver(second)
        patch.undo()
    monkeypatch.undo()
    subject.deliver(second)
    received = brief(subject.received())
    if subject.destination.exactly_once:
        assert received == expected
        return
    calls = [brief(call) for call in subject.calls]
    once = [call for n, call in enumerate(calls) if n == 0 or calls[n - 1] != call]
    assert [line for call in once for line in call] == expected
    repeated = [n for n in range(1, len(calls)) if calls[n - 1] == calls[n]]
    assert len(repeated) == (1 if point == "deliver.before_cursor" else 0)
    for n in repeated:
        assert subject.keys[n - 1] == subject.keys[n]


def test_survives_a_restart(subject: Any, make: Any) -> None:
    world = subject.world
    world.refresh(("I", make["row"](1)))
    subject.deliver()
    cursor = subject.destination.cursor
    world.catalog.close()
    again = Catalog.open(world.catalog.warehouse, clock=world.clock)
    try:
        found = again.cursor("TOTALS", cursor.destination)
        assert found is not None
        assert replace(found, query=cursor.query) == cursor
    finally:
        again.close()
