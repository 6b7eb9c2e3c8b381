"""Filter, projection and UNION ALL: applied to the delta rows and to the row versions alike.

Δσ(R) = σ(ΔR)    Δπ(R) = π(ΔR)    Δ(R ⊎ S) = ΔR ⊎ ΔS

>>> from cq_engine.algebra.names import Names
>>> from cq_engine.algebra.nodes import Filter, Scan
>>> from cq_engine.algebra.show import explain
>>> from cq_engine.delta.context import Context, delta
>>> from cq_engine.delta.rules import RULES
>>> from sqlglot import parse_one
>>> orders = Scan("orders", (("o", "o"), ("cust", "cust")))
>>> big = Filter(orders, parse_one("cust > 1"))
>>> context = Context(RULES, Names(), frozenset({"orders"}))
>>> print(explain(delta(big, context)))
Filter cust > 1
  Changes orders (o, cust, _v, _w)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from cq_engine.algebra.nodes import (
    BEFORE,
    FOREVER,
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Changes,
    Empty,
    Filter,
    Generate,
    History,
    Node,
    Project,
    Scan,
    UnionAll,
    Values,
    column,
)
from cq_engine.delta.context import Context, Rule, delta, history

__all__ = ["RULES"]


def number(value: int) -> exp.Expr:
    """A BIGINT literal."""
    return exp.Cast(this=exp.Literal.number(value), to=exp.DataType.build("bigint", dialect="spark"))


def union(parts: list[Node], columns: tuple[str, ...]) -> Node:
    """The union of the parts that can have rows."""
    live = [part for part in parts if not isinstance(part, Empty)]
    if not live:
        return Empty(columns)
    if len(live) == 1 and live[0].columns == columns:
        return live[0]
    return UnionAll(tuple(live), columns)


def always(node: Node) -> Node:
    """`node`'s rows as versions that are valid all through the interval."""
    items = [(name, column(name)) for name in node.columns]
    return Project(node, (*items, (FROM, number(BEFORE)), (TO, number(FOREVER))))


def without_validity(versions: Node) -> Node:
    """The rows of `versions`, which are all valid all through the interval."""
    return Project(versions, tuple((n, column(n)) for n in versions.columns if n not in (FROM, TO)))


def rename_validity(versions: Node, context: Context) -> tuple[Node, str, str]:
    """`versions` with validity columns of fresh names, so that two of them can be joined; and these names."""
    start, end = context.names.fresh("from"), context.names.fresh("to")
    items = [(name, column(name)) for name in versions.columns if name not in (FROM, TO)]
    return Project(versions, (*items, (start, column(FROM)), (end, column(TO)))), start, end


def valid_after(commit: exp.Expr, start: str, end: str) -> list[exp.Expr]:
    """The version [start, end) is the one after `commit`."""
    return [
        exp.LTE(this=column(start), expression=commit.copy()),
        exp.LT(this=commit.copy(), expression=column(end)),
    ]


def valid_before(commit: exp.Expr, start: str, end: str) -> list[exp.Expr]:
    """The version [start, end) is the one just before `commit`."""
    return [
        exp.LT(this=column(start), expression=commit.copy()),
        exp.LTE(this=commit.copy(), expression=column(end)),
    ]


def _scan_delta(node: Scan, context: Context) -> Node:
    return Changes(node)


def _scan_history(node: Scan, context: Context) -> Node:
    filters, among = context.filters.get(id(node), ()), context.among.get(id(node), ())
    return History(node, filters, among, context.meets.get(id(node)))


def _values_history(node: Values, context: Context) -> Node:
    return always(node)


def _filter(rows: Node, node: Filter) -> Node:
    return Filter(rows, node.condition)


def _project(rows: Node, node: Project, extra: tuple[str, str]) -> Node:
    return Project(rows, node.items + tuple((name, column(name)) for name in extra))


def _generate(rows: Node, node: Generate, extra: tuple[str, str]) -> Node:
    made = Generate(rows, node.call, node.names, node.outer)
    return Project(made, tuple((name, column(name)) for name in (*node.columns, *extra)))


def _alike(kind: type[Node], apply: Callable[[Node, Any, tuple[str, str]], Node]) -> Rule:
    """The rule of an operator that does the same to its input's signed rows as to its versions."""

    def over(rows: Node, node: Node, extra: tuple[str, str]) -> Node:
        return Empty((*node.columns, *extra)) if isinstance(rows, Empty) else apply(rows, node, extra)

    return Rule(
        kind,
        lambda node, context: over(delta(node.input, context), node, (VERSION, WEIGHT)),
        lambda node, context: over(history(node.input, context), node, (FROM, TO)),
    )


def _union_delta(node: UnionAll, context: Context) -> Node:
    return union([delta(each, context) for each in node.inputs], (*node.names, VERSION, WEIGHT))


def _union_history(node: UnionAll, context: Context) -> Node:
    return union([history(each, context) for each in node.inputs], (*node.names, FROM, TO))


RULES = (
    Rule(Scan, _scan_delta, _scan_history),
    Rule(Values, None, _values_history),
    _alike(Filter, lambda rows, node, _: _filter(rows, node)),
    _alike(Project, _project),
    _alike(Generate, _generate),
    Rule(UnionAll, _union_delta, _union_history),
)
