"""Statements that are very deep are refused with the limit, and very long ones are read."""

from __future__ import annotations

import time

import pytest

from cq_engine.core.errors import CQSyntaxError
from cq_engine.grammar import parse
from cq_engine.grammar.nesting import MAX_LEVELS

DEEP = {
    "brackets": lambda n: f"SELECT {'(' * n}1{')' * n}",
    "case": lambda n: f"SELECT {'CASE WHEN a THEN ' * n}1{' END' * n} FROM t",
    "subqueries": lambda n: f"SELECT * FROM {'(SELECT * FROM ' * n}t{')' * n}",
    "defining": lambda n: f"CREATE CONTINUOUS QUERY q AS SELECT {'abs(' * n}a{')' * n} FROM t",
    "not": lambda n: f"SELECT {'NOT ' * n}true",
    "signs": lambda n: f"SELECT {'- ' * n}1",
    "types": lambda n: f"CREATE TABLE t (a {'ARRAY<' * (n - 1)}INT{'>' * (n - 1)})",
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep(kind: str) -> None:
    parse(DEEP[kind](MAX_LEVELS))
    for levels in (MAX_LEVELS + 1, 5000, 100_000):
        with pytest.raises(CQSyntaxError, match="nested too deeply") as caught:
            parse(DEEP[kind](levels))
        assert str(MAX_LEVELS) in caught.value.hint
        assert caught.value.location is not None
        assert len(str(caught.value)) < 1000


def test_nested_explain() -> None:
    with pytest.raises(CQSyntaxError):
        parse("EXPLAIN " * 5000 + "SELECT 1")
    with pytest.raises(CQSyntaxError, match="never closed"):
        parse("EXPLAIN " * 20 + "CREATE TABLE (")


def test_words_in_strings_and_names_are_no_levels() -> None:
    parse("SELECT '" + "(" * 1000 + "', `" + "CASE " * 1000 + "` FROM t -- " + "(" * 1000)
    parse("SELECT " + ", ".join(["CASE WHEN a > 1 THEN (b) END"] * 1000) + " FROM t")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + ", ".join(f"c{n}" for n in range(20_000)) + " FROM t",
        "SELECT * FROM t WHERE a IN (" + ", ".join(map(str, range(20_000))) + ")",
        "INSERT INTO t VALUES " + ", ".join(f"({n}, 'x')" for n in range(20_000)),
        "SELECT * FROM t WHERE " + " AND ".join(["a = 1"] * 20_000),
        "CREATE TABLE t (" + ", ".join(f"c{n} INT" for n in range(20_000)) + ")",
    ],
    ids=lambda text: text[:12],
)
def test_long(text: str) -> None:
    started = time.monotonic()
    parse(text)
    assert time.monotonic() - started < 30
