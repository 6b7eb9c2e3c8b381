"""A trigger whose process is killed: each source commit is applied once.

The other steps are interrupted in one process, in tests/lifecycle/test_triggers.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cq_engine.api.engine import Engine

SCRIPT = """CREATE DESTINATION d TYPE trigger AS BEGIN
  UPDATE sums SET n = n + (SELECT sum(n) FROM inserted);
  INSERT INTO log SELECT id, cq_commit_version() FROM inserted;
END"""


def test_killed_before_and_after_its_commit(
    worker: Any, connect: Callable[..., Engine], warehouse: Path
) -> None:
    # a refresh itself meets none of these
    points = ["deliver.begin", "deliver.before_cursor", "commit.after_catalog"]
    with connect(scheduler=False) as engine:
        for sql in (
            "CREATE TABLE t (id INT PRIMARY KEY, n INT)", "CREATE TABLE sums (n BIGINT)",
            "CREATE TABLE log (id INT, v BIGINT)", "INSERT INTO sums VALUES (0)", SCRIPT,
            "CREATE CONTINUOUS QUERY q ON DEMAND DESTINATION d AS SELECT id, n FROM t",
        ):  # fmt: skip
            engine.execute(sql)
    for number, point in enumerate(points):
        with connect(scheduler=False) as engine:
            engine.execute(f"INSERT INTO t VALUES ({2 * number}, 1), ({2 * number + 1}, 2)")
        died = worker(warehouse, "q", point, module="tests.recovery.refresher")
        assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    with connect(scheduler=False) as engine:
        engine.refresh("q")
        assert engine.execute("SELECT n FROM sums").fetchall() == [(3 * len(points),)]
        found = engine.execute("SELECT id, v FROM log").fetchall()
        assert sorted(number for number, _ in found) == list(range(2 * len(points)))
        assert len({v for _, v in found}) == len(points)
        assert engine.catalog.cursors("q")[0].rows == 2 * len(points)
