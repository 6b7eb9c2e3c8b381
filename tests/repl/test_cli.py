"""The command line, as processes and in this one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import cq_engine
from cq_engine.query.result import text_result
from cq_engine.query.stream import StreamingResult
from cq_engine.repl.arguments import COMMANDS
from tests.repl.processes import FAKE, environment


def process(*arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FAKE), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(),
        timeout=60,
        check=False,
    )


def test_version_and_help(cq: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cq("--version") == 0
    assert cq("--help") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("cq ")
    for name in COMMANDS:
        assert f"\n    {name} " in shown


def test_wrong_command_lines(cq: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cq("run") == 2
    assert cq("run", "x.cql", "--conf", "novalue") == 2
    assert cq("exec", "SELECT 1", "--limit", "some") == 2
    assert "'novalue' is not NAME=VALUE" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, cq_engine.cli\n"
        "assert cq_engine.cli.main(['--help']) == 0\n"
        "heavy = {'pyspark.sql', 'prompt_toolkit', 'pyarrow', 'pandas', 'sqlglot', 'lark'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_prompt_comes_before_the_language_and_the_tables() -> None:
    """What a first statement or a first result needs is imported when the prompt stands (`Opening.begin`)."""
    program = (
        "import sys, cq_engine.repl.app, cq_engine.repl.background\n"
        "from cq_engine.repl.arguments import parse_arguments\n"
        "parse_arguments(['prompt'])\n"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'sqlglot', 'lark', 'rich.console', 'rich.table', 'sqlite3'}\n"
        "heavy |= {'cq_engine.grammar', 'cq_engine.catalog.model'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr


def test_exec(cq: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cq("exec", "SELECT many; INSERT x", "--limit", "2") == 0
    assert capsys.readouterr().out == " n\n---\n 0\n 1\n(first 2 rows; there are more)\n\nINSERT 1\n"
    assert cq("-c", "INSERT x", "-c", "frob", "wh") == 1
    assert "<command>:1:1: error: unexpected FROB" in capsys.readouterr().err


def test_options_reach_the_engine(
    cq: Callable[..., int], fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def connect(path: str, **options: Any) -> Any:
        opened.append(fake.FakeEngine(path, **options))
        return opened[-1]

    monkeypatch.setattr(cq_engine, "connect", connect, raising=False)
    conf = ("--conf", "a.b=1", "--conf", "c=x=y")
    assert cq("exec", "INSERT x", "--warehouse", "w", "--catalog", "sqlite:///c", *conf, "--read-only") == 0
    assert opened[0].warehouse == "w"
    assert opened[0].options == {
        "catalog": "sqlite:///c",
        "conf": {"a.b": "1", "c": "x=y"},
        "read_only": True,
    }
    assert opened[0].drained == 0
    assert cq("exec", "INSERT x") == 0
    assert opened[1].warehouse == "warehouse"
    assert opened[1].drained == 1


@pytest.mark.parametrize("arguments", [("exec", "INSERT x"), ("run", "s.cql"), ("-c", "INSERT x")])
def test_the_warehouse_is_the_last_argument(
    cq: Callable[..., int],
    fake: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    (tmp_path / "s.cql").write_text("INSERT x;", encoding="utf-8")
    opened: list[str] = []

    def connect(path: str, **options: Any) -> Any:
        opened.append(path)
        return fake.FakeEngine(path, **options)

    monkeypatch.setattr(cq_engine, "connect", connect, raising=False)
    assert cq(*arguments, "here", "--timing") == 0
    assert cq(*arguments, "--timing", "there") == 0
    assert cq(*arguments) == 0
    assert opened == ["here", "there", "warehouse"]
    assert cq(*arguments, "here", "--timing", "there") == 2


def test_a_statement_is_no_warehouse(cq: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cq("exec", "INSERT INTO t VALUES (1)", "DROP TABLE t") == 1
    assert "hint: separate statements by semicolons" in capsys.readouterr().err
    assert cq("exec", "INSERT x", "INSERT y", "--warehouse", "w") == 0
    assert capsys.readouterr().out == "INSERT 1\nINSERT 1\n"


def test_formats(cq: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cq("exec", "SELECT some; INSERT x", "--format", "csv") == 0
    shown = capsys.readouterr()
    assert shown.out == "oid,name,amount,placed\n1,Anna,12.50,2024-05-01T12:00:00Z\n2,,3.00,\n"
    assert shown.err == "INSERT 1\n"
    assert cq("exec", "SELECT many", "--format", "jsonl", "--limit", "2") == 0
    shown = capsys.readouterr()
    assert shown.out == '{"n": 0}\n{"n": 1}\n'
    assert shown.err == "(first 2 rows; there are more)\n"
    assert cq("exec", "SELECT many", "--format", "xml") == 2


def test_output_that_is_no_terminal_is_whole(
    cq: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cq("exec", "SELECT many") == 0
    assert capsys.readouterr().out.endswith("\n 99\n(100 rows)\n\n")


def test_run_names_the_place_of_errors_that_have_none(tmp_path: Path) -> None:
    (tmp_path / "s.cql").write_text("INSERT a;\n  DROP\n TABLE x;\nBOOM;\n", encoding="utf-8")
    done = process("run", "--keep-going", "s.cql", cwd=tmp_path)
    assert "s.cql:2:3: error: orders is in use\n    DROP\n    ^\ndetail: " in done.stderr
    assert "s.cql:4:1: internal error: ZeroDivisionError: a bug" in done.stderr


def test_run_stops_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "s.cql").write_text("INSERT a;\n  frob it;\nINSERT b;\n", encoding="utf-8")
    done = process("run", "s.cql", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "INSERT 1\n"
    assert done.stderr == "s.cql:2:3: error: unexpected FROB\n    frob it\n    ^\n"


def test_run_keep_going(tmp_path: Path) -> None:
    (tmp_path / "s.cql").write_text("INSERT a;\nfrob;\nINSERT b;\n", encoding="utf-8")
    done = process("run", "--keep-going", "s.cql", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "INSERT 1\nINSERT 1\n"


def test_run_standard_input(tmp_path: Path) -> None:
    done = process("run", "-", cwd=tmp_path, stdin="INSERT a; frob")
    assert done.stdout == "INSERT 1\n"
    assert "<stdin>:1:11: error: unexpected FROB" in done.stderr


def test_run_what_is_not_there(cq: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cq("run", "nowhere.cql") == 1
    assert capsys.readouterr().err == "error: there is no script nowhere.cql\n"


def test_a_file_is_no_warehouse(
    cq: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.cql").touch()
    assert cq("s.cql") == 1
    assert "hint: cq run s.cql runs a script" in capsys.readouterr().err


def test_pipe(tmp_path: Path) -> None:
    done = process("wh", cwd=tmp_path, stdin="INSERT a;\n\\d orders\nfrob;\nboom;\nINSERT b")
    assert done.returncode == 1
    assert done.stdout.startswith("INSERT 1\nTable orders\n")
    assert done.stdout.endswith("INSERT 1\n")
    assert "Traceback" not in done.stderr
    assert "internal error: ZeroDivisionError: a bug" in done.stderr


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    command = [sys.executable, str(FAKE), "exec", "SELECT many"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(60) == 1


def test_ctrl_c_ends_a_script(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(FAKE), "exec", "INSERT x; SLEEP 50; INSERT y"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "INSERT 1\n"
        assert running.stderr is not None
        assert running.stderr.readline() == "sleeping\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (out, err, running.returncode) == ("", "error: cancelled\n", 130)


def test_ctrl_c_ends_following_without_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(FAKE), "follow", "big_spenders", "--format", "jsonl", "somewhere"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    ) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(5)]
        assert lines[2] == '{"cid": null, "_change_type": "progress", "_commit_version": 7}\n'
        assert running.stderr is not None
        assert running.stderr.readline() == "waiting\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (out, err, running.returncode) == ("", "", 0)


def test_follow_asks_for_what_it_was_told(cq: Callable[..., int], fake: ModuleType) -> None:
    asked: list[str] = []
    opened: list[dict[str, Any]] = []

    class Asked(fake.FakeEngine):  # type: ignore[misc,name-defined]
        def _execute(self, sql: str, source: str, line: int, column: int) -> Any:
            asked.append(sql)
            opened.append(self.options)
            return text_result("a", "b")

    cq_engine.connect = Asked  # type: ignore[assignment,misc]
    assert cq("follow", "my q", "there") == 0
    assert cq("follow", "q", "--snapshot", "there") == 0
    assert cq("follow", "q", "--from-version", "12", "--warehouse", "there") == 0
    assert asked == ["FOLLOW `my q`", "FOLLOW q SNAPSHOT", "FOLLOW q FROM VERSION 12"]
    assert all(options["read_only"] for options in opened)
    assert cq("follow", "q", "--snapshot", "--from-version", "1", "there") == 2


def test_dequeue_asks_for_what_it_was_told(cq: Callable[..., int], fake: ModuleType, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    class Asked(fake.FakeEngine):  # type: ignore[misc,name-defined]
        def consume_rows(
            self, queue: str, group: str, count: int | None, *, wait: float | None, keep: bool
        ) -> Any:
            asked.append((queue, group, count, wait, keep, self.options["duties"]))
            return self.execute("FOLLOW missing") if queue == "missing" else _none()

    cq_engine.connect = Asked  # type: ignore[assignment,misc]
    there = str(tmp_path)
    assert cq("dequeue", "none", there) == 0
    assert (
        cq("dequeue", "none", "--group", "a b", "-n", "5", "--wait", "2.5", "--no-ack", "--warehouse", there)
        == 0
    )
    assert cq("dequeue", "none", "--follow", "--format", "jsonl", there) == 0
    assert asked == [
        ("none", "default", None, 0.0, False, False),
        ("none", "a b", 5, 2.5, True, False),
        ("none", "default", None, None, False, False),
    ]
    assert cq("dequeue", "missing", there) == 1
    assert cq("dequeue", "none", str(tmp_path / "nowhere")) == 1
    assert cq("dequeue") == 2


def _none() -> StreamingResult:
    return StreamingResult(pa.schema({"message_id": pa.string()}), lambda: None, lambda: None)


class Terminal:
    """`cq` in a pseudo-terminal: what it prints is read in order, and it does not outlive the test."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        import pty

        take_terminal = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        )
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", take_terminal, str(FAKE), *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=environment(PROMPT_TOOLKIT_NO_CPR="1"),
            start_new_session=True,
        )
        os.close(slave)
        self._unread = ""

    def send(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def expect(self, text: str, seconds: float = 30) -> None:
        """Reads up to and including `text`."""
        end = time.monotonic() + seconds
        while text not in self._unread:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} did not come: {self._unread!r}"
            if select.select([self._master], [], [], left)[0]:
                self._unread += os.read(self._master, 65536).decode(errors="replace")
        self._unread = self._unread.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_a_session_at_a_terminal(tmp_path: Path) -> None:
    terminal = Terminal("wh", cwd=tmp_path)
    try:
        terminal.expect("cq>")
        terminal.send(b"frob it;\r")
        terminal.expect("unexpected FROB")
        terminal.expect("cq>")
        terminal.send(b"begin;\r")
        terminal.expect("cq*>")
        terminal.send(b"sleep 50;\r")
        terminal.expect("sleeping")
        terminal.send(b"\x03")
        terminal.expect("error: cancelled")
        terminal.expect("cq*>")
        terminal.send(b"\x04")
        terminal.expect("rolled back")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()


def test_a_long_text_is_paged_at_a_terminal(shell: Any, monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    paged: list[str] = []
    monkeypatch.setattr("pydoc.pager", paged.append)
    monkeypatch.setattr(shell.out, "isatty", lambda: True)
    text = "\n".join(map(str, range(200)))
    engine.execute = lambda *_, **__: text_result("plan", text)
    assert shell.run_text("EXPLAIN CONTINUOUS QUERY q;", "<input>")
    assert paged == [text]
    engine.execute = lambda *_, **__: text_result("plan", "short")
    assert shell.run_text("EXPLAIN CONTINUOUS QUERY q;", "<input>")
    assert (len(paged), shell.output) == (1, "short\n")
