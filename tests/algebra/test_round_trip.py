"""Queries to algebra and back to SQL: fixture pairs, compared and executed.

`fixtures/<rule>.sql` holds pairs: a query, and what is emitted for its plan. CQ_UPDATE_SNAPSHOTS=1 rewrites them.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import duckdb
import pytest
import sqlglot

from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.lowering.lower import lower
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Node, Scan

FIXTURES = Path(__file__).parent / "fixtures"
TABLES = {"t": ("k", "g", "v"), "u": ("k", "w")}
ROWS = """
CREATE TABLE t AS FROM (VALUES (1, 'a', 5), (2, 'a', NULL), (3, 'b', 0), (4, NULL, 7), (5, 'b', 7)) r(k, g, v);
CREATE TABLE u AS FROM (VALUES (1, 'x'), (2, 'y'), (2, 'y'), (5, NULL), (7, 'z'), (NULL, 'x')) r(k, w);
"""


def emitted(query: str) -> str:
    """The query, lowered and emitted."""
    lowered = lower(parse_expression(query), TABLES, Names())

    def leaf(node: Node) -> str:
        assert isinstance(node, Scan)
        return f"(SELECT {', '.join(f'{quote(s)} AS {quote(n)}' for n, s in node.fields)} FROM {node.table})"

    shown = ", ".join(map(quote, lowered.outputs))
    text = Emitter(leaf).statement(f"SELECT {shown} FROM {{0}}", lowered.node)
    return sqlglot.transpile(text, read="spark", write="spark", pretty=True)[0]


def rows(query: str) -> Counter[tuple[object, ...]]:
    with duckdb.connect() as base:
        base.execute(ROWS)
        return Counter(base.execute(sqlglot.transpile(query, read="spark", write="duckdb")[0]).fetchall())


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.sql")), ids=lambda p: p.stem)
def test_fixtures(path: Path) -> None:
    parts = [part.strip() for part in path.read_text(encoding="utf-8").split(";\n") if part.strip()]
    queries, expected = parts[::2], parts[1::2]
    got = [emitted(query) for query in queries]
    if os.environ.get("CQ_UPDATE_SNAPSHOTS"):
        pairs = (f"{query};\n\n{text};\n" for query, text in zip(queries, got))
        path.write_text("\n".join(pairs), encoding="utf-8")
        expected = got
    assert got == expected
    for query, text in zip(queries, got):
        assert rows(query) == rows(text), query
