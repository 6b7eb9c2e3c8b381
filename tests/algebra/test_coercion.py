"""Equalities between types: both sides are cast where the values that are equal are not the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlglot import exp

from cq_engine.algebra.coercion import write_casts
from cq_engine.algebra.dialect import parse_expression, write
from cq_engine.algebra.emit import Emitter
from cq_engine.algebra.lowering.lower import lower
from cq_engine.algebra.names import Names, NotLowered
from cq_engine.algebra.nodes import Node

TABLES = {"a": ["id", "k"], "b": ["id", "s", "n"]}
KINDS = {"id": "int", "k": "int", "s": "string", "n": "bigint", "key0": "string", "in": "string"}
COMMON = {frozenset({"int", "string"}): "bigint"}


class Types:
    """What Spark says of columns, by the first part of their names."""

    def __call__(self, node: Node, expressions: Sequence[exp.Expr]) -> Sequence[str]:
        return [KINDS.get(write(e).strip("`_").rsplit("_", 1)[0], "unknown") for e in expressions]

    def comparison_type(self, left: str, right: str) -> str | None:
        return COMMON.get(frozenset({left, right}))


def plan(query: str, joins: bool = True) -> str:
    lowered = lower(parse_expression(query), TABLES, Names(), Types())
    node = write_casts(lowered.node, Types(), {}) if joins else lowered.node
    return Emitter(lambda leaf: leaf.table).statement("SELECT * FROM {0}", node)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a.id FROM a JOIN b ON a.k = b.s",
        "SELECT a.id FROM a LEFT JOIN b ON a.k <=> b.s",
        "SELECT a.id FROM a LEFT SEMI JOIN b ON a.k = b.s",
        "SELECT a.id FROM a WHERE k IN (SELECT s FROM b)",
    ],
)
def test_both_sides_are_cast(query: str) -> None:
    text = plan(query)
    assert "CAST(k_" in text, text
    assert text.count(" AS BIGINT)") == 2, text


def test_not_in_casts_what_it_tests_for_null() -> None:
    text = plan("SELECT a.id FROM a WHERE k NOT IN (SELECT s FROM b)")
    assert text.count(" AS BIGINT)") == 4, text


def test_a_correlated_subquery_groups_by_what_is_compared() -> None:
    text = plan("SELECT a.id, (SELECT count(*) FROM b WHERE b.s = a.k) AS c FROM a", joins=False)
    assert "SELECT CAST(s_" in text, text
    assert "(CAST(k_2 AS BIGINT)) = key0_" in text, text


def test_a_subquery_in_a_subquery() -> None:
    inner = "SELECT count(*) FROM b c WHERE c.s = d.k AND c.id > 0"
    text = plan(
        f"SELECT a.id, (SELECT max(d.k + ({inner})) FROM a d WHERE d.id = a.id) AS m FROM a", joins=False
    )
    assert "SELECT CAST(s_" in text, text


def test_whole_numbers_stay() -> None:
    assert "CAST(" not in plan("SELECT a.id FROM a LEFT JOIN b ON a.k = b.n")


def test_a_comparison_that_has_no_type_is_not_lowered() -> None:
    KINDS["n"] = "variant"
    try:
        with pytest.raises(NotLowered, match="is not a comparison of values of one type"):
            plan("SELECT a.id FROM a JOIN b ON a.k = b.n")
    finally:
        KINDS["n"] = "bigint"
