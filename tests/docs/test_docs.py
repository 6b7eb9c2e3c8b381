"""The manual says what the code has: statements, names, options and commands; its examples parse, and its links lead somewhere."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine import cli
from cq_engine.core import faults
from cq_engine.grammar import (
    AlterContinuousQuery,
    AlterTable,
    CreateCapture,
    CreateContinuousQuery,
    CreateTable,
    Dml,
    Query,
    Show,
    Statement,
    clauses,
    format_statement,
    parse,
    split,
)
from cq_engine.planner.select_list import DELTA_FUNCTIONS
from cq_engine.repl import examples
from cq_engine.repl.arguments import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FIRST_SCREEN = 40
"""Lines of a page that are seen without scrolling."""

SEE = "python3 -m venv .venv && .venv/bin/pip install -e '.[examples]' && .venv/bin/cq example flights"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest -n 2"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<'SQL'\n(.*?)\nSQL$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page in these languages, in order."""
    return [
        body for language, body in _BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages
    ]


def sql_of(page: Path) -> list[str]:
    """The SQL of a page: its sql blocks, its cq blocks, which nothing runs, and what its shell blocks feed to cq."""
    return blocks(page, "sql", "cq") + [
        sql for block in blocks(page, "sh") for sql in _HERE_DOCUMENT.findall(block)
    ]


def documented() -> list[Statement]:
    """The statements that docs/language.md shows."""
    return [parse(item.text) for sql in sql_of(ROOT / "docs/language.md") for item in split(sql)]


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


# ---------------------------------------------------------------- README


def test_first_screen_has_the_two_commands() -> None:
    first = README.read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN]
    assert SEE in first
    assert TEST in first
    assert first.index(SEE) < first.index(TEST)


def test_contributing_has_the_same_commands() -> None:
    text = text_of("CONTRIBUTING.md")
    assert SEE in text
    assert TEST in text


def test_ci_runs_the_second_command() -> None:
    """With variables and long options in the place of paths and short ones."""
    script = text_of(".ci/run")
    steps = [r"-m venv ", r"/bin/pip\" install .*(-e|--editable) '\.\[test\]'", r"/bin/pytest\""]
    assert re.search(".*".join(steps), script, re.DOTALL)


def test_the_commands_find_what_they_need() -> None:
    extras = re.search(
        r"^\[project\.optional-dependencies\]\n(.*?)^\[", text_of("pyproject.toml"), re.MULTILINE | re.DOTALL
    )
    assert extras is not None
    assert {"examples", "test", "postgres", "mariadb"} <= set(
        re.findall(r"^(\w+) = \[", extras[1], re.MULTILINE)
    )
    assert examples.find("flights").suffix == ".py"


def test_readme_has_every_command_of_cq() -> None:
    for command in set(COMMANDS) - {"prompt"}:
        assert f"cq {command}" in README.read_text(encoding="utf-8")


# ---------------------------------------------------------------- the language


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sql_parses_and_prints_back(page: Path) -> None:
    for sql in sql_of(page):
        for item in split(sql, source=page.name):
            statement = parse(item.text, item.source, item.line, item.column)
            assert parse(format_statement(statement)) == statement


def test_every_statement_is_shown() -> None:
    missing = set(subclasses(Statement)) - set(map(type, documented()))
    assert sorted(kind.__name__ for kind in missing) == []


def test_every_variant_of_a_statement_is_shown() -> None:
    shown = documented()
    assert {s.what for s in shown if isinstance(s, Show)} == {
        "TABLES",
        "CONTINUOUS QUERIES",
        "DESTINATIONS",
        "SOURCES",
        "CAPTURES",
        "FUNCTIONS",
        "PROCESSES",
        "REFRESHES",
    }
    assert {s.action for s in shown if isinstance(s, AlterContinuousQuery)} == {
        "PAUSE",
        "RESUME",
        "SET",
        "AS",
    }
    methods = {s.method.kind for s in shown if isinstance(s, CreateCapture)}
    assert methods == {"TIMESTAMP", "CHECKSUM", "COPY", "RANGES", "VIEW", "LOG"}
    actions = {s.action for s in shown if isinstance(s, AlterTable)}
    assert actions == {"ADD COLUMNS", "ADD FOREIGN KEY", "CLUSTER BY", "RENAME"}
    assert {s.kind for s in shown if isinstance(s, Dml)} == {
        "INSERT",
        "UPDATE",
        "DELETE",
        "MERGE",
        "TRUNCATE",
    }
    assert any(s.query for s in shown if isinstance(s, CreateTable))
    queries = " ".join(s.text for s in shown if isinstance(s, Query))
    for clause in ("VERSION AS OF", "TIMESTAMP AS OF", "CHANGES FROM VERSION"):
        assert clause in queries


def test_every_frequency_parses_as_the_table_has_it() -> None:
    section = text_of("docs/language.md").partition("### When\n")[2].partition("\n### ")[0]
    cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    shown = set()
    for clause in re.findall(r"`([^`]+)`", " ".join(cells)):
        statement = parse(f"CREATE CONTINUOUS QUERY q COMPUTE {clause} AS SELECT 1 AS a")
        assert isinstance(statement, CreateContinuousQuery)
        shown.add(type(statement.when).__name__)
    kinds = {"OnCommit", "EveryInterval", "StartWithPeriod", "Cron", "OnDml", "OnDemand"}
    assert shown == kinds
    assert all(hasattr(clauses, kind) for kind in kinds)


def test_defaults_are_as_documented() -> None:
    statement = parse("CREATE CONTINUOUS QUERY q SELECT 1 AS a")
    assert isinstance(statement, CreateContinuousQuery)
    explicit = "COMPUTE TRANSACTIONAL INSERT DELETE UPDATE DELTA ON COMMIT START FROM NOW"
    assert parse(f"CREATE CONTINUOUS QUERY q {explicit} AS SELECT 1 AS a") == statement
    assert (statement.primary_key, statement.destinations) == (None, ())


def test_every_delta_function_is_documented() -> None:
    text = text_of("docs/language.md")
    assert [name for name in DELTA_FUNCTIONS if f"`{name}(" not in text] == []


# ---------------------------------------------------------------- Python


def test_every_public_name_is_documented() -> None:
    text = text_of("docs/python.md")
    assert [name for name in cq_engine.__all__ if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(
    "kind",
    [
        cq_engine.Delta,
        cq_engine.DeltaBatch,
        cq_engine.Location,
        cq_engine.QueryDescription,
        cq_engine.Refresh,
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_is_documented(kind: Any) -> None:
    text = text_of("docs/python.md")
    names = [field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "kind", [cq_engine.Result, cq_engine.TransactionHandle], ids=lambda kind: kind.__name__
)
def test_every_member_is_documented(kind: Any) -> None:
    text = text_of("docs/python.md")
    names = [name for name in vars(kind) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"`{name}[`(]", text)] == []


@pytest.mark.parametrize(
    "name",
    [
        "connect",
        "apply_changes",
        "transaction",
        "run_script",
        "execute",
        "refresh",
        "drain",
        "deltas",
        "spark_session",
    ],
)
def test_signatures_are_as_documented(name: str) -> None:
    """Parameters and defaults, as docs/python.md writes them out."""
    function = getattr(cq_engine.Engine, name, None) or getattr(cq_engine, name)
    text = text_of("docs/python.md")
    found = re.search(rf"\b(?:engine|cq_engine)\.{name}\((.*?)\)(?: ->| as )", text, re.DOTALL)
    assert found is not None
    written = ast.parse(f"def f({found[1]}): pass").body[0]
    assert isinstance(written, ast.FunctionDef)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    arguments = [*written.args.args, *written.args.kwonlyargs]
    assert [a.arg for a in arguments] == [p.name for p in parameters]
    defaults = [*written.args.defaults, *(d for d in written.args.kw_defaults if d is not None)]
    real = [p.default for p in parameters if p.default is not inspect.Parameter.empty]
    assert [ast.literal_eval(default) for default in defaults] == real


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        if "->" not in block or "def " in block:  # not a signature written out
            ast.parse(block)


# ---------------------------------------------------------------- operations, links


def test_every_fault_point_is_documented() -> None:
    text = text_of("docs/reliability.md")
    assert [name for name in faults.POINTS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


# ---------------------------------------------------------------- the screenful, run


def test_screenful_prints_what_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (sql,) = sql_of(README)
    (program,) = blocks(README, "python")
    table, lines = blocks(README, "text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("sys.stdin", io.StringIO(sql))
    assert cli.main(["bank"]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
    assert printed[-len(table.splitlines()) :] == table.splitlines()
    exec(compile(program, str(README), "exec"), {})
    assert capsys.readouterr().out == lines
