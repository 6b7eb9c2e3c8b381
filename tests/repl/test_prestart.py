"""What makes a start quick: nothing heavy before the prompt, Spark beside the engine's imports, and not for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cq_engine.launch.prestart import needs_spark
from cq_engine.repl.background import Opening

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1", True),
        ("REFRESH CONTINUOUS QUERY q", True),
        ("INSERT INTO t VALUES (1)", True),
        ("SHOW TABLES", False),
        ("PAUSE CONTINUOUS QUERY q; SHOW CONTINUOUS QUERIES", False),
        ("DESCRIBE selection", False),
        ("SELECT * FROM alerts", False),
        ("select acct, a.bal from alerts version as of 3 order by bal desc limit 5;", False),
        ("SELECT count(*) AS n FROM alerts", False),
        ("SELECT sum(bal) FROM alerts", True),
        ("SELECT * FROM a JOIN b USING (c)", True),
        ("SELECT * FROM a; SELECT * FROM b", True),
    ],
)
def test_which_statements_start_spark_at_once(sql: str, expected: bool) -> None:
    assert needs_spark(sql) is expected


def test_the_prompt_imports_neither_spark_nor_the_engine() -> None:
    program = (
        "import sys, cq_engine.cli, cq_engine.repl.app, cq_engine.launch.prestart\n"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'sqlglot', 'sqlalchemy', 'deltalake', 'cq_engine.api.engine'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=False
    )
    assert done.returncode == 0, done.stderr


TWO_THREADS = """
import argparse, os, sys, threading, time
from cq_engine import cli
from cq_engine.launch import prestart

options = argparse.Namespace(duties=None, warehouse=sys.argv[1], catalog=None, conf=(), read_only=True)
with prestart._importing:  # as if a third one were importing Spark
    for work in (lambda: prestart.start_spark([]), lambda: cli._connect(options)):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(2)
    print(*(name for name in sys.modules if name.startswith("pyspark")), flush=True)
    os._exit(0)
"""


def test_spark_is_imported_by_one_thread_at_a_time(tmp_path: Path) -> None:
    """Two that import parts of it at once may find one of them incomplete: its modules import each other."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", TWO_THREADS, str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert (done.stdout, done.stderr) == ("\n", "")


class Calls:
    """Counts who was called; `connect` waits until Spark has begun to start."""

    def __init__(self, fake: ModuleType, warehouse: Path) -> None:
        self.fake, self.warehouse = fake, str(warehouse)
        self.ahead = threading.Event()
        self.connected: list[Any] = []

    def connect(self) -> Any:
        assert self.ahead.wait(timeout=30)
        self.connected.append(self.fake.FakeEngine(self.warehouse))
        return self.connected[-1]

    def opening(self, **options: Any) -> Opening:
        return Opening(self.connect, start_spark=True, prestart=self.ahead.set, **options)


@pytest.fixture
def calls(fake: ModuleType, tmp_path: Path) -> Calls:
    return Calls(fake, tmp_path)


def test_spark_starts_while_the_engine_opens(calls: Calls) -> None:
    assert calls.opening().engine() is calls.connected[0]


def test_an_opening_on_hold_begins_once_with_the_prompt_or_the_first_statement(calls: Calls) -> None:
    opening = calls.opening(hold=True)
    assert opening.under_way == "the warehouse is being opened"
    assert not calls.ahead.is_set()
    opening.begin()
    opening.begin()
    assert opening.engine() is calls.connected[0]
    assert len(calls.connected) == 1
    assert calls.opening(hold=True).engine() is calls.connected[1]


def test_leaving_before_the_prompt_opens_nothing(calls: Calls) -> None:
    opening = calls.opening(hold=True)
    opening.close()
    assert not calls.ahead.is_set()
    assert calls.connected == []
