"""The backslash commands."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest

import cq_engine.repl.describe
from cq_engine.catalog.overview import Overview
from cq_engine.catalog.store import Catalog
from cq_engine.core.clock import SystemClock
from cq_engine.repl.commands import COMMANDS, help_text, run_command
from cq_engine.repl.describe import describe_warehouse


def test_doctests() -> None:
    assert doctest.testmod(cq_engine.repl.describe).failed == 0


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.names[0])
def test_every_command_is_documented(command: Any) -> None:
    assert command.summary
    assert f"{command.usage} " in help_text()
    assert command.summary in help_text()
    assert all(name.startswith("\\") for name in command.names)


def test_names_are_unique() -> None:
    names = [name for command in COMMANDS for name in command.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("line", ["\\?", "\\h", "\\h;"])
def test_help(shell: Any, line: str) -> None:
    assert run_command(shell, line)
    assert "\\timing [on|off]" in shell.output
    assert "CREATE CONTINUOUS QUERY" in shell.output


@pytest.mark.parametrize("line", ["\\q", "\\q;", "\\q \n"])
def test_quit(shell: Any, line: str) -> None:
    assert not run_command(shell, line)


def test_a_semicolon_after_a_command(shell: Any) -> None:
    for line in ("\\limit 5;", "\\x on;", "\\timing on ;", "\\format csv;"):
        assert run_command(shell, line)
    assert not shell.errors
    settings = shell.settings
    assert (settings.limit, settings.expanded, settings.timing, settings.format) == (5, "on", True, "csv")


def test_format(shell: Any) -> None:
    run_command(shell, "\\format jsonl")
    shell.run_text("SELECT many LIMIT 2;", "<input>")
    assert '{"n": 99}\n' in shell.output
    run_command(shell, "\\format xml")
    assert "error: \\format takes table, csv, json, jsonl, not xml" in shell.errors
    run_command(shell, "\\format")
    assert "Rows are written as jsonl." in shell.output


def test_unknown(shell: Any) -> None:
    assert run_command(shell, "\\zz top")
    assert shell.errors == "error: there is no command \\zz\nhint: \\? lists the commands\n"
    assert shell.failures == 1


def test_misspelt(shell: Any) -> None:
    assert run_command(shell, "\\limt 5")
    assert "hint: did you mean \\limit?" in shell.errors


def test_describe_everything(shell: Any) -> None:
    run_command(shell, "\\d")
    lines = [line.rstrip() for line in shell.output.splitlines()]
    assert " orders    |       3 | oid" in lines
    assert any(
        "big_spenders | ACTIVE |        7 | INCREMENTAL | TRANSACTIONAL | ON COMMIT" in x for x in lines
    )
    assert any(
        "big_spenders | alerts         | CALLBACK |         5 |        2 | timed out" in x for x in lines
    )
    assert lines[-1] == "Newest commit version: 8"


def test_describe_table(shell: Any) -> None:
    run_command(shell, "\\d `Orders`;")
    lines = [line.rstrip() for line in shell.output.splitlines()]
    assert lines[0] == "Table orders"
    assert " oid    | int           | NOT NULL | key |" in lines
    assert "Primary key:  oid" in lines
    assert "Foreign keys: orders_cid_fk: (cid) to customers (cid) NOT ENFORCED RELY" in lines
    assert "Read by:      big_spenders" in lines


def test_describe_referenced_table(shell: Any) -> None:
    run_command(shell, "\\d customers")
    assert "Referenced by: orders (cid)" in shell.output


def test_describe_query(shell: Any) -> None:
    run_command(shell, "\\d big_spenders")
    for line in (
        "Verdict:      INCREMENTAL",
        "Reason:       sum of decimals is kept per group",
        "Key:          cid",
        "Mode:         TRANSACTIONAL",
        "When:         ON COMMIT",
        "Position:     7 of 8",
        "  FROM orders",
    ):
        assert line in shell.output.splitlines()


def test_describe_nothing(shell: Any) -> None:
    run_command(shell, "\\d nope")
    assert "error: there is no table and no continuous query nope" in shell.errors


def test_describe_reads_the_catalog_of_a_warehouse(tmp_path: Path) -> None:
    catalog = Catalog.open(str(tmp_path / "warehouse"), clock=SystemClock())
    try:
        assert describe_warehouse(Overview.of(catalog)).startswith("The warehouse is empty.")
    finally:
        catalog.close()


def test_include(shell: Any, engine: Any, tmp_path: Path) -> None:
    script = tmp_path / "setup.cql"
    script.write_text("INSERT a;\n\n-- two\n  frob b;\nINSERT c;\n", encoding="utf-8")
    run_command(shell, f"\\i {script}")
    assert engine.calls == [("INSERT a", str(script), 1, 1), ("frob b", str(script), 4, 3)]
    assert f"{script}:4:3: error: unexpected FROB\n    frob b\n    ^" in shell.errors


def test_include_what_is_not_there(shell: Any) -> None:
    run_command(shell, "\\i nowhere.cql")
    run_command(shell, "\\i")
    assert "error: cannot read nowhere.cql" in shell.errors
    assert "error: \\i needs a file" in shell.errors
    shell.settings.restricted = True
    run_command(shell, "\\i setup.cql")
    assert "error: \\i is switched off" in shell.errors


def test_settings(shell: Any) -> None:
    for line in ("\\timing", "\\x auto", "\\limit 2"):
        run_command(shell, line)
    assert (shell.settings.timing, shell.settings.expanded, shell.settings.limit) == (True, "auto", 2)
    for line in ("\\timing off", "\\x", "\\limit 0"):
        run_command(shell, line)
    assert (shell.settings.timing, shell.settings.expanded, shell.settings.limit) == (False, "on", 0)
    for line in ("\\timing maybe", "\\x maybe", "\\limit -1"):
        run_command(shell, line)
    assert shell.failures == 3


def test_drain(shell: Any, engine: Any) -> None:
    run_command(shell, "\\drain")
    assert engine.drained == 1
