"""Spark Connect: everything that an engine does, with a Spark that is another process's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import free_port
from tests.cluster import connect_server, run_program

pytest.importorskip("grpc", reason="grpcio, which PySpark's client of Spark Connect needs, is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.mark.parametrize("whole", ["", pytest.param("whole", marks=pytest.mark.long)])
def test_statements_of_every_kind(server: str, tmp_path: Path, whole: str) -> None:
    """Through the driver (`whole`: through executors, too), with the delta law over a random history by executors, and an interrupt."""
    done = run_program("tests.on_connect", server, str(tmp_path), whole, timeout=900)
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["driver"]["rows"] > 300
    assert found["driver"]["read"] == [0, 0]
    assert not whole or found["driver"] == found["executors"]
    assert found["refreshes"] > 3
    assert found["interrupted"] < 60
    assert "JVM stacktrace" not in done.stderr


def cq(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cq_engine", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "CI": "1"})


def test_the_command(server: str, tmp_path: Path) -> None:
    text = "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t SELECT CAST(id AS INT) FROM range(5); SELECT sum(id) AS s FROM t"
    done = cq("exec", text, str(tmp_path / "w"), "--remote", server, "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["s", "10"]
    wrong = cq("exec", "SELECT nonsense FROM t", str(tmp_path / "w"), "--remote", server)
    assert wrong.returncode == 1
    assert "nonsense" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert "stacktrace" not in wrong.stderr


def test_nobody_answers(tmp_path: Path) -> None:
    done = cq("exec", "SELECT 1", str(tmp_path / "w"), "--remote", f"sc://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "no Spark Connect server answers at sc://127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
    twice = cq("exec", "SELECT 1", str(tmp_path / "w"), "--remote", "sc://h", "--master", "local[2]")
    assert twice.returncode == 2
