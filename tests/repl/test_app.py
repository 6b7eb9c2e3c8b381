"""The loop, over a pipe and over prompt_toolkit with keys of our own."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from cq_engine.core.errors import LeaseError
from cq_engine.repl.app import TerminalReader, _completer, is_entry_complete, read_pipe, run_pipe, run_prompt


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as piped, create_app_session(input=piped, output=DummyOutput()):
        yield piped


def prompt(shell: Any, keys: PipeInput, text: str) -> int:
    keys.send_text(text)
    return run_prompt(shell, TerminalReader(shell, input=keys, output=DummyOutput()))


@pytest.mark.parametrize(
    "text", ["", "  ", "\\d", "SELECT 1;", "SELECT ';';", "-- a remark", "exit", "SELECT\n\\q"]
)
def test_complete_entries(text: str) -> None:
    assert is_entry_complete(text)


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT ';", "SELECT 1; SELECT", "/* ;", "SELECT 1 -- ;"])
def test_incomplete_entries(text: str) -> None:
    assert not is_entry_complete(text)


def test_entries_of_a_pipe() -> None:
    text = "\n-- first\nSELECT\n 1;\n\\d\n\n-- none\n\\x\nSELECT 2"
    assert list(read_pipe(io.StringIO(text))) == [
        ("-- first\nSELECT\n 1;\n", 2),
        ("\\d\n", 5),
        ("\\x\n", 8),
        ("SELECT 2", 9),
    ]


def test_pipe_goes_on_after_errors(shell: Any, engine: Any) -> None:
    assert run_pipe(shell, io.StringIO("INSERT a;\n\nfrob;\n  INSERT c")) == 1
    assert engine.calls == [
        ("INSERT a", "<stdin>", 1, 1),
        ("frob", "<stdin>", 3, 1),
        ("INSERT c", "<stdin>", 4, 3),
    ]
    assert (engine.drained, engine.closed) == (1, True)


def test_pipe_ends_at_quit(shell: Any, engine: Any) -> None:
    assert run_pipe(shell, io.StringIO("INSERT a;\n\\q\nINSERT b;")) == 0
    assert len(engine.calls) == 1


def test_statements_of_many_lines(shell: Any, engine: Any, keys: PipeInput) -> None:
    assert prompt(shell, keys, "INSERT\r'a;\rb'\r;\r\\q\r") == 0
    assert [call[0] for call in engine.calls] == ["INSERT\n'a;\nb'"]
    assert engine.closed


def test_errors_do_not_end_the_loop(shell: Any, engine: Any, keys: PipeInput) -> None:
    assert prompt(shell, keys, "frob;\rboom;\r\\zz\rINSERT x;\r\x04") == 0
    assert shell.failures == 3
    assert shell.output == "INSERT 1\n"


def test_ctrl_c_clears_the_entry(shell: Any, engine: Any, keys: PipeInput) -> None:
    prompt(shell, keys, "frob\rfrob\x03INSERT x;\r\x04")
    assert [call[0] for call in engine.calls] == ["INSERT x"]


def test_quit_out_of_an_unfinished_entry(shell: Any, engine: Any, keys: PipeInput) -> None:
    assert prompt(shell, keys, "SELECT '\r\\q\r") == 0
    assert engine.calls == []


def test_leaving_rolls_back(shell: Any, engine: Any, keys: PipeInput) -> None:
    assert prompt(shell, keys, "BEGIN;\r\x04") == 0
    assert "rolled back" in shell.output
    assert not engine.in_transaction


def test_prompts(shell: Any, engine: Any) -> None:
    asked = []

    class Script:
        entries = iter(["BEGIN;", "INSERT x;", "COMMIT;"])

        def read(self, prompt: str) -> str:
            asked.append(prompt)
            try:
                return next(self.entries)
            except StopIteration:
                raise EOFError from None

    run_prompt(shell, Script())
    assert asked == ["cq> ", "cq*> ", "cq*> ", "cq> "]


def test_history_stays(shell: Any, keys: PipeInput, state_home: Path) -> None:
    prompt(shell, keys, "INSERT x;\r\x04")
    history = state_home / "cq-engine" / "history"
    assert "INSERT x;" in history.read_text(encoding="utf-8")
    assert history.stat().st_mode & 0o077 == 0


def test_history_that_cannot_be_written(
    shell: Any, keys: PipeInput, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state_home / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home / "file"))
    assert prompt(shell, keys, "INSERT x;\r\x04") == 0
    assert shell.output == "INSERT 1\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("big_s", ["big_spenders"]),
        ("SELECT * FROM ord", ["orders"]),
        ("rollb", ["ROLLBACK"]),
        ("SHOW capt", ["CAPTURE", "CAPTURES"]),
        ("\\ti", ["\\timing"]),
        ("SELECT ", []),
    ],
)
def test_completion(shell: Any, typed: str, offered: list[str]) -> None:
    found = _completer(shell).get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in found if completion.text != "ORDER BY"] == offered


@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_a_warehouse_that_does_not_open(
    make_shell: Callable[[Callable[[], Any]], Any], keys: PipeInput, delay: float
) -> None:
    def connect() -> Any:
        threading.Event().wait(delay)
        raise LeaseError("another process holds it")

    shell = make_shell(connect)
    assert run_prompt(shell, TerminalReader(shell, input=keys, output=DummyOutput())) == 1
    assert shell.errors == "error: another process holds it\n"
