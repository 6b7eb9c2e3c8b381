"""What tests ask an engine about its destinations."""

from __future__ import annotations

from typing import Any

import pytest

from cq_engine import CQError, Engine

__all__ = ["error_of", "shown"]


def shown(engine: Engine, *names: str) -> list[tuple[Any, ...]]:
    """These columns of SHOW DESTINATIONS."""
    rows = engine.execute("SHOW DESTINATIONS").to_arrow().to_pylist()
    return [tuple(row[name] for name in names) for row in rows]


def error_of(engine: Engine, sql: str) -> CQError:
    with pytest.raises(CQError) as caught:
        engine.execute(sql)
    return caught.value
