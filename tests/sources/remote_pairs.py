"""Two tables of one source, and a query over them that stays where they are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from cq_engine import Engine
from tests.sources.shops import TEXT, Shop

Bag = Counter[tuple[Any, ...]]
QUERY = "SELECT a.id, b.word, x.id AS other FROM a JOIN b ON a.b = b.id JOIN a AS x ON x.b = b.id"
LOG = "cq_log_q_remote"


def with_two(shop: Shop) -> Iterator[Shop]:
    text = TEXT[shop.kind] if shop.kind != "mariadb" else "VARCHAR(20)"
    for name in ("a", "b"):
        shop.run(f"DROP TABLE IF EXISTS {name}")
    shop.run(f"CREATE TABLE a (id INT NOT NULL PRIMARY KEY, b INT, note {text})")
    shop.run(f"CREATE TABLE b (id INT NOT NULL PRIMARY KEY, word {text})")
    shop.run("INSERT INTO a (id, b) VALUES (1, 1), (2, 1), (3, 2), (4, NULL)")
    shop.run("INSERT INTO b (id, word) VALUES (1, 'one'), (2, 'two')")
    yield shop
    cascade = " CASCADE" if shop.kind == "postgresql" else ""
    for name in ("a", "b", LOG):
        shop.run(f"DROP TABLE IF EXISTS {name}{cascade}")
    if shop.kind == "postgresql":
        shop.run(f"DROP FUNCTION IF EXISTS {LOG}() CASCADE")


def declare(engine: Engine, shop: Shop) -> None:
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    for name in ("a", "b"):
        engine.execute(f"CREATE TABLE {name} REMOTE FROM shop TABLE '{name}' USING LOG WITH (install = true)")


def create(engine: Engine, level: str = "COMPLETE", query: str = QUERY) -> str:
    return engine.execute(f"CREATE CONTINUOUS QUERY q CONSISTENCY {level} ON DEMAND AS {query}").message


def there(shop: Shop) -> Bag:
    """The query at the source, in its SQL."""
    with shop.database.connect() as session:
        return Counter(tuple(row) for row in session.connection.exec_driver_sql(QUERY))


def here(engine: Engine) -> Bag:
    return Counter(engine.execute("SELECT * FROM q").fetchall())


def installed(shop: Shop) -> int:
    queries = {
        "sqlite": "SELECT count(*) FROM sqlite_master WHERE name LIKE 'cq_log%'",
        "postgresql": "SELECT (SELECT count(*) FROM pg_class WHERE relname LIKE 'cq_log%')"
        " + (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'cq_log%')"
        " + (SELECT count(*) FROM pg_proc WHERE proname LIKE 'cq_log%')",
        "mariadb": "SELECT (SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'cq_log%')"
        " + (SELECT count(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE())",
    }
    with shop.database.connect() as session:
        sql = queries[shop.kind].replace("%", shop.database.server.percent)
        return int(session.connection.exec_driver_sql(sql).scalar_one())


CHANGES = [
    "UPDATE a SET b = {other} WHERE id = {n}",
    "DELETE FROM a WHERE id = {n}",
    "UPDATE a SET id = {n} + 10 WHERE id = {n} AND NOT EXISTS (SELECT 1 FROM (SELECT id FROM a) AS o WHERE o.id = {n} + 10)",
    "INSERT INTO a (id, b) SELECT {n}, {other} WHERE NOT EXISTS (SELECT 1 FROM a WHERE id = {n})",
    "UPDATE b SET word = 'w{n}' WHERE id = {other}",
    "DELETE FROM b WHERE id = {other}",
    "INSERT INTO b (id, word) SELECT {other}, 'new' WHERE NOT EXISTS (SELECT 1 FROM b WHERE id = {other})",
]


def change(shop: Shop, dice: random.Random) -> None:
    shop.run(dice.choice(CHANGES).format(n=dice.randint(1, 5), other=dice.randint(1, 3)))
