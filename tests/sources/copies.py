"""What tests of copies at the source share: their statements, and what they leave there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cq_engine import Engine
from cq_engine.core.errors import SourceError
from cq_engine.core.limits import Limits
from cq_engine.sources.sql.model import Statement
from tests.sources.shops import Shop

Opened = Callable[[Limits], Engine]
CAPTURE = "CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING COPY WITH (at = 'source') ON DEMAND"
NAMES = ["cq_copy_c", "cq_copy_c_staged", "cq_copy_c_state"]


def ask(shop: Shop, sql: str) -> list[tuple[Any, ...]]:
    with shop.database.connect() as session:
        return session.rows(Statement(sql.replace("%", shop.database.server.percent)))


def installed(shop: Shop) -> list[str]:
    """The tables of captures at the source."""
    queries = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'cq_copy%'",
        "postgresql": "SELECT CAST(relname AS text) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'cq_copy%'",
        "mariadb": "SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name LIKE 'cq_copy%'",
    }
    return sorted(name for (name,) in ask(shop, queries[shop.kind]))


def state(engine: Engine) -> str:
    return str(engine.execute("SHOW CAPTURES").to_arrow().to_pylist()[0]["state"])


def failed(engine: Engine, match: str) -> str:
    """Why a tick stops the capture."""
    with pytest.raises(SourceError, match=match) as caught:
        engine.refresh_capture("c")
    assert state(engine) == "FAILED"
    return str(caught.value)
