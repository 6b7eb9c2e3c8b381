"""Table destinations: commits, constraints, and which tables fit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import types as t

from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.catalog.model import ForeignKey, OutputColumn
from cq_engine.core.columns import Column
from cq_engine.core.errors import DestinationError
from cq_engine.core.types import spark_type
from cq_engine.destinations import TableDestination, check, columns_for
from cq_engine.destinations import table as table_module
from cq_engine.destinations.fit import widens
from tests.limits import limit


def sink(world: Any) -> TableDestination:
    return TableDestination(world.services, world.query, world.table())


def test_a_delivery_is_an_ordinary_commit(world: Any, make: Any) -> None:
    world.define(make["table"]())
    row = make["row"]
    world.refresh(("I", row(1)), ("I", row(2)))
    upto = world.refresh(("D", row(1)))
    world.clock.set(world.clock.now() + timedelta(hours=1))
    delivered = sink(world).deliver(upto)
    assert delivered is not None
    assert (delivered.deltas, delivered.version) == (3, upto + 1)
    assert dict(delivered.changed) == {"sink": frozenset({"INSERT"})}
    assert world.catalog.timestamp(upto + 1) == world.clock.now()
    changes = world.services.reader.changes_arrow(world.table().storage, upto, upto + 1)
    assert set(changes.column("_change_type").to_pylist()) == {"insert"}
    ids = world.image().column(ROW_ID).to_pylist()
    assert len(set(ids)) == 3


def test_commit_time_never_goes_back(world: Any, make: Any) -> None:
    world.define(make["table"]())
    upto = world.refresh(("I", make["row"](1)))
    newest = world.catalog.newest_timestamp
    world.clock.set(newest - timedelta(hours=1))
    sink(world).deliver(upto)
    assert world.catalog.newest_timestamp == newest


def test_types_widen_into_the_table(world: Any, make: Any) -> None:
    columns = [Column(o.name.upper(), o.type) for o in world.query.outputs]
    columns[0] = Column("ID", "bigint")
    columns[2] = Column("AMOUNT", "decimal(18,4)")
    world.define(make["table"](columns=tuple(columns)))
    upto = world.refresh(("I", make["row"](1)))
    sink(world).deliver(upto)
    (line,) = world.image().to_pylist()
    assert (line["ID"], str(line["AMOUNT"])) == (1, "1.5000")


def test_more_than_a_little_goes_into_a_file(world: Any, make: Any) -> None:
    limit(world, table_inline_bytes=0)
    world.define(make["table"]())
    upto = world.refresh(*(("I", make["row"](n)) for n in range(20)))
    sink(world).deliver(upto)
    (change_set,) = world.catalog.layout(2, 0).changes
    assert change_set.insert_only
    assert sum(file.rows for file in change_set.files) == 20
    assert sorted(world.image().column("id").to_pylist()) == list(range(20))
    assert len(set(world.image().column(ROW_ID).to_pylist())) == 20


@pytest.mark.parametrize("inline", [0, 2**20])
def test_a_primary_key_that_would_be_violated(
    world: Any, make: Any, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    limit(world, table_inline_bytes=inline)
    if inline == 0:
        monkeypatch.setattr(table_module, "check_files", _as_arrow(world))
    world.define(make["table"](primary_key=("id",)))
    row = make["row"]
    first = world.refresh(("I", row(1)))
    sink(world).deliver(first)
    before = sink(world).cursor
    second = world.refresh(("U", row(1), row(1, "x")))
    with pytest.raises(DestinationError, match="violate the primary key of table sink: id = 1") as raised:
        sink(world).deliver(second)
    assert raised.value.hint
    after = sink(world).cursor
    assert (after.version, after.sequence, after.failures) == (before.version, before.sequence, 1)
    assert world.image().num_rows == 1
    assert world.catalog.newest_version == second


def _as_arrow(world: Any) -> Any:
    """check_files, for a test without Spark."""
    from cq_engine.destinations.constraints import check_rows
    from cq_engine.storage.rows import open_dataset

    def check_files(services: Any, query: Any, table: Any, files: Any, version: int) -> None:
        rows = open_dataset(services.reader.paths(files), table.columns).to_table()
        check_rows(services, query, table, rows, version)

    return check_files


def test_one_key_twice_in_one_delivery(world: Any, make: Any) -> None:
    world.define(make["table"](primary_key=("id",)))
    row = make["row"]
    upto = world.refresh(("D", row(4)), ("I", row(5)), ("I", row(4)))
    with pytest.raises(DestinationError, match="id = 4"):
        sink(world).deliver(upto)
    assert sink(world).cursor.version == 0


def test_a_key_that_is_not_enforced_is_not_checked(world: Any, make: Any) -> None:
    world.define(make["table"](primary_key=("id",), primary_key_enforced=False))
    upto = world.refresh(("D", make["row"](4)), ("I", make["row"](4)))
    delivered = sink(world).deliver(upto)
    assert delivered is not None
    assert delivered.deltas == 2


def test_null_for_a_required_column(world: Any, make: Any) -> None:
    columns = tuple(Column(o.name, o.type, o.name != "was") for o in world.query.outputs)
    world.define(make["table"](columns=columns))
    upto = world.refresh(("I", make["row"](4)))
    with pytest.raises(DestinationError, match="NULL for column was of table sink"):
        sink(world).deliver(upto)


def test_overlapping_deliveries_do_not_repeat(world: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.define(make["table"]())
    upto = world.refresh(("I", make["row"](1)))
    slow, fast = sink(world), sink(world)
    stage = slow._stage

    def overtaken(cursor: Any, version: int) -> Any:
        staged = stage(cursor, version)
        fast.deliver(version)
        return staged

    monkeypatch.setattr(slow, "_stage", overtaken)
    with pytest.raises(DestinationError, match="another delivery"):
        slow.deliver(upto)
    assert world.image().num_rows == 1


def test_a_table_that_was_dropped(world: Any, make: Any) -> None:
    world.define(make["table"]())
    destination = sink(world)
    world.define()
    upto = world.refresh(("I", make["row"](1)))
    with pytest.raises(DestinationError, match="table sink was dropped"):
        destination.deliver(upto)


def test_files_of_a_failed_delivery_are_removed(
    world: Any, make: Any, monkeypatch: pytest.MonkeyPatch, warehouse: Any
) -> None:
    limit(world, table_inline_bytes=0)
    monkeypatch.setattr(table_module, "check_files", _as_arrow(world))
    world.define(make["table"](primary_key=("id",)))
    upto = world.refresh(("D", make["row"](4)), ("I", make["row"](4)))
    with pytest.raises(DestinationError, match="primary key"):
        sink(world).deliver(upto)
    assert list(warehouse.rglob("*.parquet")) == []


# ---------------------------------------------------------------- which tables fit


def test_columns_for(make: Any) -> None:
    query = make["query"]
    assert [(c.name, c.type) for c in columns_for(query)] == [(o.name, o.type) for o in query.outputs]
    twice = replace(query, outputs=(*query.outputs, OutputColumn("ID", "int", "old", 0)))
    with pytest.raises(DestinationError, match="two columns of continuous query Totals are named ID"):
        columns_for(twice)


@pytest.mark.parametrize(
    ("change", "message", "detail"),
    [
        ({"columns": ()}, "column id of continuous query Totals does not fit", "has only 0 columns"),
        ({"place": (0, Column("other", "int"))}, "column id of", "column 1 of table sink is other"),
        ({"place": (1, Column("name", "int"))}, "column name of", "it is string, and sink.name is int"),
        (
            {"extra": Column("more", "int")},
            "column more of table sink gets no value",
            "9 columns, the table 10",
        ),
        (
            {"foreign_keys": (ForeignKey("fk", ("id",), "t", ("id",), enforced=True),)},
            "table sink cannot be a destination",
            "fk is ENFORCED",
        ),
    ],
)
def test_tables_that_do_not_fit(make: Any, change: dict[str, Any], message: str, detail: str) -> None:
    columns = [Column(o.name, o.type) for o in make["query"].outputs]
    if "place" in change:
        place, column = change.pop("place")
        columns[place] = column
    if "extra" in change:
        columns.append(change.pop("extra"))
    change.setdefault("columns", tuple(columns))
    with pytest.raises(DestinationError) as raised:
        check(make["query"], make["table"](**change))
    assert message in raised.value.message
    assert detail in raised.value.detail
    assert raised.value.hint


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("int", "double", True),
        ("bigint", "double", False),
        ("smallint", "float", True),
        ("float", "double", True),
        ("double", "float", False),
        ("int", "decimal(10,0)", True),
        ("int", "decimal(10,2)", False),
        ("bigint", "decimal(20,0)", True),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(10,4)", False),
        ("string", "int", False),
        ("int", "string", False),
        ("void", "date", True),
        ("array<int>", "array<bigint>", True),
        ("map<int,float>", "map<int,double>", True),
        ("struct<a:int>", "struct<a:bigint>", True),
        ("struct<a:int>", "struct<b:int>", False),
        ("date", "timestamp", False),
    ],
)
def test_widening(source: str, target: str, fits: bool) -> None:
    assert widens(spark_type(source), spark_type(target)) is fits


def test_every_type_fits_itself() -> None:
    for kind in (t.StringType(), t.BinaryType(), t.TimestampNTZType(), t.ArrayType(t.DateType())):
        assert widens(kind, kind)


def test_constraints_are_checked_again_where_the_table_moved(
    world: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.define(make["table"](primary_key=("id",)))
    upto = world.refresh(("I", make["row"](1)))
    slow, other = sink(world), sink(world)
    other.name = "other"
    commit = slow._commit

    def overtaken(*args: Any) -> Any:
        other.deliver(upto)  # another writer: the same key, a cursor of its own
        return commit(*args)

    monkeypatch.setattr(slow, "_commit", overtaken)
    monkeypatch.setattr(other, "_check_table", lambda: None)
    with pytest.raises(DestinationError, match="id = 1"):
        slow.deliver(upto)


def test_an_unexpected_error_is_a_failure_too(world: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.define(make["table"]())
    upto = world.refresh(("I", make["row"](1)))
    destination = sink(world)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("of a cast")

    monkeypatch.setattr(destination, "_stage", broken)
    with pytest.raises(
        DestinationError, match=r"table sink could not be served .* ZeroDivisionError: of a cast"
    ):
        destination.deliver(upto)
    assert destination.cursor.failures == 1
