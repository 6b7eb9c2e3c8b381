"""Operators written by others whose deltas are known, so that fewer need a delta rule of their own.

    R RIGHT JOIN S      =  S LEFT JOIN R
    R FULL JOIN S       =  R LEFT JOIN S  ⊎  NULLs × (S ▷ R)
    DISTINCT R          =  groups of equal rows, with their number of rows
    R EXCEPT S, ...     =  groups of equal rows of R ⊎ S, with their number r in R and s in S, where r > 0 and s = 0
    R INTERSECT S       =  ... where r > 0 and s > 0
    R EXCEPT ALL S      =  ... each max(r − s, 0) times
    R INTERSECT ALL S   =  ... each min(r, s) times
    R ▷ S, a NOT IN b   =  ((R ▷ S on a = b) ▷ S on a IS NULL) ▷ σ(b IS NULL) S, less what can hold no NULL

The counts are sums, so that the state of such an aggregate is the multiplicity of each row (Gupta, Mumick &
Subrahmanian, "Maintaining Views Incrementally", SIGMOD 1993, counting).

>>> from cq_engine.algebra.nodes import Distinct, OuterJoin, Scan
>>> from cq_engine.algebra.show import explain
>>> r, s = Scan("r", (("a", "a"),)), Scan("s", (("b", "b"),))
>>> print(explain(normal(Distinct(r), Names(), lambda node: frozenset())))
Aggregate BY (a)
  Scan r (a)
>>> print(explain(normal(OuterJoin(r, s, "FULL", ()), Names(), lambda node: frozenset())))
UnionAll (a, b)
  OuterJoin LEFT
    #1 Scan r (a)
    #2 Scan s (b)
  Project NULL AS a, b
    AntiJoin
      #2
      #1
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra import nodes
from cq_engine.algebra.functions import not_in_operands
from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import Node, PlanError, column
from cq_engine.algebra.rebuild import rebuild

__all__ = ["group_by_all", "normal", "normal_form"]


Present = Callable[[Node], frozenset[str]]
"""The columns of a node that are never NULL."""


def normal(node: Node, names: Names, present: Present) -> Node:
    """`node` without RIGHT and FULL joins, set operations and the query's own DISTINCTs; NOT IN by equalities."""
    return rebuild(node, lambda each: normal_form(each, names, present))


@singledispatch
def normal_form(node: Node, names: Names, present: Present) -> Node:
    """One node by others, its inputs done."""
    raise PlanError(f"nothing says how {type(node).__name__} is written")


@normal_form.register(nodes.Scan)
@normal_form.register(nodes.Values)
@normal_form.register(nodes.Filter)
@normal_form.register(nodes.Project)
@normal_form.register(nodes.Generate)
@normal_form.register(nodes.UnionAll)
@normal_form.register(nodes.Join)
@normal_form.register(nodes.Mark)
@normal_form.register(nodes.Aggregate)
@normal_form.register(nodes.Window)
@normal_form.register(nodes.Limit)
def _itself(node: Node, names: Names, present: Present) -> Node:
    return node


@normal_form.register
def _distinct(node: nodes.Distinct, names: Names, present: Present) -> Node:
    return node if node.internal else group_by_all(node)


def group_by_all(node: nodes.Distinct, of: str = "DISTINCT") -> nodes.Aggregate:
    """DISTINCT as GROUP BY all columns."""
    return nodes.Aggregate(node.input, tuple((n, column(n)) for n in node.columns), (), not node.columns, of)


@normal_form.register
def _outer(node: nodes.OuterJoin, names: Names, present: Present) -> Node:
    if node.kind == "LEFT":
        return node
    if node.kind == "RIGHT":
        swapped = nodes.OuterJoin(node.right, node.left, "LEFT", node.conditions)
        return nodes.Project(swapped, tuple((name, column(name)) for name in node.columns))
    matched = nodes.OuterJoin(node.left, node.right, "LEFT", node.conditions)
    alone = nodes.SemiJoin(node.right, node.left, True, node.conditions)
    items: list[tuple[str, exp.Expr]] = [(name, exp.Null()) for name in node.left.columns]
    items += [(name, column(name)) for name in node.right.columns]
    return nodes.UnionAll((matched, nodes.Project(alone, tuple(items))), node.columns)


@normal_form.register
def _not_in(node: nodes.SemiJoin, names: Names, present: Present) -> Node:
    """Anti joins on plain conditions for one on `a = b OR a IS NULL OR b IS NULL`."""
    found = [(c, pair) for c in node.conditions if (pair := not_in_operands(c)) is not None]
    if not (found and node.anti):
        return node
    ours, theirs = present(node.left), present(node.right)
    hard = [(c, a, b) for c, (a, b) in found if not (_never_null(a, ours) and _never_null(b, theirs))]
    if len(hard) > 1:
        return node
    others = [c for c in node.conditions if c not in [c for c, _ in found]]
    equal: list[exp.Expr] = [exp.EQ(this=a.copy(), expression=b.copy()) for _, (a, b) in found]
    if not hard:
        return nodes.SemiJoin(node.left, node.right, True, (*others, *equal))
    ((condition, a, b),) = hard
    rest = [*others, *(e for e, (c, _) in zip(equal, found) if c is not condition)]
    result: Node = nodes.SemiJoin(node.left, node.right, True, (*others, *equal))
    if not _never_null(a, ours):
        result = nodes.SemiJoin(
            result, node.right, True, (*rest, exp.Is(this=a.copy(), expression=exp.Null()))
        )
    if not _never_null(b, theirs):
        without = nodes.Filter(node.right, exp.Is(this=b.copy(), expression=exp.Null()))
        result = nodes.SemiJoin(result, without, True, tuple(rest))
    return result


def _never_null(expression: exp.Expr, present: frozenset[str]) -> bool:
    bare = expression.unnest()
    return isinstance(bare, exp.Column) and bare.name in present


@normal_form.register
def _count_rows(node: nodes.SetOperation, names: Names, present: Present) -> Node:
    ours, theirs = names.fresh("left"), names.fresh("right")
    one, none = exp.Literal.number(1), exp.Null()
    sides = [
        nodes.Project(side, (*((n, column(n)) for n in side.columns), (ours, mine), (theirs, other)))
        for side, mine, other in ((node.left, one, none), (node.right, none, one))
    ]
    both = nodes.UnionAll(tuple(sides), (*node.names, ours, theirs))
    of = f"{node.kind} ALL" if node.all else node.kind
    r, s = names.fresh("r"), names.fresh("s")
    counts = ((r, exp.Count(this=column(ours))), (s, exp.Count(this=column(theirs))))
    rows: Node = nodes.Aggregate(both, tuple((n, column(n)) for n in node.names), counts, False, of)
    zero = exp.Literal.number(0)
    if not node.all:
        test = exp.EQ if node.kind == "EXCEPT" else exp.GT
        shown = exp.and_(
            exp.GT(this=column(r), expression=zero), test(this=column(s), expression=zero.copy())
        )
        return _only(nodes.Filter(rows, shown), node.names)
    times: exp.Expr = exp.Sub(this=column(r), expression=column(s))
    if node.kind == "INTERSECT":
        times = exp.Least(this=column(r), expressions=[column(s)], ignore_nulls=True)
    number = names.fresh("times")
    counted = nodes.Project(rows, (*((n, column(n)) for n in node.names), (number, times)))
    some = nodes.Filter(counted, exp.GT(this=column(number), expression=zero.copy()))
    upto = exp.Cast(this=column(number), to=exp.DataType.build("int", dialect="spark"))
    series = exp.Anonymous(this="sequence", expressions=[exp.Literal.number(1), upto])
    repeated = nodes.Generate(some, exp.Explode(this=series), (names.fresh("nth"),))
    return _only(repeated, node.names)


def _only(node: Node, columns: tuple[str, ...]) -> Node:
    return nodes.Project(node, tuple((name, column(name)) for name in columns))
