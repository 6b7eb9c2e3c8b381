"""Running statements: places, errors, Ctrl-C, what nobody expected."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cq_engine.core.errors import LeaseError
from cq_engine.repl.app import finish_script


def press_ctrl_c(after: float, times: int = 1) -> None:
    """Sends what a terminal sends, from another thread, while the main thread waits."""

    def press() -> None:
        for _ in range(times):
            time.sleep(after)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


@contextmanager
def pressing_ctrl_c(every: float) -> Iterator[None]:
    """Sends the same again and again while the block runs."""
    done = threading.Event()

    def press() -> None:
        while not done.wait(every):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_statements_get_their_places(shell: Any, engine: Any) -> None:
    assert shell.run_text("SELECT 1; SELECT\n2;\n  INSERT x", "s.cql", first_line=10)
    assert engine.calls == [
        ("SELECT 1", "s.cql", 10, 1),
        ("SELECT\n2", "s.cql", 10, 11),
        ("INSERT x", "s.cql", 12, 3),
    ]


def test_stops_at_the_first_error(shell: Any, engine: Any) -> None:
    assert not shell.run_text("frob; INSERT x", "s.cql")
    assert len(engine.calls) == 1
    assert not shell.run_text("frob; INSERT x", "s.cql", keep_going=True)
    assert len(engine.calls) == 3
    assert shell.failures == 2


def test_errors_have_three_parts(shell: Any) -> None:
    shell.run_text("DROP TABLE orders;", "<input>")
    assert shell.errors == (
        "error: orders is in use\ndetail: big_spenders reads it\nhint: drop big_spenders first\n"
    )


def test_unexpected_errors_are_one_line_and_logged(shell: Any, tmp_path: Path) -> None:
    assert not shell.run_text("BOOM now;", "<input>")
    log = tmp_path / "logs" / "cq.log"
    line, hint = shell.errors.splitlines()
    assert line == f"internal error: ZeroDivisionError: a bug (traceback in {log})"
    assert hint.startswith("hint: this is a fault of cq-engine: report it")
    text = log.read_text(encoding="utf-8")
    assert "BOOM now" in text
    assert "Traceback" in text
    assert shell.run_text("INSERT x;", "<input>")


def test_unexpected_errors_without_a_warehouse(shell: Any, state_home: Path) -> None:
    shell.warehouse = "s3://bucket/warehouse"
    shell.run_text("BOOM;", "<input>")
    assert (state_home / "cq-engine" / "cq.log").is_file()


def test_spark_errors_are_errors_of_the_statement(shell: Any, engine: Any) -> None:
    from pyspark.errors import PySparkException

    def fail(*_arguments: object, **_options: object) -> None:
        raise PySparkException(
            "[DIVIDE_BY_ZERO] Division by zero.\n== SQL ==\nselect 1/0\n\nJVM stacktrace:\nx"
        )

    engine.execute = fail
    shell.run_text("SELECT 1/0;", "<input>")
    assert "error: Division by zero.\ndetail: Spark error class DIVIDE_BY_ZERO\n" in shell.errors
    assert "JVM" not in shell.errors
    assert "internal" not in shell.errors


def test_timing(shell: Any) -> None:
    shell.settings.timing = True
    shell.run_text("INSERT x;", "<input>")
    assert shell.output.startswith("INSERT 1\nTime: ")


def test_echo(shell: Any) -> None:
    shell.settings.echo = True
    shell.run_text("INSERT\n x ;", "<input>")
    assert shell.output == "INSERT\n x;\nINSERT 1\n"


def test_ctrl_c_cancels_the_statement(shell: Any, engine: Any) -> None:
    press_ctrl_c(0.2)
    begin = time.monotonic()
    assert not shell.run_text("SLEEP 20; INSERT x;", "<input>", keep_going=True)
    assert time.monotonic() - begin < 5
    assert shell.errors == "error: cancelled\n"
    assert [call[0] for call in engine.calls] == ["SLEEP 20"]
    assert shell.run_text("SLEEP 0;", "<input>")


def test_ctrl_c_while_the_warehouse_opens(
    engine: Any, make_shell: Callable[[Callable[[], Any]], Any]
) -> None:
    go_on = threading.Event()

    def connect() -> Any:
        go_on.wait(20)
        return engine

    shell = make_shell(connect)
    press_ctrl_c(0.2)
    begin = time.monotonic()
    assert not shell.run_text("INSERT x;", "<input>")
    assert time.monotonic() - begin < 5
    assert shell.errors == "error: cancelled\n"
    go_on.set()
    shell.opening.engine()
    assert engine.calls == []
    assert shell.run_text("INSERT y;", "<input>")


def test_a_statement_that_ignores_ctrl_c_does_not_hold_the_prompt(shell: Any, engine: Any) -> None:
    from cq_engine.repl.shell import Leave

    # A busy machine may take two presses for one, so they go on until the prompt lets go.
    with pytest.raises(Leave), pressing_ctrl_c(every=0.4):
        shell.run_text("DEAF;", "<input>")
    assert "once more leaves" in shell.errors
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_says_what_is_committed(shell: Any) -> None:
    press_ctrl_c(0.2)
    assert not shell.run_text("SAVE 20; INSERT x;", "<input>")
    assert shell.errors == "error: interrupted, but committed as version 9\n"
    assert shell.cancelled


def test_ctrl_c_while_the_result_is_shown(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shell, "write", interrupted)
    assert not shell.run_text("INSERT x;", "<input>")
    assert shell.errors == "error: interrupted while the result was shown\n"


def test_a_warehouse_that_does_not_open(make_shell: Callable[[Callable[[], Any]], Any]) -> None:
    def connect() -> Any:
        raise LeaseError("another process holds it")

    shell = make_shell(connect)
    assert not shell.run_text("INSERT x;", "<input>")
    assert shell.errors == "error: another process holds it\n"
    assert finish_script(shell) == 1


def test_the_end_of_a_script(shell: Any, engine: Any) -> None:
    shell.run_text("INSERT x;", "<input>")
    assert finish_script(shell) == 0
    assert (engine.drained, engine.closed) == (1, True)


def test_a_transaction_left_open_is_an_error(shell: Any, engine: Any) -> None:
    shell.run_text("BEGIN; INSERT x;", "<input>")
    assert finish_script(shell) == 1
    assert "inside a transaction" in shell.errors
    assert engine.calls[-1][0] == "ROLLBACK"


def test_output_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    from cq_engine.repl.shell import _write

    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as stream:
        _write(stream, "50 …")
    assert path.read_text(encoding="ascii") == "50 \\u2026\n"


FOLLOWED = {
    "table": " cid | _change_type | _commit_version\n-----+--------------+-----------------\n"
    "   1 | insert       |               7\n  22 | delete       |               7\n 333 | insert       |               8\n",
    "csv": "cid,_change_type,_commit_version\n1,insert,7\n22,delete,7\n,progress,7\n333,insert,8\n,progress,8\n",
    "jsonl": '{"cid": 1, "_change_type": "insert", "_commit_version": 7}\n'
    '{"cid": 22, "_change_type": "delete", "_commit_version": 7}\n'
    '{"cid": null, "_change_type": "progress", "_commit_version": 7}\n'
    '{"cid": 333, "_change_type": "insert", "_commit_version": 8}\n'
    '{"cid": null, "_change_type": "progress", "_commit_version": 8}\n',
}


@pytest.mark.parametrize("form", FOLLOWED)
def test_what_is_followed_comes_as_it_comes_and_ctrl_c_ends_just_that(shell: Any, form: str) -> None:
    shell.settings.format = form
    press_ctrl_c(0.5)
    begin = time.monotonic()
    assert shell.run_text("FOLLOW big_spenders; INSERT x;", "<input>")
    assert time.monotonic() - begin < 10
    assert shell.output.startswith(FOLLOWED[form])
    assert (shell.failures, shell.cancelled, "cancelled" in shell.errors) == (0, False, False)
    assert "INSERT 1" in shell.output + shell.errors


def test_following_what_is_not_there(shell: Any) -> None:
    assert not shell.run_text("FOLLOW missing;", "<input>")
    assert "there is no continuous query missing" in shell.errors
