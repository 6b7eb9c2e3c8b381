"""Recompute of affected partitions: the rule for every operator whose result for a key depends on that key's rows only.

For an operator with partition key k over inputs Rᵢ, a commit can change its result only for the keys in π_k(ΔRᵢ).
`points` are those (key, commit) pairs, and for each such key the version before the interval. The operator is then
evaluated once per point, over the rows of that key that are valid there, by adding the point to its partition key:
one pass, whatever the number of commits. A point's result is valid until the key's next point. (Griffin & Kumar's
partition-wise recomputation, with the versions of the interval as one more grouping column.)
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.nodes import (
    BEFORE,
    FOREVER,
    FROM,
    TO,
    VERSION,
    Distinct,
    Edges,
    Empty,
    Join,
    Node,
    Project,
    SemiJoin,
    UnionAll,
    Values,
    Window,
    column,
)
from cq_engine.delta.context import Context, delta
from cq_engine.delta.linear import number, union

__all__ = ["Points", "at_points", "edges", "keyed", "points_of", "unaffected"]


@dataclass(frozen=True)
class Points:
    """The affected points: `node` has the columns `keys`, `start` (a version, or −1 for "before") and `end`."""

    node: Node
    keys: tuple[str, ...]
    start: str
    end: str


def keyed(node: Node, keys: tuple[exp.Expr, ...], context: Context) -> tuple[Node, tuple[str, ...]]:
    """`node`, a delta or a history, with the key expressions as added columns."""
    names = tuple(context.names.fresh("k") for _ in keys)
    items = [(name, column(name)) for name in node.columns]
    return Project(node, (*items, *zip(names, (k.copy() for k in keys)))), names


def points_of(parts: list[tuple[Node, tuple[exp.Expr, ...]]], context: Context) -> Points | None:
    """The points at which the partitions of the given (input, key expressions) change; None where none can."""
    names = context.names
    width = len(parts[0][1])
    keys = tuple(names.fresh("pk") for _ in range(width))
    start, end = names.fresh("p"), names.fresh("until")
    found: list[Node] = []
    for node, expressions in parts:
        changes = delta(node, context)
        if not isinstance(changes, Empty):
            items = [*zip(keys, (e.copy() for e in expressions)), (start, column(VERSION))]
            found.append(Project(changes, tuple(items)))
    if not found:
        return None
    pairs: Node = Distinct(union(found, (*keys, start)))
    if keys:
        before: Node = Distinct(Project(pairs, (*((k, column(k)) for k in keys), (start, number(BEFORE)))))
    else:
        before = Values((start,), ((number(BEFORE),),))
    both = UnionAll((pairs, before), (*keys, start))
    following = exp.Window(
        this=exp.Lead(this=column(start)),
        partition_by=[column(k) for k in keys],
        order=exp.Order(expressions=[exp.Ordered(this=column(start), nulls_first=True)]),
    )
    shown = Window(both, ((end, exp.Coalesce(this=following, expressions=[number(FOREVER)])),), ())
    context.kept.append(shown)
    return Points(shown, keys, start, end)


def same(left: str, right: str) -> exp.Expr:
    """NULL-safe equality of two columns (and NaN = NaN, as everywhere in Spark)."""
    return exp.NullSafeEQ(this=column(left), expression=column(right))


def at_points(
    points: Points, versions: Node, keys: tuple[str, ...], context: Context
) -> tuple[Node, str, str]:
    """The rows of `versions` (with key columns `keys`) at each point: all columns but validity, point start and end.

    The point's columns get fresh names, so that two inputs of one operator can be brought to the points side by side.
    """
    names = context.names
    own = tuple(names.fresh("pk") for _ in points.keys)
    start, end = names.fresh("p"), names.fresh("until")
    renamed = Project(
        points.node,
        (
            *((mine, column(theirs)) for mine, theirs in zip(own, points.keys)),
            (start, column(points.start)),
            (end, column(points.end)),
        ),
    )
    conditions: list[exp.Expr] = [same(a, b) for a, b in zip(own, keys)]
    conditions.append(exp.LTE(this=column(FROM), expression=column(start)))
    conditions.append(exp.LT(this=column(start), expression=column(TO)))
    joined = Join((renamed, versions), tuple(conditions))
    kept = [(name, column(name)) for name in versions.columns if name not in (FROM, TO)]
    return Project(joined, (*kept, (start, column(start)), (end, column(end)))), start, end


def unaffected(points: Points, versions: Node, keys: tuple[str, ...]) -> Node:
    """The rows of `versions` whose key has no point: they are valid all through the interval."""
    affected = Distinct(Project(points.node, tuple((k, column(k)) for k in points.keys)))
    rest = SemiJoin(versions, affected, True, tuple(same(a, b) for a, b in zip(keys, points.keys)))
    return Project(rest, tuple((n, column(n)) for n in versions.columns if n not in (FROM, TO)))


def edges(versions: Node) -> Node:
    """The delta that a node's row versions imply."""
    return Empty(()) if isinstance(versions, Empty) else Edges(versions)
