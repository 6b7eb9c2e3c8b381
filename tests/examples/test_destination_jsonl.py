"""The example of a package with a type of destinations: installed, used through SQL, and under the contract suite."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import DestinationError, Engine
from cq_engine.destinations import Retry, installed

ROOT = Path(__file__).resolve().parents[2]
MODULE = "cq_engine_jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, since building writes into it, and in `site` what it installs."""
    made = tmp_path_factory.mktemp("example") / "destination_jsonl"
    shutil.copytree(
        ROOT / "examples/destination_jsonl", made, ignore=shutil.ignore_patterns("__pycache__", "build")
    )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(made / "site"), str(made)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(installed, "_loaded", {})
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def opened(warehouse: Path, once: SparkSession) -> Engine:
    engine = cq_engine.connect(warehouse, spark=once, scheduler=False)
    engine.delivery.retry = Retry(attempts=2, base=0.0)
    return engine


def shown(engine: Engine) -> list[tuple[Any, ...]]:
    rows = engine.execute("SHOW DESTINATIONS").to_arrow().to_pylist()
    return [(row["type"], row["state"], row["rows"], row["error"]) for row in rows]


def test_through_sql(
    folder: Path, warehouse: Path, once: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = warehouse.parent / "audit.jsonl"
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder / "site")
        forget(patch)
        with opened(warehouse, once) as engine:
            engine.execute("CREATE TABLE t (id INT PRIMARY KEY, amt DECIMAL(10,2))")
            for options, said in (
                ("", "needs the option path"),
                ("WITH (path = 'here')", "is not possible"),
                ("WITH (path = '/no/such/folder/file')", "there is no directory /no/such/folder"),
            ):
                with pytest.raises(cq_engine.CQError, match=said):
                    engine.execute(f"CREATE DESTINATION audit TYPE jsonl {options}")
            engine.execute(f"CREATE DESTINATION audit TYPE jsonl WITH (path = '{file}')")
            engine.execute(
                "CREATE CONTINUOUS QUERY q DESTINATION audit AS SELECT id, amt FROM t WHERE amt > 5"
            )
            engine.execute("INSERT INTO t VALUES (1, 10), (2, 3)")
            engine.drain()
            with file.open("a") as torn:
                torn.write('{"query": "q", "ver')
            engine.execute("UPDATE t SET amt = 20 WHERE id = 1")
            engine.drain()
            lines = file.read_text().splitlines()
            found = [json.loads(line) for line in (lines[0], lines[2])]
            assert [(d["marker"], d["key"], d["old"], d["new"]) for d in found] == [
                ("I", [1], None, {"id": 1, "amt": "10.00"}),
                ("U", [1], {"id": 1, "amt": "10.00"}, {"id": 1, "amt": "20.00"}),
            ]
            assert shown(engine) == [("jsonl", "ACTIVE", 2, "")]
    # A process without the package: the destination lags and says why, and can be paused and placed.
    forget(monkeypatch)
    with opened(warehouse, once) as engine:
        engine.execute("INSERT INTO t VALUES (3, 30)")
        with pytest.raises(DestinationError, match=r"q.* could not be served"):
            engine.drain()
        missing = "no package in this process has destinations of type jsonl"
        assert shown(engine) == [("jsonl", "RETRYING", 2, missing)]
        engine.execute("ALTER DESTINATION audit PAUSE")
        engine.execute("ALTER DESTINATION audit RESUME")
    monkeypatch.syspath_prepend(folder / "site")
    with opened(warehouse, once) as engine:
        assert engine.execute("SELECT id FROM t WHERE id = 3").fetchall() == [(3,)]
        assert MODULE not in sys.modules, "a start imports no package of somebody else"
        engine.drain()
        assert json.loads(file.read_text().splitlines()[-1])["new"] == {"id": 3, "amt": "30.00"}
        assert shown(engine) == [("jsonl", "ACTIVE", 3, "")]
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def test_its_own_tests_run_the_contract_suite(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_jsonl.py"]
    path = os.pathsep.join([str(folder / "site"), str(ROOT)])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "22 passed" in done.stdout
