"""Captures of databases, method by method and server by server: the replica beside the source, whoever writes there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cq_engine import Engine
from cq_engine.core.limits import Limits
from tests.sources.shops import Shop
from tests.sources.writers import METHODS, Writer, declare, here


@pytest.mark.parametrize("method", METHODS)
def test_the_replica_is_the_source(opened: Callable[..., Engine], shop: Shop, method: str) -> None:
    follow(opened(Limits()), shop, method, ticks=4)


@pytest.mark.parametrize("method", ["copy", "copy there", "flag where", "checksum", "checked ranges"])
def test_many_rows_go_through_files(
    opened: Callable[..., Engine], places: Callable[[], Path], method: str
) -> None:
    limits = Limits(pending_rows=5, small_rows=-1)
    follow(opened(limits), Shop("sqlite", f"sqlite:///{places()}"), method, ticks=3)


def follow(engine: Engine, shop: Shop, method: str, *, ticks: int) -> None:
    """Compares replica and source after every tick."""
    writer = Writer(shop, random.Random(f"{shop.kind} {method}"), method)
    writer.create()
    for _ in range(5):
        writer.transaction()
    declare(engine, shop, method)
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    for _ in range(ticks):
        for _ in range(writer.dice.randint(1, 4)):
            writer.transaction()
        engine.refresh_capture("c")
        assert here(engine) == writer.rows()
    before = engine.catalog.newest_version
    engine.refresh_capture("c")
    assert engine.catalog.newest_version == before  # nothing has changed, nothing is committed
    engine.execute("DROP CAPTURE c")


@pytest.mark.parametrize("method", ["copy", "copy there", "flag", "checksum", "checked ranges"])
def test_while_others_write(opened: Callable[..., Engine], shop: Shop, method: str) -> None:
    engine, writer = opened(Limits()), Writer(shop, random.Random(5), method)
    writer.create()
    for _ in range(10):
        writer.transaction()
    declare(engine, shop, method)
    with writer.at_work():
        for _ in range(3):
            engine.refresh_capture("c")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    rows = (
        engine.execute("SELECT id, region, price, note FROM t CHANGES FROM VERSION 1").to_arrow().to_pylist()
    )
    assert {tuple(row.values()) for row in rows} <= writer.ever
    engine.execute("DROP CAPTURE c")
