"""The house is built as docs/architecture.md draws it: rooms, circles, and the three ways through them."""

from __future__ import annotations

import ast
import configparser
import importlib
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / ".importlinter"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STOPS = 10
"""The most files that a way leads through."""

_FILE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")


def section(title: str) -> str:
    """The text below a heading, up to the next of its level."""
    level = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert level, title
    rest = PAGE[level.end() :]
    end = re.search(rf"^#{{1,{len(level[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def ways() -> dict[str, list[str]]:
    """The stops of each way, file by file."""
    found = re.split(r"^### (.+)$", section("Three ways through the house"), flags=re.MULTILINE)
    return {
        title: _FILE.findall("\n".join(line for line in text.splitlines() if re.match(r"\d+\. ", line)))
        for title, text in zip(found[1::2], found[2::2])
    }


def module(file: str) -> str:
    return "cq_engine." + file.removesuffix(".py").replace("/", ".")


def test_rooms_know_only_what_is_below_them_and_have_no_circles() -> None:
    # In a process of its own, since it sets logging up anew; without a cache, since tests may run in several processes.
    program = f"from importlinter.cli import lint_imports; raise SystemExit(lint_imports({str(CONTRACT)!r}, no_cache=True))"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout


def test_the_table_lists_the_rooms_of_the_contract_in_their_order() -> None:
    contract = configparser.ConfigParser()
    contract.read(CONTRACT, encoding="utf-8")
    layers = contract["importlinter:contract:rooms"]["layers"].split()
    rows = [line for line in section("The rooms").splitlines() if line.startswith("| `")]
    drawn = [name for row in rows for name in re.findall(r"`([a-z_]+)(?:/|\.py)`", row.split("|")[1])]
    assert [*drawn, "__main__"] == layers[::-1]


def test_every_file_that_the_page_names_is_there() -> None:
    missing = [name for name in _FILE.findall(PAGE) if not (ROOT / "cq_engine" / name).is_file()]
    assert missing == []


@pytest.mark.parametrize("way", ways())
def test_a_way_has_few_stops_that_are_there(way: str) -> None:
    stops = ways()[way]
    assert 3 <= len(stops) < STOPS
    assert len(set(stops)) == len(stops), "a way does not come back to where it was"
    for stop in stops:
        importlib.import_module(module(stop))


def test_there_are_three_ways() -> None:
    assert len(ways()) == 3


def imports() -> set[tuple[str, str]]:
    """(room, room that imports from it), as the code has them."""
    found = set()
    for path in sorted((ROOT / "cq_engine").glob("*/")):
        for file in path.rglob("*.py"):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
            rooms = {name.split(".")[1] for name in names if name.startswith("cq_engine.")}
            found |= {(room, path.name) for room in rooms - {path.name}}
    return found


def test_the_picture_has_an_arrow_for_every_import_and_no_other() -> None:
    lines = re.search(r"```mermaid\nflowchart BT\n(.*?)```", PAGE, re.DOTALL)
    assert lines
    chains = [re.findall(r"\w+", line.replace("-->", " ")) for line in lines[1].strip().splitlines()]
    drawn = {pair for chain in chains for pair in itertools.pairwise(chain)}
    known = imports()
    assert {(low, high) for low, high in drawn if high != "cli"} <= known  # cli is a file

    def above(room: str) -> set[str]:
        found = {high for low, high in drawn if low == room}
        return found.union(*map(above, found))

    assert {(low, high) for low, high in known if high not in above(low)} == set()
