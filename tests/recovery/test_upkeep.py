"""A process is killed while it merges or forgets: nothing is lost, and what is of no use goes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cq_engine.api.engine import Engine
from cq_engine.catalog import schema
from tests.maintenance.oracle import check_law, image
from tests.recovery.checks import check_garbage
from tests.recovery.upkeep import TOTALS


def images() -> list[set[int]]:
    """The keys after every commit of the work."""
    found: list[set[int]] = [set()]
    for number in range(8):
        found.append(found[-1] | {number})
        if number >= 3:
            found.append(found[-1] - {number - 3})
    return found


@pytest.mark.parametrize(
    "fault",
    [
        "vacuum.files",
        "compact.after_catalog:7",
        pytest.param("vacuum.after_catalog", marks=pytest.mark.long),
        pytest.param("compact.staged:4", marks=pytest.mark.long),
    ],
)
def test_killed_at_upkeep(
    fault: str, worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    died = worker(warehouse, tmp_path / "calls", fault, module="tests.recovery.upkeep")
    assert died.returncode == -signal.SIGKILL, f"{fault} was not reached: {died.stderr[-2000:]}"
    engine = connect(scheduler=False)
    newest, position = engine.catalog.newest_version, engine.describe("totals").position
    rows = image(engine, "SELECT k FROM t t", newest)
    assert {k for (k,) in rows.elements()} == images()[newest]
    for version in range(position, newest + 1):
        image(engine, TOTALS, version)
    engine.refresh("totals")
    check_law(engine, "totals", TOTALS, position)
    engine.compactor.merge(engine.catalog.state.tables["t"].storage)
    engine.vacuum(retain="0 hours")
    assert engine.catalog.floor(engine.catalog.state.tables["t"].storage.id) == newest
    check_garbage(engine, warehouse)
    with engine.catalog._reading() as connection:
        assert connection.execute(schema.doomed.select()).all() == []
