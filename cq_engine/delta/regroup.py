"""Groups at their affected points: the rows of each, and aggregate functions over them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.functions import only_where
from cq_engine.algebra.nodes import (
    FROM,
    TO,
    Aggregate,
    Given,
    Named,
    Node,
    OuterJoin,
    Project,
    SemiJoin,
    column,
)
from cq_engine.delta.context import Context, Points, history
from cq_engine.delta.partition import add_keys, points_of, same
from cq_engine.delta.runtime_filters import push_filters, reducers_of

__all__ = ["AtPoints", "at_points", "group_points"]


@dataclass(frozen=True)
class AtPoints:
    """The input's rows at each point of the affected groups; a point without rows has one row with NULLs."""

    node: Node
    points: Points
    present: str
    """A column that is NULL in the row of a point without rows."""


def at_points(node: Aggregate, context: Context, only: Given | None = None) -> AtPoints:
    """The rows at the points of the affected groups, or of just those whose keys are the columns of `only`."""
    expressions = tuple(e for _, e in node.keys)
    points = points_of(node.input, expressions, context)
    assert points is not None  # only touched aggregates come here
    at, wanted = points.node, reducers_of(expressions, points.node, points.keys, nulls=True)
    if only is not None:
        if only.names:
            at = SemiJoin(at, only, False, tuple(same(a, b) for a, b in zip(points.keys, only.names)))
        wanted = reducers_of(expressions, only, only.names, nulls=True)
    rows, keys = add_keys(
        history(node.input, context.with_filters(push_filters(node.input, wanted))), expressions, context
    )
    valid: list[exp.Expr] = [same(a, b) for a, b in zip(points.keys, keys)]
    valid.append(exp.LTE(this=column(FROM), expression=column(points.start)))
    valid.append(exp.LT(this=column(points.start), expression=column(TO)))
    return AtPoints(OuterJoin(at, rows, "LEFT", tuple(valid)), points, FROM)


def group_points(node: Aggregate, at: AtPoints, count: str, functions: Named) -> Node:
    """`functions` of each affected group at each point, with the group's row count; columns in the node's names."""
    points = at.points
    is_there = exp.Not(this=exp.Is(this=column(at.present), expression=exp.Null()))
    number_of_rows = exp.Count(this=column(at.present))
    kept = tuple((name, only_where(call, is_there) if node.scalar else call) for name, call in functions)
    group = (
        *((k, column(k)) for k in points.keys),
        (points.start, column(points.start)),
        (points.end, column(points.end)),
    )
    result = Aggregate(at.node, group, ((count, number_of_rows), *kept))
    items = [(name, column(k)) for (name, _), k in zip(node.keys, points.keys)]
    items += [(name, column(name)) for name in (count, *(name for name, _ in functions))]
    return Project(result, (*items, (FROM, column(points.start)), (TO, column(points.end))))
