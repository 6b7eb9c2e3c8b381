"""What tests of captures by triggers share: their statements, and what they leave at a source."""

from __future__ import annotations

from collections.abc import Callable

from cq_engine import Engine
from cq_engine.core.limits import Limits
from tests.sources.shops import Shop
from tests.sources.writers import TABLE

Opened = Callable[[Limits], Engine]
LOG = "CREATE CAPTURE c INTO t FROM shop TABLE 'orders' {} USING LOG WITH (install = true{}) ON DEMAND"


def declare(engine: Engine, shop: Shop, where: str = "", more: str = "") -> str:
    engine.execute(TABLE)
    engine.execute(f"CREATE SOURCE shop TYPE {shop.kind} WITH (url = '{shop.url}')")
    return engine.execute(LOG.format(where, more)).message


def installed(shop: Shop) -> list[str]:
    """What there is at the source of logs, triggers and functions."""
    queries = {
        "sqlite": "SELECT name FROM sqlite_master WHERE name LIKE 'cq_log%'",
        "postgresql": "SELECT CAST(relname AS text) FROM pg_class WHERE relname LIKE 'cq_log%' UNION ALL"
        " SELECT CAST(tgname AS text) FROM pg_trigger WHERE tgname LIKE 'cq_log%' UNION ALL"
        " SELECT CAST(proname AS text) FROM pg_proc WHERE proname LIKE 'cq_log%'",
        "mariadb": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
        " AND table_name LIKE 'cq_log%' UNION ALL SELECT trigger_name FROM information_schema.triggers"
        " WHERE trigger_schema = DATABASE() AND trigger_name LIKE 'cq_log%'",
    }
    with shop.database.connect() as session:
        sql = queries[shop.kind].replace("%", shop.database.server.percent)
        return [name for (name,) in session.connection.exec_driver_sql(sql)]


def logged(shop: Shop) -> int:
    with shop.database.connect() as session:
        return int(session.connection.exec_driver_sql("SELECT COUNT(*) FROM cq_log_c").scalar_one())


def state(engine: Engine) -> tuple[str, str]:
    row = engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]
    return row["state"], row["error"]


def put(key: int, note: str) -> str:
    return f"INSERT INTO orders (id, note, gone) VALUES ({key}, '{note}', 0)"
