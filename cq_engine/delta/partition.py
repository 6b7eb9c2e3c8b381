"""Recompute of affected partitions: the rule for every operator whose result for a key depends on that key's rows only.

For an operator with partition key k over R, a commit can change its result only for the keys in π_k(ΔR). `points` are
those (key, commit) pairs, and for each such key the version before the interval. The operator is then evaluated once
per point, over the rows of that key that are valid there, by adding the point to its partition key: one pass,
whatever the number of commits. A point's result is valid until the key's next point. (Griffin & Kumar's
partition-wise recomputation, with the versions of the interval as one more grouping column.)
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from cq_engine.algebra.nodes import (
    BEFORE,
    FOREVER,
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Distinct,
    Edges,
    Empty,
    Filter,
    Join,
    Node,
    Project,
    SemiJoin,
    UnionAll,
    Values,
    Window,
    column,
)
from cq_engine.delta.context import Context, Points, delta, has_changes, history
from cq_engine.delta.linear import always, number, union, without_validity
from cq_engine.delta.runtime_filters import push_filters, reducers_of

__all__ = [
    "Build",
    "add_keys",
    "edges",
    "not_null",
    "partition_history",
    "partition_versions",
    "points_of",
    "same",
    "unaffected_rows",
]

Build = Callable[[Node, tuple[str, ...]], Node]
"""Puts an operator over its input; the second argument are columns that each partition is divided by, too."""


def add_keys(node: Node, keys: tuple[exp.Expr, ...], context: Context) -> tuple[Node, tuple[str, ...]]:
    """`node`, a delta or a history, with the key expressions as added columns."""
    names = tuple(context.names.fresh("k") for _ in keys)
    items = [(name, column(name)) for name in node.columns]
    return Project(node, (*items, *zip(names, (k.copy() for k in keys)))), names


def not_null(node: Node, names: tuple[str, ...], nulls: tuple[bool, ...]) -> Node:
    """The rows of `node` without NULL in those of the columns `names` for which `nulls` says that it is no value."""
    tests = [
        exp.Not(this=exp.Is(this=column(name), expression=exp.Null()))
        for name, is_value in zip(names, nulls)
        if not is_value
    ]
    return Filter(node, exp.and_(*tests)) if tests else node


def points_of(
    node: Node, expressions: tuple[exp.Expr, ...], context: Context, nulls: tuple[bool, ...] | None = None
) -> Points | None:
    """The points at which `node` changes for a value of the key expressions; None where it cannot.

    `nulls` says for each key expression whether NULL is a value of it; by default it is.
    """
    label = (id(node), tuple(e.sql() for e in expressions), nulls)
    if label not in context.points:
        context.kept.append(node)
        context.points[label] = _points(node, expressions, context, nulls or ())
    return context.points[label]


def _points(
    node: Node, expressions: tuple[exp.Expr, ...], context: Context, nulls: tuple[bool, ...]
) -> Points | None:
    changes = delta(node, context)
    if isinstance(changes, Empty):
        return None
    names = context.names
    keys = tuple(names.fresh("pk") for _ in expressions)
    start, end = names.fresh("p"), names.fresh("until")
    items = (*zip(keys, (e.copy() for e in expressions)), (start, column(VERSION)))
    pairs: Node = Distinct(not_null(Project(changes, items), keys, nulls))
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
    return Points(shown, keys, start, end)


def same(left: str, right: str) -> exp.Expr:
    """NULL-safe equality of two columns (and NaN = NaN, as everywhere in Spark)."""
    return exp.NullSafeEQ(this=column(left), expression=column(right))


def partition_versions(
    node: Node, below: Node, keys: tuple[exp.Expr, ...], build: Build, context: Context
) -> tuple[Node, Points | None]:
    """The versions of the affected partitions (the node's columns, `_from`, `_to`), and the points; None: untouched."""
    if id(node) not in context.versions:
        points = points_of(below, keys, context)
        if points is None:
            return Empty((*node.columns, FROM, TO)), None
        filters = push_filters(below, reducers_of(keys, points.node, points.keys, nulls=True))
        rows, names = add_keys(history(below, context.with_filters(filters)), keys, context)
        conditions: list[exp.Expr] = [same(a, b) for a, b in zip(points.keys, names)]
        if has_changes(below, context):
            conditions.append(exp.LTE(this=column(FROM), expression=column(points.start)))
            conditions.append(exp.LT(this=column(points.start), expression=column(TO)))
        built = build(Join((points.node, rows), tuple(conditions)), (points.start,))
        items = [(name, column(name)) for name in node.columns]
        result = Project(built, (*items, (FROM, column(points.start)), (TO, column(points.end))))
        context.kept += [node, result]
        context.versions[id(node)] = result
    return context.versions[id(node)], points_of(below, keys, context)


def partition_history(
    node: Node, below: Node, keys: tuple[exp.Expr, ...], build: Build, context: Context
) -> Node:
    """The versions of the affected partitions, and the other partitions as they are."""
    versions, points = partition_versions(node, below, keys, build, context)
    rows, names = add_keys(history(below, context), keys, context)
    if points is None:
        rest = without_validity(rows)
    elif not points.keys:
        return versions
    else:
        rest = unaffected_rows(points, rows, names)
    built = build(rest, ())
    untouched = always(Project(built, tuple((n, column(n)) for n in node.columns)))
    return untouched if points is None else union([versions, untouched], untouched.columns)


def unaffected_rows(points: Points, versions: Node, keys: tuple[str, ...]) -> Node:
    """The rows of `versions` whose key has no point: they are valid all through the interval."""
    affected = Distinct(Project(points.node, tuple((k, column(k)) for k in points.keys)))
    rest = SemiJoin(versions, affected, True, tuple(same(a, b) for a, b in zip(keys, points.keys)))
    return without_validity(rest)


def edges(versions: Node) -> Node:
    """The delta that a node's row versions imply."""
    if isinstance(versions, Empty):
        kept = tuple(name for name in versions.columns if name not in (FROM, TO))
        return Empty((*kept, VERSION, WEIGHT))
    return Edges(versions)
