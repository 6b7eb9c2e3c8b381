"""Orders that are made total: what becomes of a query's windows, limits and aggregates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from sqlglot import exp

from cq_engine.algebra.analysis.keys import TableKeys
from cq_engine.algebra.analysis.lineage import column_types
from cq_engine.algebra.dialect import parse_expression
from cq_engine.algebra.lowering.lower import lower
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Aggregate, Limit, Node, Project, Window, children
from cq_engine.algebra.rewrite.deterministic_ordering import make_deterministic, ordering_notes
from cq_engine.planner.comparable import comparable

TABLES = {
    "t": {"id": "int", "p": "int", "o": "int", "x": "int", "s": "string"},
    "e": {"p": "int", "o": "int", "x": "int"},
    "m": {"p": "int", "x": "map<string,int>"},
    "c": {"k": "string collate UTF8_LCASE", "p": "int"},
    "w": {"p": "int", "gap": "interval"},
}
KEYS = {"t": ("id",)}
ENTRIES = "ARRAY_SORT(TRANSFORM(MAP_ENTRIES(x), e0 -> STRUCT(e0.key AS key, e0.value AS value)))"


def rewritten(query: str) -> tuple[list[str], tuple[str, ...], bool]:
    """What the plan computes, names without numbers; the notes; whether the plan has stayed as it was."""
    names = Names()
    tree = parse_expression(query)
    plan = lower(tree, {name: tuple(columns) for name, columns in TABLES.items()}, names).node
    known = column_types(plan, lambda table, name: TABLES[table][name])

    def types(node: Node, expressions: Sequence[exp.Expr]) -> Sequence[str]:
        return [known.get(e.name, "int") for e in expressions]

    node, notes = make_deterministic(plan, TableKeys(KEYS.get, known), types, comparable, names)
    return [re.sub(r"_\d+\b", "", text) for text in _texts(node)], notes, node is plan


def _texts(node: Node) -> Iterator[str]:
    for child in children(node):
        yield from _texts(child)
    if isinstance(node, (Window, Aggregate)):
        yield from (e.sql(dialect="spark") for _, e in node.functions)
    elif isinstance(node, Limit):
        yield "LIMIT BY " + ", ".join(o.sql(dialect="spark") for o in node.order)
    elif isinstance(node, Project) and isinstance(node.input, (Window, Aggregate)):
        yield from ("-> " + e.sql(dialect="spark") for _, e in node.items if not isinstance(e, exp.Column))


LIMITS = (
    ("SELECT id, x FROM t ORDER BY o LIMIT 3", "LIMIT BY ord, id"),
    # The key is not there any more: all columns that are.
    ("SELECT x FROM t ORDER BY o DESC LIMIT 3", "LIMIT BY ord DESC, x"),
    ("SELECT o, x FROM e ORDER BY o OFFSET 2", "LIMIT BY o, x"),
    # `p` has one value here.
    ("SELECT p, o, x FROM e WHERE p = 1 ORDER BY o LIMIT 2", "LIMIT BY o, x"),
    ("SELECT * FROM m LIMIT 2", f"LIMIT BY p, {ENTRIES}"),
    # Text that is equal in its collation need not be the same.
    ("SELECT k FROM c ORDER BY k LIMIT 2", "LIMIT BY k, CAST(k AS STRING)"),
    ("SELECT p FROM t UNION ALL SELECT x FROM e LIMIT 3", "LIMIT BY p"),
)

WINDOWS = (
    (
        "row_number() OVER (PARTITION BY p ORDER BY o DESC)",
        "ROW_NUMBER() OVER (PARTITION BY p ORDER BY o DESC, id)",
    ),
    ("ntile(2) OVER (ORDER BY o)", "NTILE(2) OVER (ORDER BY o, id)"),
    ("lag(x, 1, 0) IGNORE NULLS OVER (ORDER BY o)", "LAG(x, 1, 0) IGNORE NULLS OVER (ORDER BY o, id)"),
    ("lead(x) OVER (ORDER BY o)", "LEAD(x) OVER (ORDER BY o, id)"),
    ("counter_diff(x) OVER (ORDER BY o)", "COUNTER_DIFF(x) OVER (ORDER BY o, id)"),
    (
        "sum(x) OVER (ORDER BY o ROWS 1 PRECEDING)",
        "SUM(x) OVER (ORDER BY o, id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    ),
    (
        "any_value(x) OVER (PARTITION BY p)",
        "ANY_VALUE(x) OVER (PARTITION BY p ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
    ),
    (
        "last(x, true) OVER (ORDER BY o RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
        "LAST(x) IGNORE NULLS OVER (ORDER BY o, id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
    ),
    # The first row of the frame is the first one of the partition, with or without peers.
    ("first_value(x) OVER (ORDER BY o)", "FIRST_VALUE(x) OVER (ORDER BY o, id)"),
    (
        "last_value(x) OVER (ORDER BY o RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
        "LAST_VALUE(x) OVER (ORDER BY o, id RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
    ),
    ("mode(x) OVER (PARTITION BY p)", "MODE(x, TRUE) OVER (PARTITION BY p)"),
)

PEERS = (
    ("first_value(x) IGNORE NULLS OVER (ORDER BY o)", "MIN_BY(x, IF(NOT (x) IS NULL, rank, NULL)) OVER (ORDER BY o)", ""),
    ("last_value(x) OVER (ORDER BY o)", "MAX_BY(x, rank) OVER (ORDER BY o)", ""),
    (
        "nth_value(x, 2) OVER (ORDER BY o)",
        "COLLECT_LIST(NAMED_STRUCT('i', NAMED_STRUCT('i0', rank), 'v', x)) OVER (ORDER BY o)",
        "-> GET(SORT_ARRAY(raw), (2) - 1).v",
    ),
    (
        "collect_list(x) OVER (ORDER BY o)",
        "COLLECT_LIST(IF(NOT (x) IS NULL, NAMED_STRUCT('i', NAMED_STRUCT('i0', rank), 'v', x), NULL)) OVER (ORDER BY o)",
        "-> SORT_ARRAY(raw).v",
    ),
)  # fmt: skip

AGGREGATES = (
    ("first(x)", ["MIN_BY(x, id)"]),
    ("last(x, true)", ["MAX_BY(x, IF(NOT (x) IS NULL, id, NULL))"]),
    ("any_value(x) FILTER (WHERE o > 1)", ["MIN_BY(x, id) FILTER(WHERE o > 1)"]),
    ("first(x) FILTER (WHERE o > 1) IGNORE NULLS", ["MIN_BY(x, IF(NOT (x) IS NULL, id, NULL)) FILTER(WHERE o > 1)"]),
    (
        "collect_list(x)",
        [
            "COLLECT_LIST(IF(NOT (x) IS NULL, NAMED_STRUCT('i', NAMED_STRUCT('i0', id), 'v', x), NULL))",
            "-> SORT_ARRAY(raw).v",
        ],
    ),
    (
        "collect_list(x) RESPECT NULLS",
        ["COLLECT_LIST(NAMED_STRUCT('i', NAMED_STRUCT('i0', id), 'v', x))", "-> SORT_ARRAY(raw).v"],
    ),
    ("collect_set(x) RESPECT NULLS", ["COLLECT_SET(x) RESPECT NULLS", "-> SORT_ARRAY(raw)"]),
    ("array_agg(DISTINCT x)", ["COLLECT_LIST(DISTINCT x)", "-> SORT_ARRAY(raw)"]),
    ("collect_set(x)", ["COLLECT_SET(x)", "-> SORT_ARRAY(raw)"]),
    ("collect_union(x)", ["COLLECT_UNION(x)", "-> SORT_ARRAY(raw)"]),
    ("mode(x)", ["MODE(x, TRUE)"]),
    ("mode() WITHIN GROUP (ORDER BY x)", ["MODE() WITHIN GROUP (ORDER BY x)"]),
    ("max_by(x, o)", ["MAX_BY(x, IF(NOT (o) IS NULL, NAMED_STRUCT('y', o, 'i0', id), NULL))"]),
    ("min_by(x, id)", ["MIN_BY(x, id)"]),
    ("max_by(x, id, 2)", ["MAX_BY(x, IF(NOT (id) IS NULL, NAMED_STRUCT('y', id), NULL), 2)"]),
    (
        "listagg(s)",
        [
            "COLLECT_LIST(IF(NOT (s) IS NULL, NAMED_STRUCT('i', NAMED_STRUCT('i0', id), 'v', s), NULL))",
            "-> IF(SIZE(raw) > 0, ARRAY_JOIN(SORT_ARRAY(raw).v, ''), NULL)",
        ],
    ),
    ("listagg(DISTINCT s, ',')", ["COLLECT_LIST(DISTINCT s)", "-> IF(SIZE(raw) > 0, ARRAY_JOIN(SORT_ARRAY(raw), ','), NULL)"]),
    (
        "string_agg(s, ';') WITHIN GROUP (ORDER BY o DESC) FILTER (WHERE o > 0)",
        ["LISTAGG(s, ';') WITHIN GROUP (ORDER BY o DESC, id) FILTER(WHERE o > 0)"],
    ),
    # Without a separator there is none; sqlglot alone would write a comma.
    ("listagg(x)", ["LISTAGG(x) WITHIN GROUP (ORDER BY id)"]),
)  # fmt: skip

AS_THEY_ARE = (
    "SELECT id FROM t ORDER BY o, id LIMIT 3",
    "SELECT max(x) AS x FROM t ORDER BY x LIMIT 1",
    "SELECT row_number() OVER (PARTITION BY p ORDER BY id) AS r FROM t",
    "SELECT row_number() OVER (PARTITION BY id ORDER BY o) AS r FROM t",
    "SELECT rank() OVER (ORDER BY o) AS a, cume_dist() OVER (ORDER BY o) AS b, sum(x) OVER (ORDER BY o) AS c FROM t",
    "SELECT dense_rank() OVER (ORDER BY o) AS a, percent_rank() OVER (ORDER BY o) AS b FROM t",
    "SELECT max(x) OVER (ORDER BY o ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS m FROM t",
    "SELECT id, first(x) AS a, collect_list(x) AS b, max_by(x, o) AS c FROM t GROUP BY id",
    "SELECT p, count(*) AS n, sum(x) AS x, count(DISTINCT o) AS o FROM t GROUP BY p",
)


@pytest.mark.parametrize(("query", "expected"), LIMITS)
def test_limit(query: str, expected: str) -> None:
    texts, notes, _ = rewritten(query)
    assert texts == [expected]
    assert notes == ()


@pytest.mark.parametrize(("call", "expected"), WINDOWS)
def test_window(call: str, expected: str) -> None:
    assert rewritten(f"SELECT id, {call} AS r FROM t")[:2] == ([expected], ())


@pytest.mark.parametrize(("call", "expected", "shown"), PEERS)
def test_frame_with_peers(call: str, expected: str, shown: str) -> None:
    texts, notes, _ = rewritten(f"SELECT id, {call} AS r FROM t")
    assert texts == ["ROW_NUMBER() OVER (ORDER BY o, id)", expected, *([shown] if shown else [])]
    assert notes == ()


@pytest.mark.parametrize(("call", "expected"), AGGREGATES)
def test_aggregate(call: str, expected: list[str]) -> None:
    assert rewritten(f"SELECT p, {call} AS r FROM t GROUP BY p")[:2] == (expected, ())


@pytest.mark.parametrize("query", AS_THEY_ARE)
def test_what_has_no_ties_stays(query: str) -> None:
    assert rewritten(query)[1:] == ((), True)


def test_rows_that_are_equal_are_numbered_by_one_order_after_the_other() -> None:
    """Else two equal rows could be (1, 2) and (2, 1) in one refresh, (1, 1) and (2, 2) in the next."""
    text = "row_number() OVER (ORDER BY o) AS a, row_number() OVER (ORDER BY x) AS b, lag(x) OVER (ORDER BY o) AS c"
    texts, _, _ = rewritten(f"SELECT {text} FROM e")
    assert texts == [
        "ROW_NUMBER() OVER (ORDER BY o, p, x)",
        "LAG(x) OVER (ORDER BY o, p, x)",
        "ROW_NUMBER() OVER (ORDER BY x, p, o, win, win)",
    ]


def test_a_column_without_an_order_is_said() -> None:
    texts, notes, _ = rewritten("SELECT p, gap FROM w LIMIT 2")
    assert texts == ["LIMIT BY p"]
    assert len(notes) == 1
    assert notes[0].startswith("LIMIT: gap (interval) cannot be ordered")


def test_an_approximate_function_is_said() -> None:
    _, notes, same = rewritten("SELECT p, approx_percentile(x, 0.5) AS a FROM t GROUP BY p")
    assert notes == ("approx_percentile: approximate, may differ from one computation to the next",)
    assert same


def test_an_array_of_what_has_no_order_is_sorted_by_place() -> None:
    texts, notes, _ = rewritten("SELECT p, collect_list(x) AS a FROM m GROUP BY p")
    assert (
        texts[1]
        == "-> ARRAY_SORT(raw, (l, r) -> CASE WHEN l.i < r.i THEN -1 WHEN l.i > r.i THEN 1 ELSE 0 END).v"
    )
    assert notes == ()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT x FROM t ORDER BY o LIMIT 3", "limit"),
        ("SELECT row_number() OVER (ORDER BY o), first(x) OVER (ORDER BY o) FROM t", "first, row_number"),
        ("SELECT mode(x), collect_list(x) FROM t", "collect_list, mode"),
        ("SELECT sum(x), rank() OVER (ORDER BY o) FROM t", ""),
    ],
)
def test_what_a_recomputed_query_may_decide_anew(query: str, expected: str) -> None:
    notes = ordering_notes(parse_expression(query))
    assert [note.split(":")[0].lower() for note in notes] == ([expected] if expected else [])
