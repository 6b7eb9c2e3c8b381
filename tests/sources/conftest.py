"""What tests of sources share: a database of each kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.sources import tick
from cq_engine.sources.sql.parts import Parts
from cq_engine.sources.whole import Whole
from tests.sources import copies
from tests.sources.decodings import drop_all
from tests.sources.shops import Shop
from tests.sources.trigger_logs import installed
from tests.sources.writers import Writer, declare, here


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes an empty file for SQLite."""

    def made() -> Path:
        file = tmp_path_factory.mktemp("shop") / "shop.db"
        file.touch()
        return file

    return made


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
def shop(request: pytest.FixtureRequest, places: Callable[[], Path]) -> Shop:
    """An empty database of each kind, for the tests of a module."""
    from tests import mariadb, postgres

    fresh: dict[str, Callable[[Any], str]] = {"postgresql": postgres.fresh, "mariadb": mariadb.fresh}
    if request.param == "sqlite":
        return Shop("sqlite", f"sqlite:///{places()}")
    server = request.getfixturevalue(f"{'postgres' if request.param == 'postgresql' else 'mariadb'}_server")
    return Shop(request.param, fresh[request.param](server))


@pytest.fixture
def opened(once: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines = []

    def connect(limits: Limits) -> Engine:
        engines.append(cq_engine.connect(tmp_path / "warehouse", spark=once, scheduler=False, limits=limits))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.close()


@pytest.fixture
def written(shop: Shop) -> Iterator[Writer]:
    """A table with rows, and who writes to it; nothing is installed before and after."""
    for left in installed(shop):
        pytest.fail(f"{left} is left of another test")
    writer = Writer(shop, random.Random(7), "log")
    writer.create()
    for _ in range(6):
        writer.transaction()
    yield writer
    kind = {"postgresql": "TABLE IF EXISTS cq_log_c CASCADE", "sqlite": "TABLE IF EXISTS cq_log_c"}
    shop.run(f"DROP {kind.get(shop.kind, 'TABLE IF EXISTS cq_log_c')}")
    shop.run("DROP TABLE IF EXISTS orders")
    if shop.kind == "postgresql":
        shop.run("DROP FUNCTION IF EXISTS cq_log_c() CASCADE")


@pytest.fixture
def orders(shop: Shop) -> Iterator[Writer]:
    """A table of PostgreSQL with rows, and who writes to it."""
    writer = Writer(shop, random.Random(3), "log")
    writer.create()
    for _ in range(15):
        writer.transaction()
    yield writer
    drop_all(shop)
    shop.run("DROP TABLE IF EXISTS orders CASCADE")


@pytest.fixture
def spreads(monkeypatch: pytest.MonkeyPatch) -> list[Parts]:
    """The parts that executors were given; the driver itself reads nothing."""
    given: list[Parts] = []
    spread = tick.spread

    def noted(transaction: Any, table: Any, parts: Parts, watch: Any) -> int:
        given.append(parts)
        return spread(transaction, table, parts, watch)

    monkeypatch.setattr(tick, "spread", noted)
    monkeypatch.setattr(Whole, "__iter__", lambda self: pytest.fail("the driver reads"))
    return given


@pytest.fixture
def beside(shop: Shop) -> Iterator[Writer]:
    """A table with rows, and who writes to it; there is no copy at the source before and after."""
    for left in copies.installed(shop):
        pytest.fail(f"{left} is left of another test")
    writer = Writer(shop, random.Random(11), "copy there")
    writer.create()
    for _ in range(8):
        writer.transaction()
    yield writer
    for name in ["orders", *copies.NAMES]:
        shop.run(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def copied(opened: Callable[..., Engine], shop: Shop, beside: Writer) -> Engine:
    """An engine that has captured this table, with the copy at the source."""
    engine = opened(Limits())
    declare(engine, shop, "copy there")
    engine.refresh_capture("c")
    assert here(engine) == beside.rows()
    return engine
