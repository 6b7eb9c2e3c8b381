"""USING COPY WITH (at = 'source'): the copy beside the table, whoever is killed, restored or in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from cq_engine import Engine
from cq_engine.core.errors import ConflictError
from cq_engine.core.limits import Limits
from cq_engine.sources.copies import capture as copying
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.model import Statement
from tests.sources.copies import CAPTURE, Opened, ask
from tests.sources.kills import Killed, killed_in_refresh
from tests.sources.shops import Shop
from tests.sources.writers import TABLE, Writer, declare, here


@contextmanager
def killed_at(step: int) -> Iterator[Callable[[], int]]:
    """Kills before a statement that concerns the copy, the step-th of them; how many of them there were."""
    steps, change, blocks = 0, Session.change, Session.blocks

    def count(statement: Statement) -> None:
        nonlocal steps
        steps += "cq_copy_c" in statement.sql
        if steps == step:
            raise Killed

    def changes(session: Session, statement: Statement) -> int:
        count(statement)
        return change(session, statement)

    def reads(session: Session, statement: Statement, *size: int) -> Iterator[list[tuple[Any, ...]]]:
        count(statement)
        yield from blocks(session, statement, *size)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "change", changes)
        patched.setattr(Session, "blocks", reads)
        yield lambda: steps


def moved(shop: Shop, note: str) -> None:
    """An update, a deletion, an insertion and a new key: nothing that the next call would find done."""
    shop.run(f"UPDATE orders SET note = '{note}' WHERE id = 1001")
    shop.run("DELETE FROM orders WHERE id IN (1002, 2001, 1003)")
    shop.run(f"INSERT INTO orders (id, note, gone) VALUES (2001, '{note}', 0), (1003, '{note}', 0)")
    shop.run("UPDATE orders SET id = 1002 WHERE id = 1003")


def undone(shop: Shop) -> None:
    """The rows as they were before anything was moved."""
    shop.run("DELETE FROM orders WHERE id > 1000")
    shop.run("INSERT INTO orders (id, note, gone) VALUES (1001, 'first', 0), (1002, 'first', 0)")


# ---------------------------------------------------------------- ticks


def test_only_what_has_changed_travels(copied: Engine, shop: Shop, beside: Writer) -> None:
    undone(shop)
    assert copied.refresh_capture("c").rows_read == 2
    assert copied.refresh_capture("c").rows_read == 0
    shop.run("UPDATE orders SET version = version + 1, ts = NULL")  # no pertinent column
    assert copied.refresh_capture("c").rows_read == 0
    moved(shop, "second")
    done = copied.refresh_capture("c")
    assert (done.rows_read, len(done.commit_versions)) == (3, 1)
    assert here(copied) == beside.rows()
    before = copied.catalog.newest_version
    found = copied.execute(f"SELECT id, note, _change_type FROM t CHANGES FROM VERSION {before}").fetchall()
    assert sorted(map(tuple, found)) == [
        (1001, "first", "update_preimage"), (1001, "second", "update_postimage"),
        (1002, "first", "update_preimage"), (1002, "second", "update_postimage"), (2001, "second", "insert"),
    ]  # fmt: skip


def test_killed_at_every_step(opened: Opened, shop: Shop, beside: Writer) -> None:
    """What was changed before is changed back afterwards: whoever forgets what was shipped finds no difference."""
    undone(shop)
    engine = opened(Limits())
    declare(engine, shop, "copy there")
    engine.refresh_capture("c")
    for step in range(1, 100):
        moved(shop, f"note {step}")
        try:
            with killed_at(step) as steps:
                engine.refresh_capture("c")
            break
        except Killed:
            assert steps() == step
        engine.close()
        engine = opened(Limits())
        undone(shop)
        engine.refresh_capture("c")
        assert here(engine) == beside.rows()
    assert step > 8
    assert here(engine) == beside.rows()


@pytest.mark.parametrize("point", ["commit.begin", "commit.before_catalog", "commit.after_catalog"])
def test_killed_in_the_commit(
    opened: Opened, copied: Engine, shop: Shop, beside: Writer, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone(shop)
    copied.refresh_capture("c")
    moved(shop, "shipped")
    killed_in_refresh(copied, point, monkeypatch)
    copied.close()
    copied = opened(Limits())
    assert ask(shop, "SELECT * FROM cq_copy_c_staged")
    undone(shop)
    was = here(copied)
    copied.refresh_capture("c")
    assert here(copied) == beside.rows()
    assert (was == beside.rows()) == (point != "commit.after_catalog")
    assert not ask(shop, "SELECT * FROM cq_copy_c_staged")


def test_killed_while_all_rows_are_compared(opened: Opened, shop: Shop, beside: Writer) -> None:
    """More changes than the driver takes: the copy is made anew, and whoever is killed meanwhile does it once more."""
    undone(shop)
    limits = Limits(pending_rows=2, small_rows=-1, apply_rows=2)
    engine = opened(limits)
    declare(engine, shop, "copy there")
    engine.refresh_capture("c")
    for step in range(1, 100):
        moved(shop, f"note {step}")
        try:
            with killed_at(step):
                assert engine.refresh_capture("c").rows_read == len(beside.rows())
            break
        except Killed:
            engine.close()
        engine = opened(limits)
        undone(shop)
        engine.refresh_capture("c")
        assert here(engine) == beside.rows()
    assert step > 10
    assert here(engine) == beside.rows()


def test_a_history_with_crashes(opened: Opened, copied: Engine, shop: Shop, beside: Writer) -> None:
    """Of every second tick some step is its last one; the source goes on, now and then to where it was before."""
    crashes = 0
    for round_number in range(16):
        before = ask(shop, "SELECT id, region, price, note, ts, gone, version FROM orders")
        beside.transaction()
        with suppress(Killed), killed_at(beside.dice.randint(1, 24)):
            copied.refresh_capture("c")
            crashes -= 1
        crashes += 1
        if round_number % 4 == 0:
            copied.close()
            copied = opened(Limits())
        if beside.dice.random() < 0.5:
            shop.run("DELETE FROM orders")
            shop.insert("orders", before)
        else:
            beside.transaction()
        copied.refresh_capture("c")
        assert here(copied) == beside.rows()
        assert contents(shop, "cq_copy_c") == contents(shop, "orders")
    assert crashes > 3


def contents(shop: Shop, name: str) -> list[Any]:
    return sorted(ask(shop, f"SELECT id, region, price, note FROM {name}"))


def test_partial_tables_get_complete_changes(opened: Opened, shop: Shop, beside: Writer) -> None:
    """Nothing is kept of the rows here, and every change says what the row was."""
    undone(shop)
    engine = opened(Limits(pending_rows=4))
    engine.execute(f"{TABLE} WITHOUT SNAPSHOT")
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    engine.execute(CAPTURE)
    engine.execute("CREATE DESTINATION there TYPE table WITH (mode = 'merge')")
    engine.execute(
        "CREATE CONTINUOUS QUERY v COMPUTE DELTA ON DEMAND DESTINATION there AS SELECT id, note FROM t WHERE note IS NOT NULL"
    )
    for step in range(5):
        done = engine.refresh_capture("c")
        engine.refresh("v")
        engine.drain()
        found = sorted(map(tuple, engine.execute("SELECT id, note FROM there").fetchall()))
        assert found == [(row[0], row[3]) for row in beside.rows() if row[3] is not None]
        if step == 1:
            last = engine.execute(
                f"SELECT id, note, _change_type FROM t CHANGES FROM VERSION {done.commit_versions[-1]}"
            )
            assert sorted(map(tuple, last.fetchall())) == [
                (1001, "first", "update_preimage"), (1001, "second", "update_postimage"),
                (1002, "first", "update_preimage"), (1002, "second", "update_postimage"),
                (2001, "second", "insert"),
            ]  # fmt: skip
        if step == 0:
            moved(shop, "second")
        else:
            beside.transaction()
            shop.run(f"DELETE FROM orders WHERE id = {2001 if step == 2 else 1001}")


def test_who_writes_is_not_kept_waiting(copied: Engine, shop: Shop, beside: Writer) -> None:
    if shop.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    before = beside.rows()
    with shop.database.write() as session:
        session.connection.exec_driver_sql("UPDATE orders SET note = 'not yet'")
        session.connection.exec_driver_sql("INSERT INTO orders (id, gone) VALUES (5000, 0)")
        assert copied.refresh_capture("c").rows_read == 0
        assert here(copied) == before
    copied.refresh_capture("c")
    assert here(copied) == beside.rows() != before


def test_two_processes(copied: Engine, shop: Shop, beside: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose differences were forgotten by somebody else ships nobody's."""
    shop.run("UPDATE orders SET note = 'one'")
    shipped = copying._shipped

    def late(tick: Any, asked: Any, copy: Any, stands: str) -> Any:
        shop.run("UPDATE orders SET note = 'other'")
        copying._stage(tick, asked, copy, tick.position)
        return shipped(tick, asked, copy, stands)

    with monkeypatch.context() as patched:
        patched.setattr(copying, "_shipped", late)
        with pytest.raises(ConflictError, match="another process"):
            copied.refresh_capture("c")
    copied.refresh_capture("c")
    assert here(copied) == beside.rows()
