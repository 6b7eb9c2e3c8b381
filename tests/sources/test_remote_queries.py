"""Continuous queries over tables that stay at SQLite, PostgreSQL and MariaDB: what they have is what the sources had."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cq_engine import Engine, SourceUnavailableError
from cq_engine.core.limits import Limits
from tests.brokers import Server
from tests.sources.remote_worlds import QUERY, World, possible, states
from tests.sources.shops import Shop

pytestmark = [pytest.mark.postgres, pytest.mark.mariadb]


@pytest.fixture(scope="module")
def shops(request: pytest.FixtureRequest, places: Callable[[], Path]) -> tuple[Shop, Shop, Shop]:
    from tests import mariadb, postgres

    return (
        Shop("sqlite", f"sqlite:///{places()}"),
        Shop("postgresql", postgres.fresh(request.getfixturevalue("postgres_server"))),
        Shop("mariadb", mariadb.fresh(request.getfixturevalue("mariadb_server"))),
    )


@pytest.fixture
def world(shops: tuple[Shop, Shop, Shop], request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(shops, random.Random(request.node.name))
    made.create()
    yield made
    for name, shop in zip("rst", shops):
        shop.run(f"DROP TABLE {name}")
        shop.run(f"DROP TABLE IF EXISTS cq_log_v_remote{' CASCADE' if shop.kind == 'postgresql' else ''}")
        if shop.kind == "postgresql":
            shop.run("DROP FUNCTION IF EXISTS cq_log_v_remote() CASCADE")


@pytest.mark.parametrize(
    ("level", "seed"), [("COMPLETE", 1), ("COMPLETE", 2), ("STRONG", 2), ("CONVERGENT", 1)]
)
def test_it_has_what_the_sources_had(
    opened: Callable[..., Engine], world: World, level: str, seed: int
) -> None:
    del seed
    engine = opened(Limits())
    world.declare(engine)
    begin = world.ends
    engine.execute(f"CREATE CONTINUOUS QUERY v CONSISTENCY {level} ON DEMAND START FROM SNAPSHOT AS {QUERY}")
    with world.at_work() as go:
        for _ in range(6):
            go(4)
            engine.refresh("v")
    engine.refresh("v")
    seen = states(engine)
    assert possible(world, seen, complete=level == "COMPLETE", begin=begin) == ""
    assert len(seen) > 2  # while they wrote, too
    engine.execute("DROP CONTINUOUS QUERY v")


def test_a_server_that_is_killed_meanwhile(
    opened: Callable[..., Engine], world: World, mariadb_server: Server
) -> None:
    engine = opened(Limits())
    world.declare(engine)
    begin = world.ends
    engine.execute(f"CREATE CONTINUOUS QUERY v CONSISTENCY COMPLETE ON DEMAND START FROM SNAPSHOT AS {QUERY}")
    for place in (0, 1, 2, 2, 1):
        world.transaction(place)
    mariadb_server.kill()
    with pytest.raises(SourceUnavailableError):
        engine.refresh("v")
    world.transaction(0)
    mariadb_server.start()
    world.transaction(2)
    engine.refresh("v")
    assert possible(world, states(engine), complete=True, begin=begin) == ""
    engine.execute("DROP CONTINUOUS QUERY v")
