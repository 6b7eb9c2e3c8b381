"""What tests of tables share that executors read: limits that make few rows many, and statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cq_engine import Engine
from cq_engine.core.limits import Limits
from cq_engine.sources.sql.parts import Parts
from cq_engine.sources.whole import Whole
from tests.sources.shops import Shop

Opened = Callable[[Limits], Engine]
MANY = Limits(load_rows=1, load_connections=3, pending_rows=5, small_rows=-1)


def capture(engine: Engine, shop: Shop, table: str, columns: str, key: str, where: str = "") -> None:
    engine.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY ({key}))")
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url}')")
    engine.execute(f"CREATE CAPTURE c INTO t FROM shop TABLE '{table}' {where} USING COPY ON DEMAND")


def rows(engine: Engine, query: str = "SELECT * FROM t") -> list[tuple[Any, ...]]:
    return engine.execute(query).fetchall()


def after_cut(monkeypatch: pytest.MonkeyPatch, done: Callable[[], None]) -> None:
    """Does something each time when the ranges are known and none is read yet."""
    parts = Whole.parts

    def cut(self: Whole, *given: Any) -> Parts | None:
        found = parts(self, *given)
        done()
        return found

    monkeypatch.setattr(Whole, "parts", cut)
