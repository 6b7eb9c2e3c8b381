"""The verdict on a lowered query, block by block: how each operator is maintained, and why.

Blocks come in the order of the plan, inner ones first. Filters, projections, generators and UNION ALL are no blocks:
they are applied to changed rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.analysis.lineage import path
from cq_engine.algebra.nodes import Node, PlanError, children, column, inner_first

__all__ = ["AFFECTED_KEYS", "FULL", "INCREMENTAL", "Exact", "block", "blocks", "classify", "full"]

INCREMENTAL = "INCREMENTAL"
AFFECTED_KEYS = "AFFECTED KEYS"
FULL = "FULL"

Exact = Mapping[int, bool]
"""For the ids of the aggregates that have a state: whether it is carried on when rows leave."""
Block = tuple[str, str, str]
"""What it is, its verdict, how it is maintained."""

_MOST = 100
_NUMBER = re.compile(r"_\d+$")


def classify(node: Node, stored: Exact) -> tuple[str, tuple[str, ...]]:
    """The verdict on the query and a line for each of its blocks."""
    found = blocks(node, stored)
    verdict = AFFECTED_KEYS if any(v == AFFECTED_KEYS for _, v, _ in found) else INCREMENTAL
    return verdict, tuple(f"{what}: {each}, {how}" for what, each, how in found)


def full(reason: str) -> str:
    """The line for a query that is recomputed."""
    return f"the whole query: {FULL}, {reason}"


def blocks(node: Node, stored: Exact) -> list[Block]:
    """The blocks of a plan; of one without any, a block for its filters and projections."""
    whole = inner_first(node)
    found = [found for each in whole if (found := block(each, stored)) is not None]
    if found:
        return found
    tables = dict.fromkeys(each.table for each in whole if isinstance(each, nodes.Scan))
    return [(f"rows of {', '.join(tables) or 'nothing'}", INCREMENTAL, "by the rows that change")]


@singledispatch
def block(node: Node, stored: Exact) -> Block | None:
    """What to say of `node`; None where it is no block of its own."""
    raise PlanError(f"no verdict on {type(node).__name__}")


@block.register(nodes.Scan)
@block.register(nodes.Values)
@block.register(nodes.Filter)
@block.register(nodes.Project)
@block.register(nodes.Generate)
@block.register(nodes.UnionAll)
def _no_block(node: Node, stored: Exact) -> None:
    """It is applied to changed rows."""


@block.register
def _join(node: nodes.Join, stored: Exact) -> Block:
    return f"join{_on(node)}", INCREMENTAL, "by the rows that change and those that join them"


@block.register
def _outer_join(node: nodes.OuterJoin, stored: Exact) -> Block:
    return f"{node.kind} JOIN{_on(node)}", INCREMENTAL, _how_matched(node)


@block.register
def _semi_join(node: nodes.SemiJoin, stored: Exact) -> Block:
    what = "rows without a match" if node.anti else "rows with a match"
    return f"{what}{_on(node)}", INCREMENTAL, _how_matched(node)


@block.register
def _mark(node: nodes.Mark, stored: Exact) -> Block:
    return f"is there a match{_on(node)}", INCREMENTAL, _how_matched(node)


def _how_matched(node: nodes.OuterJoin | nodes.SemiJoin | nodes.Mark) -> str:
    sides = [set(node.left.columns), set(node.right.columns)]
    for condition in node.conditions:
        bare = condition.unnest()
        if isinstance(bare, (exp.EQ, exp.NullSafeEQ)):
            used = [{c.name for c in side.find_all(exp.Column)} for side in (bare.left, bare.right)]
            if any(a and b and a <= sides[0] and b <= sides[1] for a, b in (used, used[::-1])):
                return "by the rows that change, and those that a changed row can match"
    return (
        "by the rows that change; no equality says which rows a changed row can match, so that all are tried"
    )


@block.register
def _aggregate(node: nodes.Aggregate, stored: Exact) -> Block:
    keys = _list((e for _, e in node.keys), node.input)
    calls = _calls(e for _, e in node.functions)
    if node.of:
        return node.of, *_counts(node, stored)
    what = f"GROUP BY {keys}" if node.keys else "aggregate without GROUP BY"
    what += f" ({calls})" if calls else ""
    each = "per group" if node.keys else "for the one row"
    if id(node) not in stored:
        return what, AFFECTED_KEYS, f"computed anew {each}, from all its rows, where rows change"
    if not stored[id(node)]:
        return (
            what,
            INCREMENTAL,
            f"kept {each}; its rows are read again where an extremum, or a FLOAT or DOUBLE value, leaves",
        )
    return what, INCREMENTAL, f"sums and counts are kept {each}"


def _counts(node: nodes.Aggregate, stored: Exact) -> tuple[str, str]:
    if id(node) in stored:
        return INCREMENTAL, "the number of equal rows is kept"
    return AFFECTED_KEYS, "equal rows are counted anew where rows change"


@block.register
def _distinct(node: nodes.Distinct, stored: Exact) -> Block:
    return (
        f"different values of {_list(map(column, node.columns), node.input)}",
        AFFECTED_KEYS,
        "looked up where rows change",
    )


@block.register
def _set_operation(node: nodes.SetOperation, stored: Exact) -> Block:
    what = f"{node.kind} ALL" if node.all else node.kind
    return what, AFFECTED_KEYS, "equal rows are counted anew where rows change"


@block.register
def _window(node: nodes.Window, stored: Exact) -> Block:
    what = f"window functions ({_calls(e.this for _, e in node.functions)})"
    if not node.keys:
        return f"{what} without PARTITION BY", AFFECTED_KEYS, "all rows are one partition, computed anew"
    return (
        f"{what} per {_list(node.keys, node.input)}",
        AFFECTED_KEYS,
        "computed anew per partition, from all its rows, where rows change",
    )


@block.register
def _limit(node: nodes.Limit, stored: Exact) -> Block:
    what = "all rows" if node.count is None else f"the first {node.count} rows"
    what += f" after {node.offset}" if node.offset else ""
    what += f" by {_list(node.order, node.input)}" if node.order else ""
    if not node.keys:
        return what, AFFECTED_KEYS, "all rows are one partition, computed anew"
    return (
        f"{what} per {_list(map(column, node.keys), node.input)}",
        AFFECTED_KEYS,
        "computed anew per partition where rows change",
    )


# ------------------------------------------------------------------------------------------------ words


def _on(node: nodes.Join | nodes.OuterJoin | nodes.SemiJoin | nodes.Mark) -> str:
    shown = [_plain(condition, *children(node)) for condition in node.conditions]
    return f" on {_short(' AND '.join(shown))}" if shown else ""


def _list(expressions: Iterable[exp.Expr], under: Node) -> str:
    """Expressions over the columns of `under`."""
    return _short(", ".join(_plain(each, under) for each in expressions))


def _plain(expression: exp.Expr, *under: Node) -> str:
    """The expression with the columns' names as the query has them."""

    def named(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        return _origin(next(each for each in under if node.name in each.columns), node.name)

    return expression.transform(named).sql(dialect="spark")


def _origin(node: Node, name: str) -> exp.Expr:
    """What the plan's column `name` of `node` is called where it is made."""
    made, name = path(node, name)[-1]
    return exp.column(made.source_of(name) if isinstance(made, nodes.Scan) else _NUMBER.sub("", name))


def _calls(calls: Iterable[exp.Expr]) -> str:
    return _short(", ".join(dict.fromkeys(e.sql(dialect="spark").split("(")[0].lower() for e in calls)))


def _short(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
