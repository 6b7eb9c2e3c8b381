"""`cq example` and `cq serve`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cq_engine.catalog.model import RefreshRecord
from cq_engine.repl.health import Health, answering
from cq_engine.repl.serve import Stop, serve
from tests.repl.processes import FAKE, ROOT, environment


class TestExamples:
    @pytest.fixture
    def examples(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        directory = tmp_path / "checkout" / "examples"
        directory.mkdir(parents=True)
        (directory.parent / "pyproject.toml").touch()
        (directory / "01_shoes.cql").write_text("-- Tell me about shoes.\nINSERT x;\n", encoding="utf-8")
        (directory / "02_flights.py").write_text(
            '"""A year of flights."""\nimport sys\nsys.exit(int(sys.argv[1]))\n', encoding="utf-8"
        )
        monkeypatch.setattr("cq_engine.repl.examples.ROOT", directory.parent)
        return directory

    def test_list(self, cq: Callable[..., int], examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cq("example") == 0
        assert capsys.readouterr().out == (
            "  01_shoes.cql   Tell me about shoes.\n  02_flights.py  A year of flights.\n"
        )

    @pytest.mark.parametrize("name", ["1", "01", "shoes", "01_shoes", "01_shoes.cql"])
    def test_script(
        self, cq: Callable[..., int], examples: Path, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cq("example", name) == 0
        assert capsys.readouterr().out == "INSERT x;\nINSERT 1\n"

    def test_program(self, cq: Callable[..., int], examples: Path) -> None:
        assert cq("example", "flights", "7") == 7

    def test_unknown(
        self, cq: Callable[..., int], examples: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cq("example", "3") == 1
        assert "error: there is no example 3" in capsys.readouterr().err

    def test_ambiguous(
        self, cq: Callable[..., int], examples: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (examples / "03_shoes.cql").touch()
        assert cq("example", "shoes") == 1
        assert "detail: 01_shoes.cql, 03_shoes.cql" in capsys.readouterr().err

    def test_without_a_checkout(
        self, cq: Callable[..., int], examples: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (examples.parent / "pyproject.toml").unlink()
        assert cq("example") == 1
        assert "error: there are no examples here" in capsys.readouterr().err


class TestServe:
    def test_lines(self, fake: ModuleType) -> None:
        engine = fake.FakeEngine()
        old = RefreshRecord("big_spenders", 1, 4, 1, 1, 1, "old", 1.0, fake.NOON)
        new = replace(old, from_version=4, to_version=7, inserted=3, plan="aggregate", seconds=0.125)
        engine.catalog.records.append(old)
        said: list[str] = []
        stop = Stop()
        serving = threading.Thread(target=serve, args=(engine, stop, said.append), kwargs={"seconds": 0.01})
        serving.start()
        time.sleep(0.1)
        engine.catalog.records.append(new)
        failed = replace(engine.catalog.status("big_spenders"), state="FAILED", error="two rows with one key")
        engine.catalog.statuses["big_spenders"] = failed
        time.sleep(0.2)
        stop.set()
        serving.join(5)
        assert sorted(said) == [
            "2024-05-01 12:00:00Z big_spenders (4, 7] +3 -1 ~1 aggregate 0.12 s",
            "big_spenders is FAILED: two rows with one key",
        ]

    def test_health(self, fake: ModuleType) -> None:
        def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
                    return found.status, json.loads(found.read())
            except urllib.error.HTTPError as error:
                return error.code, json.loads(error.read())

        engine, stop, health = fake.FakeEngine(), Stop(), Health(patience=0.5)
        with answering("127.0.0.1:0", health) as port:
            assert ask(port, "/health")[0] == 200
            assert ask(port, "/ready") == (503, {"ready": False, "seconds": None})
            serving = threading.Thread(
                target=serve,
                args=(engine, stop, lambda _: None),
                kwargs={"seconds": 0.01, "note": health.note},
            )
            serving.start()
            time.sleep(0.2)
            status, found = ask(port, "/ready")
            assert status == 200
            assert found["ready"] is True
            assert found["version"] == engine.catalog.newest_version
            assert sum(found["states"].values()) == len(engine.catalog.statuses)
            assert ask(port, "/else")[0] == 404
            stop.set()
            serving.join(5)
            time.sleep(0.8)
            assert ask(port, "/health")[0] == ask(port, "/ready")[0] == 503
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10)

    @pytest.mark.parametrize("address", ["8080", "127.0.0.1:no", "127.0.0.1:99999", "203.0.113.1:80"])
    def test_health_at_a_place_that_is_none(
        self, cq: Callable[..., int], capsys: pytest.CaptureFixture[str], address: str
    ) -> None:
        assert cq("serve", "wh", "--health", address) == 1
        assert f"error: nobody can be answered at {address}" in capsys.readouterr().err

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signals(self, tmp_path: Path, number: signal.Signals) -> None:
        command = [sys.executable, str(FAKE), "serve", "wh"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "serving wh; Ctrl-C stops\n"
            running.send_signal(number)
            try:
                assert running.communicate(timeout=30)[0] == "stopped\n"
            finally:
                running.kill()
            assert running.returncode == 0

    def test_a_signal_at_any_moment(self) -> None:
        """A handler that takes a lock stands still where the code that it interrupts has it."""
        program = (
            "import random, signal\n"
            "from cq_engine.repl.serve import Stop\n"
            "for _ in range(5000):\n"
            "    with Stop() as stop:\n"
            "        signal.signal(signal.SIGALRM, lambda *_: stop.set())\n"
            "        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-4))\n"
            "        while not stop.wait(1e-5):\n"
            "            pass\n"
            "        assert stop.wait(0)\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=ROOT)

    def test_a_warehouse_that_does_not_open(
        self, cq: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cq("serve", "leased") == 1
        assert "error: another process holds leased" in capsys.readouterr().err
