"""What a refresh reads of its base tables in each form of the delta, and who chooses the form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import AnalysisError, ConstraintError, Engine, TransactionError
from cq_engine.core.limits import Limits

LINES = "SELECT l.o, l.n, l.item, o.note FROM lines l JOIN orders o ON l.o = o.o"
NEW_UNIT = ("INSERT INTO orders VALUES (901, 1)", "INSERT INTO lines VALUES (901, 1, 5), (901, 2, 6)")
OLD_ORDER = ("INSERT INTO lines VALUES (7, 3, 5)", "INSERT INTO orders VALUES (902, 1)")
CANCELLED = ("DELETE FROM lines WHERE o = 8", "DELETE FROM orders WHERE o = 8")
ANNOTATED = ("UPDATE orders SET note = note + 10 WHERE o IN (9, 10)",)


class Shop:
    """An engine with large tables, and what its refreshes read of them."""

    def __init__(self, engine: Engine, promise: str) -> None:
        self.engine = engine
        self.reads: list[tuple[str, int]] = []
        self.scans: list[str] = []
        engine.execute("CREATE TABLE orders (o INT PRIMARY KEY, note INT)")
        engine.execute(
            f"CREATE TABLE lines (o INT, n INT, item INT, PRIMARY KEY (o, n),"
            f" FOREIGN KEY (o) REFERENCES orders (o) {promise})"
        )
        engine.execute("INSERT INTO orders SELECT id, id % 3 FROM range(500)")
        engine.execute("INSERT INTO lines SELECT id DIV 2, id % 2, id % 7 FROM range(1000)")
        engine.compact("orders")
        engine.compact("lines")

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        base_arrow: Callable[..., Any] = self.engine.reader.base_arrow
        files: Callable[..., Any] = self.engine.reader.files

        def looked_up(
            table: Any, layout: Any, restrict: dict[str, pa.Array], *more: Any, **named: Any
        ) -> pa.Table | None:
            rows = base_arrow(table, layout, restrict, *more, **named)
            self.reads.append((table.name, -1 if rows is None else rows.num_rows))
            return rows

        def scanned(found: Any, columns: Any, restrict: Any = None, wanted: Any = None) -> Any:
            self.scans += [file.path for file in found]
            return files(found, columns, restrict, wanted)

        monkeypatch.setattr(self.engine.reader, "base_arrow", looked_up)
        monkeypatch.setattr(self.engine.reader, "files", scanned)

    def commit(self, statements: tuple[str, ...]) -> None:
        with self.engine.transaction() as transaction:
            for statement in statements:
                transaction.execute(statement)

    def refreshed(self, name: str) -> list[tuple[object, ...]]:
        """The deltas of one refresh of `name`; `reads` and `scans` are about it."""
        self.reads.clear()
        self.scans.clear()
        position = self.engine.describe(name).position
        self.engine.refresh(name)
        return sorted(
            ((d.marker, d.new, d.old) for d in self.engine.deltas(name, after_version=position)), key=repr
        )


@pytest.fixture
def shop(
    warehouse: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Shop]]:
    opened: list[Engine] = []

    def make(promise: str, **bounds: int) -> Shop:
        limits = Limits(small_rows=0, **bounds)
        engine = cq_engine.connect(warehouse / str(len(opened)), spark=spark, scheduler=False, limits=limits)
        opened.append(engine)
        made = Shop(engine, promise)
        made.watch(monkeypatch)
        return made

    yield make
    for engine in opened:
        engine.close()


def test_forms_read_less_and_say_the_same(shop: Callable[..., Shop]) -> None:
    made = shop("ENFORCED")
    for name in ("general", "fk_pk", "fk_pk_units"):
        made.engine.execute(
            f"CREATE CONTINUOUS QUERY {name} ON DEMAND WITH (form = '{name}', pre_image = 'undo') AS {LINES}"
        )
    made.engine.execute(f"CREATE CONTINUOUS QUERY sql ON DEMAND WITH (pre_image = 'sql') AS {LINES}")
    read: dict[str, list[list[tuple[str, int]]]] = {}
    for change in (NEW_UNIT, OLD_ORDER, CANCELLED, ANNOTATED):
        made.commit(change)
        first = made.refreshed("general")
        assert first
        read.setdefault("general", []).append(sorted(made.reads))
        for name in ("fk_pk", "fk_pk_units", "sql"):
            assert made.refreshed(name) == first, name
            read.setdefault(name, []).append(sorted(made.reads))
    assert not made.scans
    orders, lines = [("orders", 0)], [("lines", 0)]
    assert read["general"] == [
        [*lines, *orders], [*lines, ("orders", 1)], [("lines", 2), ("orders", 1)], [("lines", 4)],
    ]  # fmt: skip
    assert read["fk_pk"] == [orders, [("orders", 1)], [("orders", 1)], [("lines", 4)]]
    assert read["fk_pk_units"] == [[], [("orders", 1)], [], [("lines", 4)]]
    assert read["sql"] == [[], [("orders", 1)], [("lines", 2), ("orders", 1)], [("lines", 4)]]


@pytest.mark.long
def test_large_intervals_do_without_the_base_too(shop: Callable[..., Shop]) -> None:
    made = shop("ENFORCED", driver_changes=-1)
    for name in ("general", "fk_pk_units"):
        made.engine.execute(f"CREATE CONTINUOUS QUERY {name} ON DEMAND WITH (form = '{name}') AS {LINES}")
    for change in (NEW_UNIT, CANCELLED):
        made.commit(change)
        first = made.refreshed("general")
        assert first
        assert made.scans
        assert made.refreshed("fk_pk_units") == first
        assert not made.scans
        assert not made.reads
    for change in (OLD_ORDER, ANNOTATED):
        made.commit(change)
        first = made.refreshed("general")
        assert first
        assert made.refreshed("fk_pk_units") == first
        assert not made.scans
        assert made.reads


def test_a_key_that_nobody_promises_prunes_nothing(shop: Callable[..., Shop]) -> None:
    """Lines of an order that comes later: they join once it is there."""
    promised = shop("NOT ENFORCED RELY")
    made = shop("NOT ENFORCED")
    for each in (made, promised):
        each.engine.execute("INSERT INTO lines VALUES (950, 1, 4), (950, 2, 4)")
        each.engine.compact("lines")
        each.engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND WITH (form = 'fk_pk_units') AS {LINES}")
        each.commit(("INSERT INTO orders VALUES (950, 1)",))
    expected = [("I", (950, 1, 4, 1), None), ("I", (950, 2, 4, 1), None)]
    assert made.refreshed("q") == expected
    assert ("lines", 2) in made.reads
    assert promised.refreshed("q") == []  # RELY was a lie


def test_a_key_holds_from_when_it_was_declared(shop: Callable[..., Shop]) -> None:
    made = shop("NOT ENFORCED")
    made.engine.execute("INSERT INTO lines VALUES (950, 1, 4)")
    made.engine.compact("lines")
    made.engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND WITH (form = 'fk_pk') AS {LINES}")
    add = "ALTER TABLE lines ADD CONSTRAINT {} FOREIGN KEY (o) REFERENCES orders (o) ENFORCED"
    with pytest.raises(ConstraintError, match="1 rows of lines violate"):
        made.engine.execute(add.format("early"))
    made.commit(("INSERT INTO orders VALUES (950, 1)",))
    made.engine.execute(add.format("late"))
    assert made.refreshed("q") == [("I", (950, 1, 4, 1), None)]
    made.commit(("INSERT INTO orders VALUES (951, 1)",))
    assert made.refreshed("q") == []
    assert made.reads == [], "from then on it prunes"


def explained(engine: Engine, statement: str) -> str:
    return "\n".join(row[0] for row in engine.execute(statement).fetchall())


def test_explain_says_what_is_pending_and_analyze_refreshes(shop: Callable[..., Shop]) -> None:
    made = shop("ENFORCED")
    engine = made.engine
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {LINES}")
    assert "delta, where every source has changed:" in explained(engine, "EXPLAIN CONTINUOUS QUERY q")
    made.commit(NEW_UNIT)
    position = engine.describe("q").position
    said = explained(engine, "EXPLAIN CONTINUOUS QUERY q")
    for line in (
        f"├─ from version: {position + 1}\n│  ├─ to version: {position + 1}\n",
        "─ lines: 2 change rows (INSERT), about 1000 rows before",
        "├─ form: fk_pk_units\n│  ├─ pre-image by: undo\n",
        "─ orders by o, the keys of changed lines: only keys that are not in its own 1 change rows",
        "─ lines by o, the keys of changed orders: no unchanged row, because lines (o) REFERENCES orders (o)",
    ):
        assert line in said
    assert engine.describe("q").position == position
    (document,) = [json.loads(explained(engine, "EXPLAIN (FORMAT JSON) CONTINUOUS QUERY q"))]
    assert (document["query"], document["verdict"]) == ("q", "INCREMENTAL")
    assert document["pending"]["to_version"] == position + 1
    assert document["delta"]["form"] == "fk_pk_units"
    assert document["sql"].startswith("-- the delta\nSELECT")
    drawn = explained(engine, "EXPLAIN (FORMAT MERMAID) CONTINUOUS QUERY q").splitlines()
    assert drawn[0] == "flowchart BT"
    assert '[("orders")]' in "".join(drawn)
    assert drawn[-1].endswith(" --> result")
    done = explained(engine, "EXPLAIN ANALYZE CONTINUOUS QUERY q")
    for line in (
        "2 I, 0 D, 0 U",
        "plan: INCREMENTAL, fk_pk_units",
        "run by: the driver: 3 change rows",
        "─ orders by o: 1 keys wanted, 1 in its own change rows, nothing to be read",
        "─ lines by o: 1 keys wanted, 1 of parents that came or went, which no unchanged row can have",
        "─ lines, changes: 2 rows",
        "─ delta: ",
    ):
        assert line in done
    assert engine.describe("q").position == position + 1
    (refreshed,) = engine.execute("SHOW REFRESHES FOR q").fetchall()
    assert refreshed[6] == "INCREMENTAL, fk_pk_units"
    assert ("last plan", "INCREMENTAL, fk_pk_units") in engine.execute("DESCRIBE q").fetchall()
    assert "nothing was pending" in explained(engine, "EXPLAIN ANALYZE CONTINUOUS QUERY q")
    engine.execute("BEGIN")
    with pytest.raises(TransactionError):
        engine.execute("EXPLAIN ANALYZE CONTINUOUS QUERY q")
    engine.execute("ROLLBACK")


@pytest.mark.parametrize("mode", [pytest.param("COMPRESSED", marks=pytest.mark.long), "TRANSACTIONAL"])
def test_statistics_ask_for_recomputation(shop: Callable[..., Shop], mode: str) -> None:
    """Its states are as if they had been kept: later deltas go on from them."""
    made = shop("ENFORCED", recompute_rows=0)
    engine = made.engine
    text = (
        "SELECT item, count(*) AS n, max(n) AS top, sum(o) AS s FROM lines GROUP BY item HAVING count(*) > 1"
    )
    engine.execute(f"CREATE CONTINUOUS QUERY q COMPUTE {mode} DELTA ON DEMAND START FROM SNAPSHOT AS {text}")
    made.commit(("UPDATE lines SET item = item + 3 WHERE o < 490", "DELETE FROM lines WHERE item = 1"))
    steps = [engine.refresh("q").plan]
    made.commit(("UPDATE lines SET item = 4 WHERE o IN (498, 499)",))
    steps.append(engine.refresh("q").plan)
    made.commit(("UPDATE lines SET item = item % 2",))
    made.commit(("UPDATE lines SET item = item + 5",))
    steps.append(engine.refresh("q").plan)
    made.commit(("UPDATE lines SET item = 9 WHERE o = 1",))
    steps.append(engine.refresh("q").plan)
    several = "recompute" if mode == "COMPRESSED" else "general"
    assert steps == [f"INCREMENTAL, {form}" for form in ("recompute", "general", several, "general")]
    result: dict[object, object] = {}
    for delta in engine.deltas("q"):
        assert result.get(delta.key) == delta.old
        result[delta.key] = delta.new
    assert {row for row in result.values() if row} == {tuple(row) for row in engine.execute(text).fetchall()}


def test_enforced_keys_hold_at_every_commit_of_a_batch(shop: Callable[..., Shop]) -> None:
    engine = shop("ENFORCED").engine

    def apply(orders: list[tuple[int, str, int]], lines: list[tuple[int, str, int]]) -> None:
        """(transaction, operation, order) of both tables."""
        engine.apply_changes(
            {
                "orders": pa.table({"txn": [t for t, _, _ in orders], "op": [x for _, x, _ in orders], "o": [o for _, _, o in orders], "note": [1] * len(orders)}),
                "lines": pa.table({"txn": [t for t, _, _ in lines], "op": [x for _, x, _ in lines], "o": [o for _, _, o in lines], "n": [0] * len(lines), "item": [1] * len(lines)}),
            },
            transaction="txn",
        )  # fmt: skip

    some = [(9, "U", 400)]
    for orders, lines in (
        ([(1, "D", 8), (2, "I", 8)], some),  # its lines wait
        ([(2, "I", 950)], [(1, "I", 950)]),  # too late
        ([(1, "I", 950), (3, "D", 950)], [(2, "I", 950), (4, "D", 950)]),  # too early
        ([(1, "U", 8)], [(1, "I", 951), (2, "D", 951)]),  # never there
    ):
        before = engine.catalog.newest_version
        with pytest.raises(ConstraintError, match="at every commit of the batch") as raised:
            apply(orders, lines)
        assert raised.value.detail
        assert engine.catalog.newest_version == before
    apply([(1, "I", 950), (2, "D", 950), (3, "I", 950)], [(1, "I", 950), (2, "D", 950), (3, "I", 950)])
    assert engine.execute("SELECT count(*) FROM lines WHERE o = 950").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("form = 'fastest'", "option form = fastest is unknown"),
        ("FORM = 'fastest'", "option form = fastest is unknown"),
        ("frm = 'general'", "there is no option frm of a continuous query"),
        ("pre_image = 'redo'", "option pre_image = redo is unknown"),
        ("form = 'recompute'", "form = recompute is for compressed deltas"),
        ("form = 'recompute', refresh = 'incremental'", "contradict"),
    ],
)
def test_options_are_checked(shop: Callable[..., Shop], options: str, message: str) -> None:
    engine = shop("ENFORCED").engine
    with pytest.raises(AnalysisError, match=message) as raised:
        engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND WITH ({options}) AS {LINES}")
    assert raised.value.hint
    engine.execute(f"CREATE CONTINUOUS QUERY q ON DEMAND AS {LINES}")
    with pytest.raises(AnalysisError, match=message):
        engine.execute(f"ALTER CONTINUOUS QUERY q SET WITH ({options})")
