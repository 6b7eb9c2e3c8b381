"""Delta functions in the outermost SELECT list: found anywhere in it, cut out, refused elsewhere."""

from __future__ import annotations

import re

import pytest

from cq_engine.core.errors import AnalysisError
from cq_engine.planner.select_list import safe_name, select_list

STRIPPED = (
    ("SELECT a, b FROM t", "SELECT a, b FROM t", []),
    ("SELECT delta_marker(), a FROM t", "SELECT a FROM t", ["marker", "result"]),
    ("SELECT a, cq_delta_marker() AS m FROM t", "SELECT a FROM t", ["result", "marker"]),
    ("SELECT a, cq_time(), b FROM t", "SELECT a, b FROM t", ["result", "time", "result"]),
    (
        "SELECT cq_commit_time() AS c, cq_commit_version(), a, b FROM t",
        "SELECT a, b FROM t",
        ["commit_time", "commit_version", "result", "result"],
    ),
    ("SELECT DISTINCT delta_marker(), a FROM t", "SELECT DISTINCT a FROM t", ["marker", "result"]),
    ("SELECT f(a, b), cq_old_value(f(a, b)) AS o FROM t", "SELECT f(a, b) FROM t", ["result", "old"]),
    ("SELECT sum(a) AS s, cq_old_value(s) FROM t GROUP BY b", "SELECT sum(a) AS s FROM t GROUP BY b", ["result", "old"]),
    (
        "WITH w AS (SELECT a, b FROM t) SELECT delta_marker() AS d, a FROM w",
        "WITH w AS (SELECT a, b FROM t) SELECT a FROM w",
        ["marker", "result"],
    ),
    (
        "SELECT a, /* cq_time() here */ delta_marker() -- ends\nFROM t",
        "SELECT a FROM t",
        ["result", "marker"],
    ),
    ("SELECT 'delta_marker()' AS text FROM t", "SELECT 'delta_marker()' AS text FROM t", []),
    ("SELECT delta_marker FROM t", "SELECT delta_marker FROM t", []),
    ("SELECT (SELECT max(x) FROM u) AS m, delta_marker() FROM t", "SELECT (SELECT max(x) FROM u) AS m FROM t",
     ["result", "marker"]),
)  # fmt: skip


def words(text: str) -> list[str]:
    lines = [line.split("--")[0] for line in text.replace("/* cq_time() here */", "").splitlines()]
    return re.sub(r"\s+,", ",", " ".join(lines)).split()


@pytest.mark.parametrize(("query", "stripped", "kinds"), STRIPPED)
def test_functions_are_cut_out(query: str, stripped: str, kinds: list[str]) -> None:
    found = select_list(query)
    assert words(found.stripped) == words(stripped)
    assert [item.kind for item in found.items] == kinds
    assert len(found.stripped) == len(query), "positions in the text must stay"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT a FROM t WHERE delta_marker() = 'I'", "outside the outermost SELECT list"),
        ("SELECT a FROM (SELECT a, cq_time() FROM t)", "outside the outermost SELECT list"),
        (
            "WITH w AS (SELECT delta_marker() AS d FROM t) SELECT d FROM w",
            "outside the outermost SELECT list",
        ),
        ("SELECT a FROM t UNION ALL SELECT cq_commit_version() FROM t", "outside the outermost SELECT list"),
        ("SELECT a, upper(delta_marker()) FROM t", "must be a column of its own"),
        ("SELECT a, delta_marker() || 'x' AS m FROM t", "must be a column of its own"),
        ("SELECT delta_marker(), cq_time() FROM t", "nothing but delta functions"),
        ("SELECT a, cq_old_value() FROM t", "takes one argument"),
        ("SELECT a, delta_marker(a) FROM t", "takes no argument"),
    ],
)
def test_misuse_is_explained(query: str, message: str) -> None:
    with pytest.raises(AnalysisError) as caught:
        select_list(query)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a", "a"),
        ("Sum(Amt)", "sum_amt"),
        ("a b", "a_b"),
        ("count(1)", "count_1"),
        ("()", "c"),
        ("größe", "größe"),
    ],
)
def test_safe_name(name: str, safe: str) -> None:
    assert safe_name(name) == safe
