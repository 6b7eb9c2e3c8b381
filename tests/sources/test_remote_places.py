"""Continuous queries over tables in several schemas of a database, and over several sources that are one database."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from cq_engine import Engine
from cq_engine.core.limits import Limits
from tests.sources.remote_pairs import change, create, declare, here, installed, there, with_two
from tests.sources.shops import Shop


@pytest.fixture
def two(shop: Shop) -> Iterator[Shop]:
    yield from with_two(shop)


@pytest.mark.parametrize("level", ["COMPLETE", "STRONG"])
def test_two_sources_are_one_database(opened: Callable[..., Engine], two: Shop, level: str) -> None:
    """Also where both have the same table."""
    engine = opened(Limits())
    declare(engine, two)
    engine.execute(f"CREATE SOURCE again TYPE {two.kind} WITH (url = '{two.url}')")
    log = "USING LOG WITH (install = true)"
    for name in ("a", "b"):
        engine.execute(f"CREATE TABLE {name}_again REMOTE FROM again TABLE '{name}' {log}")
    text = "SELECT a.id, b.word, x.id AS other FROM a JOIN b_again AS b ON a.b = b.id JOIN a_again AS x ON x.b = b.id"
    create(engine, level, text)
    dice = random.Random(level)
    for _ in range(4):
        for _ in range(3):
            change(two, dice)
        engine.refresh("q")
        assert here(engine) == there(two)
    engine.execute("DROP CONTINUOUS QUERY q")
    assert installed(two) == 0


def test_two_schemas_of_one_source(opened: Callable[..., Engine], two: Shop) -> None:
    if two.kind == "sqlite":
        pytest.skip("a file of SQLite has one schema")
    engine, other = opened(Limits()), f"other_{two.url.rpartition('_')[2]}"
    two.run(f"CREATE SCHEMA {other}")
    two.run(f"CREATE TABLE {other}.c (id INT NOT NULL PRIMARY KEY, b INT)")
    declare(engine, two)
    engine.execute(f"CREATE TABLE c REMOTE FROM shop TABLE '{other}.c' USING LOG WITH (install = true)")
    create(
        engine,
        "COMPLETE",
        "SELECT a.id, b.word, c.id AS other FROM a JOIN b ON a.b = b.id JOIN c ON c.b = b.id",
    )
    two.run(f"INSERT INTO {other}.c VALUES (1, 1), (2, 2)")
    two.run("UPDATE b SET word = 'uno' WHERE id = 1")
    engine.refresh("q")
    assert here(engine) == Counter([(1, "uno", 1), (2, "uno", 1), (3, "two", 2)])
    two.run(f"UPDATE {other}.c SET b = 3 - b")
    engine.refresh("q")
    assert here(engine) == Counter([(1, "uno", 2), (2, "uno", 2), (3, "two", 1)])
    engine.execute("DROP CONTINUOUS QUERY q")
    assert installed(two) == 0
    two.run(f"DROP SCHEMA {other}{' CASCADE' if two.kind == 'postgresql' else ''}")
