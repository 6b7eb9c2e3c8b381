"""USING COPY WITH (at = 'source'): the copy beside the table, whoever is killed, restored or in the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cq_engine import Engine
from cq_engine.core import faults
from cq_engine.core.errors import ConflictError, SourceError
from cq_engine.core.limits import Limits
from cq_engine.sources.copies import capture as copying
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.model import Statement
from tests.sources.shops import Shop
from tests.sources.writers import Writer, declare, here

Opened = Callable[[Limits], Engine]
CAPTURE = "CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING COPY WITH (at = 'source') ON DEMAND"
NAMES = ["cq_copy_c", "cq_copy_c_staged", "cq_copy_c_state"]


class Killed(BaseException):
    """In the place of a process that ends."""


@pytest.fixture
def writer(shop: Shop) -> Iterator[Writer]:
    for name in NAMES:
        shop.run(f"DROP TABLE IF EXISTS {name}")
    made = Writer(shop, random.Random(11), "copy there")
    made.create()
    for _ in range(8):
        made.transaction()
    yield made
    for name in ["orders", *NAMES]:
        shop.run(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def engine(opened: Opened, shop: Shop, writer: Writer) -> Engine:
    made = opened(Limits())
    declare(made, shop, "copy there")
    made.refresh_capture("c")
    assert here(made) == writer.rows()
    return made


def ask(shop: Shop, sql: str) -> list[tuple[Any, ...]]:
    with shop.database.connect() as session:
        return session.rows(Statement(sql.replace("%", shop.database.server.percent)))


def installed(shop: Shop) -> list[str]:
    queries = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'cq_copy%'",
        "postgresql": "SELECT CAST(relname AS text) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'cq_copy%'",
        "mariadb": "SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name LIKE 'cq_copy%'",
    }
    return sorted(name for (name,) in ask(shop, queries[shop.kind]))


def failed(engine: Engine, match: str) -> str:
    """Why a tick stops the capture."""
    with pytest.raises(SourceError, match=match) as caught:
        engine.refresh_capture("c")
    assert engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]["state"] == "FAILED"
    return str(caught.value)


def resumed(engine: Engine, writer: Writer) -> None:
    """After RESUME replica and source are the same, and stay so."""
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    writer.transaction()
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


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


def test_only_what_has_changed_travels(engine: Engine, shop: Shop, writer: Writer) -> None:
    undone(shop)
    assert engine.refresh_capture("c").rows_read == 2
    assert engine.refresh_capture("c").rows_read == 0
    shop.run("UPDATE orders SET version = version + 1, ts = NULL")  # no pertinent column
    assert engine.refresh_capture("c").rows_read == 0
    moved(shop, "second")
    done = engine.refresh_capture("c")
    assert (done.rows_read, len(done.commit_versions)) == (3, 1)
    assert here(engine) == writer.rows()
    before = engine.catalog.newest_version
    found = engine.execute(f"SELECT id, note, _change_type FROM t CHANGES FROM VERSION {before}").fetchall()
    assert sorted(map(tuple, found)) == [
        (1001, "first", "update_preimage"), (1001, "second", "update_postimage"),
        (1002, "first", "update_preimage"), (1002, "second", "update_postimage"), (2001, "second", "insert"),
    ]  # fmt: skip


def test_killed_at_every_step(opened: Opened, shop: Shop, writer: Writer) -> None:
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
        assert here(engine) == writer.rows()
    assert step > 8
    assert here(engine) == writer.rows()


@pytest.mark.parametrize("point", ["commit.begin", "commit.before_catalog", "commit.after_catalog"])
def test_killed_in_the_commit(
    opened: Opened, engine: Engine, shop: Shop, writer: Writer, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone(shop)
    engine.refresh_capture("c")
    moved(shop, "shipped")

    def kill(name: str, *_: object) -> None:
        if name == point:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", kill)
        with pytest.raises(Killed):
            engine.capturing.refresh("c")
    engine.close()
    engine = opened(Limits())
    assert ask(shop, "SELECT * FROM cq_copy_c_staged")
    undone(shop)
    was = here(engine)
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    assert (was == writer.rows()) == (point != "commit.after_catalog")
    assert not ask(shop, "SELECT * FROM cq_copy_c_staged")


def test_killed_while_all_rows_are_compared(opened: Opened, shop: Shop, writer: Writer) -> None:
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
                assert engine.refresh_capture("c").rows_read == len(writer.rows())
            break
        except Killed:
            engine.close()
        engine = opened(limits)
        undone(shop)
        engine.refresh_capture("c")
        assert here(engine) == writer.rows()
    assert step > 10
    assert here(engine) == writer.rows()


def test_who_writes_is_not_kept_waiting(engine: Engine, shop: Shop, writer: Writer) -> None:
    if shop.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    before = writer.rows()
    with shop.database.write() as session:
        session.connection.exec_driver_sql("UPDATE orders SET note = 'not yet'")
        session.connection.exec_driver_sql("INSERT INTO orders (id, gone) VALUES (5000, 0)")
        assert engine.refresh_capture("c").rows_read == 0
        assert here(engine) == before
    engine.refresh_capture("c")
    assert here(engine) == writer.rows() != before


def test_two_processes(engine: Engine, shop: Shop, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
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
            engine.refresh_capture("c")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
