"""Tables that stay at PostgreSQL, followed by its own log: what a query has is what the sources had, and what cannot be followed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from cq_engine import AnalysisError, CatalogError, Engine, SourceError, SourceUnavailableError
from cq_engine.core.limits import Limits
from cq_engine.sources.remote.log import GapError
from cq_engine.sources.sweep.model import Consistency
from tests import postgres
from tests.sources.decodings import ask, drop_all, slot_of, there
from tests.sources.remote_sweeps import Died, Sweeps
from tests.sources.remote_worlds import World, possible
from tests.sources.shops import Shop

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def shops(postgres_server: str) -> tuple[Shop, Shop]:
    made = [Shop("postgresql", postgres.fresh(postgres_server)) for _ in range(2)]
    return made[0], made[1]


@pytest.fixture
def world(shops: tuple[Shop, Shop], request: pytest.FixtureRequest) -> Iterator[World]:
    """Two of the sources are one database."""
    one, other = shops
    made = World((one, other, one), random.Random(request.node.name), f"cq_{slot_of(one)}")
    made.create()
    yield made
    for shop in shops:
        drop_all(shop)
    for name, shop in zip("rst", made.shops):
        shop.run(f"DROP TABLE {name}")


ADVANCE = (
    "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots"
    " WHERE database = current_database()"
)


def settle(sweeps: Sweeps) -> None:
    """Ticks until nothing comes any more."""
    before = -1
    while before < len(sweeps.seen):
        before = len(sweeps.seen)
        sweeps.tick()


@pytest.mark.parametrize("level", ["COMPLETE", "STRONG", "CONVERGENT"])
def test_it_has_what_the_sources_had(world: World, level: str) -> None:
    """Also where the process is killed with a delta that is not durable, or durable and not told to the server."""
    sweeps = Sweeps(world, Consistency(level))
    sweeps.start()
    begin = world.ends
    with world.at_work() as go:
        for dies in ("", "gathered", "committed", "", "committed"):
            go(3)
            with suppress(Died):
                sweeps.tick(dies)
    settle(sweeps)
    assert possible(world, sweeps.seen, complete=level == "COMPLETE", begin=begin) == ""
    assert len(sweeps.seen) > 2
    sweeps.end()
    assert [name for shop in world.shops for name in there(shop)] == []


def test_a_server_that_is_killed_meanwhile() -> None:
    with postgres.server() as url:
        shop = Shop("postgresql", postgres.fresh(url))
        world = World((shop, shop, shop), random.Random(5), "cq")
        world.create()
        sweeps = Sweeps(world, Consistency.COMPLETE)
        sweeps.start()
        begin = world.ends
        for dies in ("gathered", "committed", ""):
            for place in (0, 1, 2, 2, 1):
                world.transaction(place)
            with suppress(Died):
                sweeps.tick(dies)
            world.transaction(0)
            killed(shop)
            world.transaction(1)
        settle(sweeps)
        assert possible(world, sweeps.seen, complete=True, begin=begin) == ""
        sweeps.end()


def killed(shop: Shop) -> None:
    """A process of the server is killed: all end, and it recovers from its log."""
    with suppress(SourceError), shop.database.write() as session:
        (pid,) = session.connection.exec_driver_sql("SELECT pg_backend_pid()").one()
        os.kill(pid, signal.SIGKILL)
        session.connection.exec_driver_sql("SELECT 1")
    for _ in range(300):
        with suppress(SourceUnavailableError):
            shop.run("SELECT 1")
            return
        time.sleep(0.1)
    pytest.fail("the server does not come back")


def test_transactions_that_are_open_hold_up_nobody(world: World) -> None:
    """What one of them has written is in the log, on a page that is not flushed; it comes when it is committed, also if another
    one began and ended meanwhile."""
    for place in range(3):
        world.shops[place].run(f"DELETE FROM {'rst'[place]}")
    sweeps = Sweeps(world, Consistency.COMPLETE)
    sweeps.start()
    world.shops[1].run("INSERT INTO s VALUES (1, 'a', 1)")
    world.shops[2].run("INSERT INTO t VALUES (1, 'a', 1)")
    with world.shops[0].database.write() as session:
        session.connection.exec_driver_sql("INSERT INTO r VALUES (1, 1, 'open')")
        session.connection.exec_driver_sql("SAVEPOINT one")
        session.connection.exec_driver_sql("INSERT INTO r VALUES (4, 1, 'within')")
        world.shops[0].run("INSERT INTO r VALUES (2, 1, 'meanwhile')")
        sweeps.tick()
        sweeps.tick()
        assert sweeps.seen == [Counter(), Counter([(2, 1, 1, "meanwhile", "a", 1)])]
    world.shops[0].run("DELETE FROM r WHERE a = 2")
    settle(sweeps)
    rest = Counter([(1, 1, 1, "open", "a", 1), (4, 1, 1, "within", "a", 1)])
    assert sweeps.seen[2:] == [rest + Counter([(2, 1, 1, "meanwhile", "a", 1)]), rest]
    sweeps.end()


def test_what_the_log_does_not_tell(world: World) -> None:
    """All rows are to be read once more where a table was emptied, the slot was moved on by somebody, or old rows are not logged."""
    sweeps = Sweeps(world, Consistency.COMPLETE)
    sweeps.start()
    for spoil in (
        "TRUNCATE r",
        ADVANCE,
        "ALTER TABLE r REPLICA IDENTITY DEFAULT; UPDATE r SET x = 'other'; ALTER TABLE r REPLICA IDENTITY FULL",
    ):
        world.shops[0].run("INSERT INTO r VALUES (20, 1, 'a')")
        for sql in spoil.split("; "):
            world.shops[0].run(sql)
        world.shops[0].run("INSERT INTO r VALUES (21, 1, 'a')")
        with pytest.raises(GapError):
            sweeps.tick()
        with ExitStack() as stack:
            sweeps.read_all(sweeps.opened(stack))
        sweeps.tick()
        world.shops[0].run("DELETE FROM r WHERE a IN (20, 21)")
        sweeps.tick()
    sweeps.most = 5
    world.shops[0].run("INSERT INTO r SELECT n, 1, 'a' FROM generate_series(30, 35) AS n")
    with pytest.raises(GapError):
        sweeps.tick()
    sweeps.end()


# ---------------------------------------------------------------- by statements


@pytest.fixture
def engine(opened: Callable[..., Engine], shops: tuple[Shop, Shop]) -> Iterator[Engine]:
    """Tables `a` with all of its old rows in the log, and `b` with the keys only."""
    shop = shops[0]
    shop.run("CREATE TABLE a (id INT PRIMARY KEY, b INT)")
    shop.run("ALTER TABLE a REPLICA IDENTITY FULL")
    shop.run("CREATE TABLE b (id INT PRIMARY KEY, word text)")
    shop.run("INSERT INTO a VALUES (1, 1), (2, 2)")
    shop.run("INSERT INTO b VALUES (1, 'one'), (2, 'two')")
    made = opened(Limits())
    made.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    for name in ("a", "b"):
        made.execute(
            f"CREATE TABLE {name} REMOTE FROM shop TABLE '{name}' USING LOG WITH (slot = 'cq_{slot_of(shop)}')"
        )
    yield made
    drop_all(shop)
    shop.run("DROP TABLE a, b")


CREATE = (
    "CREATE CONTINUOUS QUERY q CONSISTENCY COMPLETE ON DEMAND AS SELECT a.id, {} FROM a JOIN b ON a.b = b.id"
)


def test_a_query_comes_and_goes_with_its_slot(engine: Engine, shops: tuple[Shop, Shop]) -> None:
    shop = shops[0]
    with pytest.raises(AnalysisError, match="as they were before") as refused:
        engine.execute(CREATE.format("b.word"))
    assert "ALTER TABLE" in (refused.value.hint or "")
    assert there(shop) == []
    said = engine.execute(CREATE.format("b.id AS other")).message
    name = f"cq_{slot_of(shop)}_q_remote"
    assert f"slot {name} and publication {name} are made" in said
    assert there(shop) == [name, name]
    shop.run("UPDATE a SET b = 2 WHERE id = 1")
    shop.run("UPDATE b SET id = 3, word = 'three' WHERE id = 2")
    shop.run("DELETE FROM b WHERE id = 1")
    shop.run("UPDATE a SET b = 3 WHERE id = 2")
    engine.refresh("q")
    assert engine.execute("SELECT * FROM q").fetchall() == [(2, 3)]
    (row,) = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()
    assert '{"read": {"shop": "transactions before ' in row["position"]
    shop.run("TRUNCATE a")
    engine.refresh("q")
    assert engine.execute("SELECT * FROM q").fetchall() == []
    drop_all(shop)
    with pytest.raises(SourceError, match="is not as it was"):
        engine.refresh("q")
    shop.run("INSERT INTO a VALUES (7, 3)")
    engine.execute("ALTER CAPTURE q_remote RESUME")
    engine.refresh("q")
    assert engine.execute("SELECT * FROM q").fetchall() == [(7, 3)]
    engine.execute("DROP CONTINUOUS QUERY q")
    assert there(shop) == []


def test_what_is_refused(engine: Engine, shops: tuple[Shop, Shop]) -> None:
    shop = shops[0]
    one = "CREATE TABLE c REMOTE FROM shop TABLE 'b' USING LOG WITH (slot = 'cq_x', install = true)"
    with pytest.raises(AnalysisError, match="slot and install are two logs"):
        engine.execute(one)
    with pytest.raises(AnalysisError, match="has to say that a log may be installed"):
        engine.execute("CREATE TABLE c REMOTE FROM shop TABLE 'b' USING LOG")
    engine.execute("DROP TABLE b")
    engine.execute("CREATE TABLE b REMOTE FROM shop TABLE 'b' USING LOG WITH (install = true)")
    with pytest.raises(AnalysisError, match="are followed by two logs"):
        engine.execute(CREATE.format("b.id AS other"))
    engine.execute("DROP TABLE b")
    engine.execute(f"CREATE TABLE b REMOTE FROM shop TABLE 'b' USING LOG WITH (slot = 'cq_{slot_of(shop)}')")
    ask(
        shop,
        f"SELECT 1 FROM pg_create_logical_replication_slot('cq_{slot_of(shop)}_q_remote', 'pgoutput')",
    )
    with pytest.raises(AnalysisError, match="there is a slot"):
        engine.execute(CREATE.format("b.id AS other"))
    with pytest.raises(CatalogError):
        engine.execute("DROP CONTINUOUS QUERY q")
