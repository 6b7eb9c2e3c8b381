"""What is MariaDB's own: its types, tables that do not do, and a server that is killed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from cq_engine.catalog.model import DeclaredDestination, OutputColumn, VersionedTable
from cq_engine.context.services import ResultRows, SmallRows
from cq_engine.core.columns import Column
from cq_engine.core.errors import DestinationError
from cq_engine.core.types import arrow_schema
from cq_engine.destinations.contract.world import row
from cq_engine.destinations.targets import database_rows
from cq_engine.destinations.targets import target as targets
from cq_engine.destinations.targets.database import DatabaseDestination, _DatabaseTarget, reach_database
from tests import mariadb
from tests.brokers import Server, free_port
from tests.destinations.stories import Story, same

pytestmark = pytest.mark.mariadb


@pytest.fixture
def url(fresh_mariadb: Callable[[], str]) -> str:
    return fresh_mariadb()


def run(url: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(mariadb.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def sink(world: Any, url: str, mode: str = "merge", table: str = "Sink") -> DatabaseDestination:
    options = (("url", url), ("table", table), ("mode", mode))
    declared = DeclaredDestination(table, "DATABASE", options, token=f"token of {table}")
    return DatabaseDestination(world.services, world.query, declared)


def define(world: Any, *columns: Column, key: tuple[str, ...] | None = None) -> None:
    """The world's query has these columns, by default with the first one as its key, and an empty result."""
    wanted = key or (columns[0].name,)
    result = VersionedTable(1, "delta", world.query.name, columns, wanted)
    outputs = tuple(OutputColumn(c.name, c.type, "result", n) for n, c in enumerate(columns))
    world.define(query=replace(world.query, result=result, outputs=outputs, key=wanted, width=len(columns)))
    empty = SmallRows(arrow_schema(columns).empty_table(), columns)
    found = ResultRows(lambda: pytest.fail("the rows are in memory"), 0, "", empty)
    world.services = replace(world.services, results=lambda *_: found)


# ---------------------------------------------------------------- types

EDGES: dict[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "tinyint": (-(2**7), 2**7 - 1),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "float": (0.10000000149011612, 3.4028234663852886e38, 1.401298464324817e-45),
    "double": (0.1, 1.7976931348623157e308, -5e-324),
    "decimal(38,2)": (Decimal("-999999999999999999999999999999999999.99"), Decimal("0.01")),
    "decimal(38,38)": (Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1")),
    "string": ("", "a", "A", "a ", "ä", "\\", "%s", "'\"`;", "\0", "\n\r\t\x1a", "😀", "x" * 70_000),
    "binary": (b"", b"\x00\xff'\\\"", bytes(range(256)) * 300),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "time(6)": (time(0), time(23, 59, 59, 999999)),
    "timestamp": (
        datetime(1, 1, 1, tzinfo=timezone.utc),
        datetime(2040, 3, 31, 1, 30, 0, 1, timezone.utc),
        datetime(9999, 12, 31, 23, 59, 59, 999999, timezone.utc),
    ),
    "timestamp_ntz": (datetime(1, 1, 1), datetime(2026, 3, 29, 2, 30, 0, 123456)),  # noqa: DTZ001
    "interval year to month": (-13, 2**31 - 1),
    "interval day to second": (timedelta(days=-1, microseconds=1), timedelta(days=100_000, microseconds=5)),
    "array<string>": (["a", None, 'q"\\'], []),
    "map<string,int>": ([("k", 1), ("ü", None)], []),
    "struct<x:int,d:decimal(5,2)>": ({"x": 1, "d": Decimal("1.50")},),
    "void": (),
}


def generated(kind: str, dice: random.Random) -> Any:
    """Mostly an edge, else a value from the whole range."""
    if dice.random() < 0.15 or not EDGES[kind]:
        return None
    if kind in ("tinyint", "smallint", "int", "bigint") and dice.random() < 0.5:
        return dice.randint(*EDGES[kind])
    if kind == "double" and dice.random() < 0.5:
        return dice.uniform(-1, 1) * 10.0 ** dice.randint(-300, 300)
    if kind == "string" and dice.random() < 0.5:
        return "".join(chr(dice.choice([*range(1, 300), 0x20AC, 0x1F600])) for _ in range(dice.randint(1, 9)))
    if kind == "timestamp" and dice.random() < 0.5:
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(
            microseconds=dice.randint(-(10**16), 10**17)
        )
    return dice.choice(EDGES[kind])


def there(kind: str, value: Any) -> Any:
    """What the driver gives for a value; JSON as Python values."""
    if value is None:
        return None
    if kind.startswith("map"):
        return dict(value)
    if kind.startswith("struct"):
        return {name: str(v) if isinstance(v, Decimal) else v for name, v in value.items()}
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, time):
        return timedelta(
            hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
        )
    return value // timedelta(microseconds=1) if isinstance(value, timedelta) else value


def read(url: str, kinds: tuple[str, ...], table: str = "Sink") -> list[tuple[Any, ...]]:
    nested = [kind.startswith(("array", "map", "struct")) for kind in kinds]
    return [
        tuple(json.loads(v) if is_json and v is not None else v for v, is_json in zip(row, nested))
        for row in run(url, f"SELECT * FROM `{table}`")
    ]


def test_generated_rows_of_all_types_come_back(world: Any, url: str) -> None:
    """The key is a text: there is no value that MariaDB takes for another one."""
    dice, kinds = random.Random(5), ("string", *EDGES)
    define(world, *(Column(f"c{n}", kind) for n, kind in enumerate(kinds)))
    rows: dict[Any, tuple[Any, ...]] = {}
    history: list[tuple[Any, ...]] = []
    for _ in range(4):
        deltas: list[tuple[Any, ...]] = []
        for key in dice.sample([None, *EDGES["string"]], 8):
            new = (key, *(generated(kind, dice) for kind in EDGES))
            if key not in rows:
                deltas.append(("I", new))
                rows[key] = new
            elif dice.random() < 0.5:
                deltas.append(("D", rows.pop(key)))
            else:
                deltas.append(("U", rows[key], new))
                rows[key] = new
        history += [images[-1] for _, *images in deltas]
        world.refresh(*deltas)
        newest = world.catalog.newest_version
        for mode in ("merge", "history"):
            target = sink(world, url, mode, mode)
            target.check()
            target.deliver(newest)
        for table, wanted in (("merge", list(rows.values())), ("history", history)):
            same(read(url, kinds, table), [tuple(map(there, kinds, row)) for row in wanted])


@pytest.mark.parametrize("kind", [kind for kind in EDGES if not kind.startswith(("map", "void"))])
def test_every_type_as_a_key(world: Any, url: str, kind: str) -> None:
    """With another one beside it, so that what has no unique index is found by one column of it."""
    define(world, Column("k", kind), Column("g", "int"), Column("n", "int"), key=("k", "g"))
    values = [None, *EDGES[kind]]
    first = [(value, g, 0) for value in values for g in (1, None)]
    second = [(value, g, 1) for value, g, _ in first]
    destination = sink(world, url)
    destination.deliver(world.refresh(*(("I", row) for row in first)))
    destination.deliver(world.refresh(*(("U", old, new) for old, new in zip(first, second))))
    same(read(url, (kind, "", "")), [(there(kind, v), *rest) for v, *rest in second])
    destination.deliver(world.refresh(*(("D", row) for row in second[2:])))
    same(read(url, (kind, "", "")), [(None, 1, 1), (None, None, 1)])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_there_is_refused(world: Any, url: str, value: float) -> None:
    define(world, Column("id", "int"), Column("f", "double"))
    newest = world.refresh(("I", (1, value)))
    with pytest.raises(DestinationError, match="can not be used") as raised:
        sink(world, url, "history").deliver(newest)
    assert "\n" not in raised.value.message
    assert run(url, "SELECT * FROM `Sink`") == []


# ---------------------------------------------------------------- tables that are there

COLUMNS = {
    "tinyint": ("TINYINT", "SMALLINT", "BIGINT", "DECIMAL(10,2)"),
    "int": ("INT", "BIGINT", "DECIMAL(10,0)"),
    "float": ("FLOAT", "DOUBLE"),
    "double": ("DOUBLE",),
    "boolean": ("BOOLEAN", "TINYINT"),
    "decimal(10,2)": ("DECIMAL(10,2)", "DECIMAL(30,10)"),
    "string": ("LONGTEXT CHARACTER SET utf8mb4",),
    "binary": ("LONGBLOB",),
    "date": ("DATE",),
    "timestamp": ("DATETIME(6)",),
    "array<int>": ("JSON", "LONGTEXT"),
}
NARROW = {
    "tinyint": ("TINYINT UNSIGNED", "BIT(8)", "LONGTEXT", "DECIMAL(2,0)"),
    "int": ("SMALLINT", "MEDIUMINT", "INT UNSIGNED", "DECIMAL(9,0)", "FLOAT"),
    "float": ("FLOAT(7,2)",),
    "double": ("FLOAT", "DOUBLE(10,2)", "DECIMAL(38,10)"),
    "boolean": ("BIT(1)", "CHAR(1)"),
    "decimal(10,2)": ("DECIMAL(9,2)", "DECIMAL(10,1)", "DOUBLE", "DECIMAL(10,2) UNSIGNED"),
    "string": ("VARCHAR(255)", "TEXT", "ENUM('a')", "LONGBLOB", "LONGTEXT CHARACTER SET latin1", "LONGTEXT CHARACTER SET utf8mb3"),
    "binary": ("BLOB", "VARBINARY(100)", "LONGTEXT"),
    "date": ("YEAR", "VARCHAR(10)"),
    "timestamp": ("DATETIME", "DATETIME(3)", "TIMESTAMP(6)", "DATE"),
    "array<int>": ("TEXT", "VARCHAR(100)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(COLUMNS))
def test_which_columns_take_a_type(world: Any, url: str, kind: str) -> None:
    define(world, Column("id", "int"), Column("c", kind))
    for declared in (*COLUMNS[kind], *NARROW[kind]):
        run(url, f"CREATE OR REPLACE TABLE Sink (ID INT, `C` {declared}, more INT)")
        if declared in COLUMNS[kind]:
            sink(world, url, "history").check()
            continue
        with pytest.raises(DestinationError, match=r"column [cC] (of|has)") as raised:
            sink(world, url, "history").check()
        assert raised.value.detail
        assert raised.value.hint, declared


def test_a_table_that_does_not_do(world: Any, url: str) -> None:
    define(world, Column("k", "string"), Column("n", "int"))
    text = "LONGTEXT CHARACTER SET utf8mb4 COLLATE"
    for made, said, mode in (
        (f"k {text} utf8mb4_nopad_bin) ENGINE = MyISAM", "MyISAM, which has no transactions", "history"),
        (f"k {text} utf8mb4_general_ci)", "has the collation utf8mb4_general_ci", "merge"),
        (f"k {text} utf8mb4_bin)", "has the collation utf8mb4_bin", "merge"),
        (f"k {text} utf8mb4_bin, more INT NOT NULL)", "more of table Sink gets no value", "merge"),
    ):
        run(url, f"CREATE OR REPLACE TABLE Sink (n INT, {made}")
        with pytest.raises(DestinationError, match=said):
            sink(world, url, mode).check()
    for made in ("more INT NOT NULL DEFAULT 1", "more INT AUTO_INCREMENT PRIMARY KEY", "more INT AS (n + 1)"):
        run(url, f"CREATE OR REPLACE TABLE Sink (n INT, k {text} utf8mb4_nopad_bin, {made})")
        sink(world, url).check()
    run(url, f"CREATE OR REPLACE TABLE Sink (n INT, k {text} utf8mb4_general_ci)")
    sink(world, url, "history").check()
    run(url, f"CREATE OR REPLACE TABLE Sink (n INT, k {text} utf8mb4_nopad_bin, more INT DEFAULT 7)")
    for value in ("a", "A", "a "):
        sink(world, url).deliver(world.refresh(("I", (value, 1))))
    run(url, "UPDATE Sink SET more = 8 WHERE k = 'A'")
    sink(world, url).deliver(world.refresh(("U", ("A", 1), ("A", 2)), ("D", ("a ", 1))))
    same(run(url, "SELECT k, n, more FROM Sink"), [("a", 1, 7), ("A", 2, 8)])


def test_a_key_that_is_json(world: Any, url: str) -> None:
    define(world, Column("k", "array<string>"), Column("n", "int"))
    run(
        url,
        "CREATE OR REPLACE TABLE Sink (n INT, k LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci)",
    )
    with pytest.raises(DestinationError, match="has the collation utf8mb4_general_ci"):
        sink(world, url).check()
    run(url, "CREATE OR REPLACE TABLE Sink (n INT, k JSON)")
    sink(world, url).deliver(world.refresh(("I", (["a"], 1)), ("I", (["A"], 2))))
    assert sorted(read(url, ("int", "array<string>"))) == [(1, ["a"]), (2, ["A"])]


@pytest.mark.parametrize(
    "more", ["connect_timeout=abc", "connect_timeout=0", "ssl_ca=/nope", "charset=nope", "no_such=1"]
)
def test_parameters_that_the_driver_does_not_take(world: Any, url: str, more: str) -> None:
    declared = DeclaredDestination("d", "DATABASE", (("url", f"{url}?{more}"), ("table", "t")))
    with pytest.raises(DestinationError):
        reach_database(declared, None)


def test_autocommit_in_the_url(world: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would make rows durable before the mark."""
    elsewhere = f"{url}?autocommit=true"
    sink(world, elsewhere, "history").deliver(world.refresh(("I", row(1))))
    newest = world.refresh(("I", row(2)))

    def fails(*_: object) -> None:
        raise RuntimeError("power is lost")

    with monkeypatch.context() as now:
        now.setattr(_DatabaseTarget, "_write_mark", fails)
        with pytest.raises(DestinationError, match="power is lost"):
            sink(world, elsewhere, "history").deliver(newest)
    assert run(url, "SELECT count(*) FROM Sink") == [(1,)]
    sink(world, elsewhere, "history").deliver(newest)
    assert run(url, "SELECT count(*) FROM Sink") == [(2,)]


def test_a_server_whose_names_have_other_quotes(world: Any, url: str) -> None:
    run(url, "SET GLOBAL sql_mode = 'ANSI_QUOTES'")
    try:
        for n in (1, 2):
            sink(world, url, "history").deliver(world.refresh(("I", row(n))))
    finally:
        run(url, "SET GLOBAL sql_mode = DEFAULT")
    assert run(url, "SELECT count(*) FROM Sink") == [(2,)]


def test_nothing_is_cut_off(world: Any, url: str) -> None:
    """Whatever the server does by default with values that a column does not have."""
    define(world, Column("id", "int"), Column("f", "decimal(10,2)"))
    sink(world, url, "history").deliver(world.refresh(("I", (1, Decimal("1.00")))))
    run(url, "ALTER TABLE Sink MODIFY f TINYINT")
    run(url, "SET GLOBAL sql_mode = ''")
    newest = world.refresh(("I", (2, Decimal("900.00"))))
    try:
        with pytest.raises(DestinationError, match="Out of range value for column 'f'"):
            sink(world, url, "history").deliver(newest)
    finally:
        run(url, "SET GLOBAL sql_mode = DEFAULT")
    assert run(url, "SELECT * FROM Sink") == [(1, 1)]


def test_a_new_table_has_an_index_that_is_used(story: Story, url: str) -> None:
    world = story.world
    destination = sink(world, url)
    destination.deliver(story.commit())
    run(url, "INSERT INTO Sink (Id) SELECT seq FROM seq_100_to_5000")
    run(url, "ANALYZE TABLE Sink")
    found = run(url, "EXPLAIN SELECT * FROM Sink AS s STRAIGHT_JOIN Sink AS t WHERE t.Id = s.Id")
    assert found[1][5].startswith("cq_Sink_")


# ---------------------------------------------------------------- trouble


def test_a_crash_between_the_table_and_its_rows(
    story: Story, url: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new table ends the transaction: where one was lost, no mark may stand beside the empty one that took its place."""
    for mode in ("merge", "history"):
        destination = sink(story.world, url, mode, mode)
        destination.deliver(story.commit())
        run(url, f"DROP TABLE `{mode}`")
        before = len(story.deltas)
        newest = story.commit()

        def crash(*_: Any) -> None:
            raise make["Crash"]

        with monkeypatch.context() as patch:
            patch.setattr(_DatabaseTarget, "_write_mark", crash)
            with pytest.raises(make["Crash"]):
                destination.deliver(newest)
        assert run(url, f"SELECT * FROM `{mode}`") == []
        assert run(url, f"SELECT * FROM cq_cursors WHERE destination = 'token of {mode}'") == []
        destination.deliver(newest)
        wanted = list(story.rows.values()) if mode == "merge" else story.deltas[before:]
        same(run(url, f"SELECT * FROM `{mode}`"), wanted)


@pytest.mark.parametrize("mode", ["merge", "history"])
def test_killed_in_the_middle_of_a_delivery(
    story: Story, url: str, mariadb_server: Server, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Once after every number of rows that were on their way: nothing is lost, nothing is there twice."""
    destination, load = sink(story.world, url, mode), database_rows.load
    destination.deliver(story.commit())
    for place in (1, 3):
        for _ in range(10):
            newest = story.commit()
        left = [place]

        def killed(*arguments: Any, left: list[int] = left) -> None:
            load(*arguments)
            left[0] -= 1
            if left[0] == 0:
                mariadb_server.kill()

        with monkeypatch.context() as patch:
            patch.setattr(database_rows, "load", killed)
            try:
                with pytest.raises(DestinationError, match="database Sink") as raised:
                    destination.deliver(newest)
                assert isinstance(raised.value, targets.Unreachable)
                with pytest.raises(targets.Unreachable):
                    destination.deliver(newest)
                destination.check()
            finally:
                mariadb_server.start(120)
        destination.deliver(newest)
        wanted = story.deltas if mode == "history" else list(story.rows.values())
        same(run(url, "SELECT * FROM `Sink`"), wanted)


def test_who_is_not_let_in(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(url, "CREATE OR REPLACE USER other@'127.0.0.1' IDENTIFIED BY 'right'")
    place = url.rpartition("@")[2]

    def reach(address: str) -> None:
        monkeypatch.setenv("CQ_TEST_URL", address)
        reach_database(
            DeclaredDestination("d", "DATABASE", (("url", "${CQ_TEST_URL}"), ("table", "t"))), None
        )

    for address, said in {
        f"mariadb://other:hush42@{place}": "Access denied for user 'other'",
        f"mariadb://other:right@{place}": "Access denied for user 'other'",  # to this database
        f"mariadb://root@{place}_no": "Unknown database",
        f"mariadb://root@{place}?nonsense=1": "nonsense",
    }.items():
        with pytest.raises(DestinationError, match=said) as raised:
            reach(address)
        assert not isinstance(raised.value, targets.Unreachable)
        assert "hush42" not in str(raised.value)
        assert "right@" not in str(raised.value)
    reach(f"mariadb://root:hush42@127.0.0.1:{free_port()}/x")  # which says nothing of what is there
    reach(url)
