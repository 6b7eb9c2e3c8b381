"""A process is killed while it scans for a mesh join: the window is the log, and its successor delivers each change once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cq_engine.api.engine import Engine
from tests.accumulated import accumulated, rows
from tests.recovery.scanner import OPTIONS

JOIN = "SELECT s.id, s.k, r.note FROM s LEFT JOIN r ON s.k = r.k"


@pytest.mark.parametrize("mode", ["TRANSACTIONAL", pytest.param("COMPRESSED", marks=pytest.mark.long)])
def test_killed_within_a_scan(
    mode: str, worker: Any, connect: Callable[..., Engine], warehouse: Path, tmp_path: Path
) -> None:
    engine = connect(**OPTIONS)
    engine.execute("CREATE TABLE s (id INT PRIMARY KEY, k BIGINT)")
    engine.execute("CREATE TABLE r (k BIGINT PRIMARY KEY, note STRING)")
    engine.execute("INSERT INTO r SELECT id, concat('n', id % 7) FROM range(2000)")
    engine.compact("r")
    engine.execute(
        f"CREATE CONTINUOUS QUERY q COMPUTE {mode} DELTA ON DEMAND WITH (join = 'mesh', memory = '64 KB') AS {JOIN}"
    )
    for n, fault in enumerate(("mesh.chunk", "mesh.chunk:5", "mesh.chunk:12")):
        engine.execute(f"INSERT INTO s SELECT id, id * 37 % 2500 FROM range({200 * n}, {200 * n + 150})")
        engine.execute(f"UPDATE r SET note = 'm{n}' WHERE k % 30 = {n}")
        engine.execute(f"DELETE FROM s WHERE id % 17 = {n}")
        engine.close()
        died = worker(warehouse, tmp_path / "none", fault, module="tests.recovery.scanner")
        assert died.returncode == -signal.SIGKILL, f"{fault} was not reached: {died.stderr[-2000:]}"
        engine = connect(**OPTIONS)
    engine.refresh("q")
    assert accumulated(engine, "q") == rows(engine, JOIN)
