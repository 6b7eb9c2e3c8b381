"""Every query of `shapes/<subject>.sql` is lowered, and its plan gives in Spark what the query gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.emit import Emitter, quote, sql_of
from cq_engine.algebra.lowering.lower import lower
from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import Node, Scan

SHAPES = Path(__file__).parent / "shapes"
TABLES = {"t": ("k", "g", "v"), "u": ("k", "w"), "a": ("id", "k", "arr", "m", "s", "ss")}
ROWS = {
    "t": """VALUES (1, 'a', 5), (2, 'a', NULL), (3, 'b', 0), (4, NULL, 7), (5, 'b', 7), (1, 'a', 5), (NULL, 'x', 7),
                   (2, 'y', 1) AS r(k, g, v)""",
    "u": "VALUES (1, 'x'), (2, 'y'), (2, 'y'), (5, NULL), (7, 'z'), (NULL, 'x'), (1, 'a') AS r(k, w)",
    "a": """VALUES
        (1, 1, array(1, 2, 2), map('p', 1, 'q', NULL), named_struct('x', 1, 'y', 'a'),
         array(named_struct('x', 1, 'y', 'a'), named_struct('x', 2, 'y', NULL))),
        (2, 5, array(), map(), named_struct('x', NULL, 'y', 'b'), array()),
        (3, NULL, NULL, NULL, NULL, NULL),
        (4, 1, array(NULL, 3), map('r', 9), named_struct('x', 3, 'y', 'c'), array(named_struct('x', 3, 'y', 'c')))
        AS r(id, k, arr, m, s, ss)""",
}  # fmt: skip
STAYS_FULL = (
    (
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 3) SELECT n FROM c",
        "recursive CTE",
    ),
    ("SELECT k FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
    ("SELECT id, e.x FROM a LEFT JOIN LATERAL explode(a.arr) AS e(x)", "write ON true"),
    ("SELECT t.k FROM t LEFT JOIN u ON t.k = u.k AND t.v NOT IN (SELECT k FROM a)", "NOT IN"),
    (
        "SELECT t.k FROM t WHERE EXISTS (SELECT w FROM u WHERE u.k <= t.k EXCEPT SELECT w FROM u WHERE u.k = t.k)",
        "EXCEPT",
    ),
)


@pytest.fixture(scope="module")
def session(once: SparkSession) -> Iterator[SparkSession]:
    """A session with the tables."""
    for name, rows in ROWS.items():
        once.sql(f"SELECT * FROM {rows}").createOrReplaceTempView(name)
    yield once
    for name in ROWS:
        once.catalog.dropTempView(name)


def types_of(frame: DataFrame) -> list[str]:
    return [field.dataType.simpleString() for field in frame.schema.fields]


def result(session: SparkSession, query: str) -> tuple[list[str], Counter[str]]:
    """A query's types, and its rows with how often each is there."""
    frame = session.sql(query)
    return types_of(frame), Counter(repr(tuple(row)) for row in frame.collect())


def _leaf(node: Node) -> str:
    assert isinstance(node, Scan)
    return f"(SELECT {', '.join(f'{quote(s)} AS {quote(n)}' for n, s in node.fields)} FROM {node.table})"


def _emitted(query: str, session: SparkSession) -> str:
    """The query, lowered and emitted."""

    def types(node: Node, expressions: Sequence[exp.Expr]) -> list[str]:
        items = ", ".join(f"{sql_of(e)} AS c{i}" for i, e in enumerate(expressions))
        text = Emitter(_leaf).statement("SELECT @items FROM {0}", node)
        return types_of(session.sql(text.replace("@items", items)))

    lowered = lower(parse_expression(query), TABLES, Names(), types)
    shown = ", ".join(map(quote, lowered.outputs))
    return Emitter(_leaf).statement(f"SELECT {shown} FROM {{0}}", lowered.node)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("path", sorted(SHAPES.glob("*.sql")), ids=lambda p: p.stem)
def test_a_plan_gives_what_its_query_gives(path: Path, part: int, session: SparkSession) -> None:
    """Of every file each second query, and the others in the long runs."""
    wrong = []
    for query in path.read_text(encoding="utf-8").split(";\n")[part::2]:
        if not query.strip():
            continue
        try:
            text = _emitted(query, session)
        except NotLowered as reason:
            wrong.append(f"{query}\n  recomputed in full: {reason}")
            continue
        wanted, got = result(session, query), result(session, text)
        if wanted != got:
            wrong.append(
                f"{query}\n  {wanted[0]} {got[0]}\n  lacks {wanted[1] - got[1]}\n  has {got[1] - wanted[1]}"
            )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("query", "reason"), STAYS_FULL)
def test_what_is_recomputed_in_full_says_why(query: str, reason: str) -> None:
    with pytest.raises(NotLowered, match=reason):
        lower(parse_expression(query), TABLES, Names())
