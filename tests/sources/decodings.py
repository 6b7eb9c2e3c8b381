"""What tests of captures by logical decoding share: their statements, and what they leave at a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cq_engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.sources.sql.model import Statement
from tests.sources.shops import Shop
from tests.sources.writers import TABLE

Opened = Callable[[Limits], Engine]
SLOT = "CREATE CAPTURE c INTO t FROM shop TABLE 'orders' {} USING LOG WITH (slot = 'cq_{}'{}) ON DEMAND"


def drop_all(shop: Shop) -> None:
    ask(
        shop,
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()",
    )
    for (name,) in ask(shop, "SELECT pubname::text FROM pg_publication"):
        shop.run(f"DROP PUBLICATION {name}")


def ask(shop: Shop, sql: str) -> list[tuple[Any, ...]]:
    with shop.database.write() as session:
        return session.rows(Statement(sql))


def there(shop: Shop) -> list[str]:
    """The slots and publications of the database."""
    sql = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
    return [name for (name,) in ask(shop, f"{sql} UNION ALL SELECT pubname::text FROM pg_publication")]


def slot_of(shop: Shop) -> str:
    """A name that no database of the server has."""
    return shop.url.rpartition("_")[2]


def declare(engine: Engine, shop: Shop, where: str = "", more: str = "", table: str = TABLE) -> str:
    engine.execute(table)
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    return engine.execute(SLOT.format(where, slot_of(shop), more)).message


def confirmed(shop: Shop) -> str:
    return str(
        ask(
            shop,
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()",
        )
    )
