"""What targets take and refuse: columns, keys, values, names, declarations."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cq_engine.catalog.model import DeclaredDestination, OutputColumn, VersionedTable
from cq_engine.context.services import ResultRows
from cq_engine.core.columns import Column
from cq_engine.core.errors import DestinationError
from cq_engine.core.types import arrow_schema
from cq_engine.destinations.kinds import check_declared
from cq_engine.destinations.targets import target as targets
from cq_engine.destinations.targets.database import DatabaseDestination
from cq_engine.destinations.variables import expand
from tests import mariadb
from tests.destinations.stories import Place, Story, same


def test_a_target_that_was_lost(place: Place, story: Story, tmp_path: Path) -> None:
    destination = place.destination(story.world, "merge")
    destination.deliver(story.commit())
    if place.kind == "delta":
        Path(place.url).rename(tmp_path / "away")
    else:
        with destination.open() as target:
            connection: Any = target._connection  # type: ignore[attr-defined]
            with connection.begin():
                connection.exec_driver_sql(f"DROP TABLE {target._shown}")  # type: ignore[attr-defined]
    newest = story.commit()
    destination.deliver(newest)
    same(place.read(), list(story.at[newest].values()))


def test_what_does_not_fit(place: Place, story: Story) -> None:
    world = story.world
    place.destination(world, "history").deliver(story.commit())
    narrower = replace(world.query, outputs=tuple(replace(o, type="bigint") if o.name == "Id" else o for o in world.query.outputs))  # fmt: skip
    more = replace(world.query, outputs=(*world.query.outputs, OutputColumn("more", "string", "marker")))
    place.destination(world, "history").check()
    world.query = more
    with pytest.raises(DestinationError, match="column more of continuous query Totals does not fit"):
        place.destination(world, "history").check()
    if not place.url.startswith("sqlite"):  # where an integer has 64 bits
        world.query = narrower
        with pytest.raises(DestinationError, match=r"column Id .* does not fit") as raised:
            place.destination(world, "history").check()
        assert "it is bigint" in raised.value.detail


def test_without_a_key_nothing_is_merged(place: Place, story: Story) -> None:
    story.world.query = replace(story.world.query, key=None)
    with pytest.raises(DestinationError, match="has no result key"):
        place.destination(story.world, "merge").check()


def test_a_result_of_one_row(place: Place, story: Story) -> None:
    world = story.world
    world.define(query=replace(world.query, key=()))
    rows = [(n, "x", Decimal("1.00")) for n in range(3)]
    destination = place.destination(world, "merge")
    for deltas in ((("I", rows[0]),), (("U", rows[0], rows[1]),), (("D", rows[1]),), (("I", rows[2]),)):
        destination.deliver(world.refresh(*deltas))
    same(place.read(), rows[2:])


NAN = float("nan")
ODD = (
    Column("f", "double"), Column("a", "array<double>"), Column("m", "map<string,int>"),
    Column("st", "struct<x:binary,d:decimal(5,2)>"),
)  # fmt: skip


def odd_rows(place: Place, table: str) -> dict[Any, list[Any]]:
    """The rows by their key, of which there is one each; JSON as Python values."""
    name, read = '"' + table.replace('"', '""') + '"', "SELECT CAST(f AS TEXT), a, m, st FROM "
    if place.url.startswith("sqlite"):
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as connection:
            found = [tuple(map(_json, row)) for row in connection.execute(read + name)]
    elif place.url.startswith("mariadb"):
        read = "SELECT CAST(f AS CHAR), a, m, st FROM `" + table.replace("`", "``") + "`"
        with closing(mariadb.connect(place.url)) as connection, connection.cursor() as cursor:
            cursor.execute(read)
            found = [tuple(map(_json, row)) for row in cursor.fetchall()]
    else:
        import psycopg

        with psycopg.connect(place.url) as connection:
            found = [(_json(row[0]), *row[1:]) for row in connection.execute((read + name).encode())]
    assert len(found) == len({repr(row[0]) for row in found})
    return {repr(key): row for key, *row in found}


def _json(value: str | None) -> Any:
    return None if value is None else json.loads(value)


def test_odd_keys_values_and_names(place: Place, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and NULL are different keys; what JSON has not is text in it; a name may have any character."""
    if place.kind == "delta":
        return
    result = VersionedTable(1, "delta", world.query.name, ODD, ("f",))
    outputs = tuple(OutputColumn(c.name, c.type, "result", n) for n, c in enumerate(ODD))
    world.define(query=replace(world.query, result=result, outputs=outputs, key=("f",), width=4))
    world.services = replace(
        world.services,
        results=lambda *_: ResultRows(lambda: arrow_schema(ODD).empty_table(), 0, ""),  # type: ignore[arg-type,return-value]
    )
    table = 'we ird"100%s`'
    options = (("url", place.url), ("table", table), ("mode", "merge"))
    declared = DeclaredDestination("sink", "DATABASE", options, token="t1")
    destination = DatabaseDestination(world.services, world.query, declared)
    odd = -2.5 if place.url.startswith("mariadb") else NAN  # which has no NaN
    full = (odd, [NAN, 1.5], [("k", 1)], {"x": b"\x00\xff", "d": Decimal("1.50")})
    empty = (None, [], [], None)
    monkeypatch.setattr(targets, "result_blocks", lambda rows, _: iter((rows,)))
    destination.deliver(world.refresh(("I", full), ("I", empty), ("I", (1.5, None, None, None))))
    json_of_full = [["nan", 1.5], {"k": 1}, {"x": "AP8=", "d": "1.50"}]
    assert odd_rows(place, table) == {repr(odd): json_of_full, "None": [[], {}, None], "1.5": [None] * 3}
    changed = (odd, [2.0], None, None)
    destination.deliver(world.refresh(("U", full, changed)))
    assert odd_rows(place, table)[repr(odd)] == [[2.0], None, None]
    destination.deliver(world.refresh(("D", empty)))
    assert set(odd_rows(place, table)) == {repr(odd), "1.5"}
    destination.deliver(world.refresh(("D", changed)))
    assert set(odd_rows(place, table)) == {"1.5"}


@pytest.mark.postgres
def test_what_copy_refuses_is_said_in_one_line(story: Story, fresh_postgres: Callable[[], str]) -> None:
    options = (("url", fresh_postgres()), ("table", "sink"))
    declared = DeclaredDestination("sink", "DATABASE", options, token="t1")
    destination = DatabaseDestination(story.world.services, story.world.query, declared)
    with pytest.raises(DestinationError, match="invalid byte sequence") as raised:
        destination.deliver(story.world.refresh(("I", (1, "a\0b", Decimal("1.00")))))
    assert raised.value.message.startswith("database sink (postgresql")
    assert "\n" not in raised.value.message


def test_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    def declared(**options: str) -> DeclaredDestination:
        return DeclaredDestination("d", "DATABASE", tuple({"table": "t", **options}.items()))

    check_declared(declared(url="${URL}"))
    check_declared(declared(url="postgresql://me:${PASSWORD}@host/db"))
    check_declared(declared(url="sqlite:////data/x.db"))
    for url in ("postgresql://me:hush@host/db", "postgresql://host/db?password=hush"):
        with pytest.raises(DestinationError, match="has a password in it") as raised:
            check_declared(declared(url=url))
        assert "hush" not in str(raised.value)
    with pytest.raises(DestinationError, match="is not the URL of a database"):
        check_declared(declared(url="nothing"))
    with pytest.raises(DestinationError, match="a destination cannot be in mysql"):
        check_declared(declared(url="mysql://host/db"))
    monkeypatch.delenv("CQ_NOT_SET", raising=False)
    with pytest.raises(DestinationError, match="CQ_NOT_SET is not set"):
        expand("${CQ_NOT_SET}")
