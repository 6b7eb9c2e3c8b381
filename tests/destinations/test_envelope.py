"""Deltas, batches, and pairing the rows of the log."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import cq_engine.destinations
from cq_engine.core.errors import StorageError
from cq_engine.destinations import DeltaBatch, read_deltas
from cq_engine.destinations.layout import output_rows
from cq_engine.destinations.log import commit_times, needed_from, read_pairs
from cq_engine.destinations.pairs import pair, select_markers


def test_deltas_of_the_log(world: Any, make: Any) -> None:
    row = make["row"]
    first = world.refresh(("I", row(1)), ("D", row(2)))
    second = world.refresh(("U", row(1), row(1, "b", "7.00")))
    insert, delete, update = read_deltas(world.services, world.query, 0, second)
    assert (insert.marker, insert.key, insert.new, insert.old) == (
        "I",
        (1,),
        (1, "n1", Decimal("1.50")),
        None,
    )
    assert (delete.marker, delete.key, delete.new, delete.old) == (
        "D",
        (2,),
        None,
        (2, "n2", Decimal("1.50")),
    )
    assert (update.new, update.old) == ((1, "b", Decimal("7.00")), (1, "n1", Decimal("1.50")))
    assert [(d.commit_version, d.sequence) for d in (insert, delete, update)] == [
        (first, 1),
        (first, 2),
        (second, 1),
    ]
    assert update.commit_time == world.catalog.timestamp(second)
    assert update.commit_time.tzinfo is not None
    assert update.commit_time.astimezone(timezone.utc) == world.clock.now()


def test_the_interval_is_half_open(world: Any, make: Any) -> None:
    versions = [world.refresh(("I", make["row"](n))) for n in range(4)]
    found = read_deltas(world.services, world.query, versions[0], versions[2])
    assert [d.commit_version for d in found] == versions[1:3]
    assert list(read_deltas(world.services, world.query, versions[3], versions[3])) == []


def test_markers_select_deltas_and_all_markers_does_not(world: Any, make: Any) -> None:
    row = make["row"]
    world.refresh(("I", row(1)), ("U", row(2), row(2, "x")), ("D", row(3)))
    query = replace(world.query, markers=("U",))
    assert [d.marker for d in read_deltas(world.services, query, 0, 1)] == ["U"]
    everything = read_deltas(world.services, query, 0, 1, all_markers=True)
    assert [d.marker for d in everything] == ["I", "U", "D"]


@pytest.mark.parametrize(("key", "expected"), [(None, None), ((), ()), (("NAME", "id"), ("n1", 1))])
def test_keys(world: Any, make: Any, key: Any, expected: Any) -> None:
    world.refresh(("I", make["row"](1)), ("D", make["row"](1)))
    query = replace(world.query, key=key)
    assert [d.key for d in read_deltas(world.services, query, 0, 1)] == [expected, expected]


def test_pairing_does_not_depend_on_the_order_of_rows(world: Any, make: Any) -> None:
    row = make["row"]
    deltas = [("U", row(n), row(n, "new")) if n % 3 else ("D", row(n)) for n in range(50)]
    changes = pa.concat_tables([world.change_rows(v, deltas) for v in (1, 2)])
    places = list(range(changes.num_rows))
    random.Random(7).shuffle(places)
    columns = world.query.result.columns
    assert pair(changes.take(places), columns).equals(pair(changes, columns))
    assert pair(changes, columns).num_rows == 100


@pytest.mark.parametrize("lost", [0, 1])
def test_half_an_update_is_an_error(world: Any, make: Any, lost: int) -> None:
    row = make["row"]
    changes = world.change_rows(3, [("U", row(1), row(1, "x")), ("I", row(2))])
    kept = changes.take([n for n in range(3) if n != lost])
    with pytest.raises(StorageError, match="delta 1 of version 3 lacks"):
        pair(kept, world.query.result.columns)


def test_no_rows_give_no_deltas(world: Any) -> None:
    columns = world.query.result.columns
    wide = pair(world.change_rows(1, []), columns)
    assert wide.num_rows == 0
    assert select_markers(wide, ("I",)).num_rows == 0
    assert output_rows(world.query, wide, {}).column_names == [o.name for o in world.query.outputs]


def test_nested_and_null_values(world: Any, make: Any) -> None:
    from cq_engine.catalog.model import Column, OutputColumn, VersionedTable

    columns = (Column("a", "array<int>"), Column("s", "struct<x:int>"), Column("d", "double"))
    outputs = tuple(OutputColumn(c.name, c.type, "result", n) for n, c in enumerate(columns))
    query = replace(
        make["query"],
        result=VersionedTable(1, "delta", "Totals", columns, ("_sequence",)),
        key=None,
        outputs=(*outputs, OutputColumn("o", "array<int>", "old", 0)),
    )
    world.define(query=query)
    world.refresh(
        ("I", ([1, None], {"x": 1}, None)), ("D", ([], None, -0.0)), ("D", (None, {"x": None}, 2.0))
    )
    deltas = list(read_deltas(world.services, query, 0, 1))
    assert [d.new or d.old for d in deltas] == [
        ([1, None], {"x": 1}, None),
        ([], None, 0.0),
        (None, {"x": None}, 2.0),
    ]
    (wide,) = read_pairs(world.services, query, make["Cursor"]("q", "d", 0), 1)
    rows = output_rows(query, wide, {})
    assert rows.column("s").to_pylist() == [{"x": 1}, None, {"x": None}]
    assert rows.column("o").to_pylist() == [None, [], None]


def test_a_batch(world: Any, make: Any) -> None:
    row = make["row"]
    version = world.refresh(("I", row(1)), ("D", row(2)), first=5)
    (wide,) = read_pairs(world.services, world.query, make["Cursor"]("q", "d", 0), version)
    batch = DeltaBatch.of(world.query, wide, world.catalog.timestamp(version), last=True)
    assert (batch.query, batch.commit_version, batch.last, len(batch)) == ("Totals", version, True, 2)
    assert batch.columns == ("id", "name", "amount")
    assert batch.idempotency_key == ("Totals", version, 6)
    assert [d.marker for d in batch] == [d.marker for d in batch] == ["I", "D"]
    assert batch.to_arrow().column("m").to_pylist() == ["I", "D"]
    assert "wide" not in repr(batch)


def test_a_version_that_was_never_committed_is_an_error(world: Any, make: Any) -> None:
    version = world.refresh(("I", make["row"](1)))
    with pytest.raises(StorageError, match="there is no commit version 7"):
        commit_times(world.services, version, version)[7]


def test_what_a_cursor_pins(make: Any) -> None:
    assert needed_from(make["Cursor"]("q", "d", 4)) == 4
    assert needed_from(make["Cursor"]("q", "d", 4, 2)) == 3


def test_exported_names() -> None:
    module = cq_engine.destinations
    assert sorted(module.__all__) == module.__all__
    assert all(hasattr(module, name) for name in module.__all__)
