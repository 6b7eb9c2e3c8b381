"""Windows, top-N, outer, semi and anti joins, EXCEPT and INTERSECT: recompute of the affected partitions.

    Δω(R) at commit s  =  ω(R ⋉ keys)@s − ω(R ⋉ keys)@s⁻,   keys = π_k(ΔR)

The partition of a window or top-N is its PARTITION BY; of a join, the columns that its equalities compare; of a set
operation, all columns. Without such columns there is one partition: everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from cq_engine.algebra.nodes import (
    FROM,
    TO,
    Limit,
    Node,
    OuterJoin,
    Project,
    SemiJoin,
    SetOperation,
    Window,
    column,
    references,
)
from cq_engine.delta.context import Context, delta, history, register_delta, register_history, touched
from cq_engine.delta.lineage import key_hints
from cq_engine.delta.linear import always, union
from cq_engine.delta.partition import Points, at_points, edges, keyed, points_of, same, unaffected

__all__: list[str] = []

Keys = tuple[exp.Expr, ...]
Operator = Callable[[list[Node], list[tuple[str, ...]]], Node]
"""Builds the operator over its inputs; the second argument are further columns of each that its rows must agree on."""


def _versions(
    node: Node, inputs: Sequence[tuple[Node, Keys]], build: Operator, context: Context
) -> tuple[Node, Points | None]:
    """The versions of the affected partitions: the node's columns, `_from`, `_to`."""
    if id(node) in context.versions:
        return context.versions[id(node)], context.points[id(node)]
    points = points_of(list(inputs), context)
    assert points is not None  # only touched nodes come here
    changed = [(delta(each, context), keys) for each, keys in inputs if touched(each, context)]
    there, extra = [], []
    for each, expressions in inputs:
        hints = key_hints(each, expressions, *changed[0]) if len(changed) == 1 else {}
        rows, names = keyed(history(each, context.narrowed(hints)), expressions, context)
        at, start, end = at_points(points, rows, names, context)
        there.append(at)
        extra.append((start, end, *names))
    built = build(there, extra)
    bounds = [[e[i] for e in extra] for i in (0, 1)]
    items: list[tuple[str, exp.Expr]] = [(name, column(name)) for name in node.columns]
    items += [(name, _first_of(found, built)) for name, found in zip((FROM, TO), bounds)]
    result = Project(built, tuple(items))
    context.kept += [node, result]
    context.versions[id(node)], context.points[id(node)] = result, points
    return result, points


def _first_of(names: list[str], node: Node) -> exp.Expr:
    present = [column(name) for name in names if name in node.columns]
    return present[0] if len(present) == 1 else exp.Coalesce(this=present[0], expressions=list(present[1:]))


def _whole_history(
    node: Node, inputs: Sequence[tuple[Node, Keys]], build: Operator, context: Context
) -> Node:
    if not touched(node, context):
        plain = [_bare(history(each, context)) for each, _ in inputs]
        built = build(plain, [() for _ in inputs])
        return always(Project(built, tuple((n, column(n)) for n in node.columns)))
    versions, points = _versions(node, inputs, build, context)
    assert points is not None
    if not points.keys:
        return versions
    rest = []
    for each, expressions in inputs:
        rows, names = keyed(history(each, context), expressions, context)
        rest.append(unaffected(points, rows, names))
    built = build(rest, [() for _ in inputs])
    untouched = Project(built, tuple((n, column(n)) for n in node.columns))
    return union([versions, always(untouched)], versions.columns)


def _bare(rows: Node) -> Node:
    return Project(rows, tuple((n, column(n)) for n in rows.columns if n not in (FROM, TO)))


# ------------------------------------------------------------------------------------------------ shapes


def _window(node: Window) -> tuple[list[tuple[Node, Keys]], Operator]:
    def build(inputs: list[Node], extra: list[tuple[str, ...]]) -> Node:
        functions = []
        for name, function in node.functions:
            added = function.copy()
            added.set(
                "partition_by", [*(added.args.get("partition_by") or []), *(column(e) for e in extra[0][:1])]
            )
            functions.append((name, added))
        return Window(inputs[0], tuple(functions), node.keys)

    return [(node.input, node.keys)], build


def _limit(node: Limit) -> tuple[list[tuple[Node, Keys]], Operator]:
    def build(inputs: list[Node], extra: list[tuple[str, ...]]) -> Node:
        return Limit(inputs[0], (*node.keys, *extra[0][:1]), node.order, node.count, node.offset)

    return [(node.input, tuple(column(k) for k in node.keys))], build


def _equalities(left: Node, right: Node, conditions: Sequence[exp.Expr]) -> tuple[Keys, Keys]:
    """The expressions of both sides that the conditions compare for equality."""
    ours, theirs = [], []
    for condition in conditions:
        if not isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
            continue
        a, b = condition.left, condition.right
        if references(a) and references(b):
            if references(a) <= set(left.columns) and references(b) <= set(right.columns):
                ours.append(a)
                theirs.append(b)
            elif references(b) <= set(left.columns) and references(a) <= set(right.columns):
                ours.append(b)
                theirs.append(a)
    return tuple(ours), tuple(theirs)


def _agree(extra: list[tuple[str, ...]]) -> tuple[exp.Expr, ...]:
    """Both sides stand at the same point."""
    return (same(extra[0][0], extra[1][0]),) if extra[0] else ()


def _outer(node: OuterJoin) -> tuple[list[tuple[Node, Keys]], Operator]:
    ours, theirs = _equalities(node.left, node.right, node.conditions)

    def build(inputs: list[Node], extra: list[tuple[str, ...]]) -> Node:
        return OuterJoin(inputs[0], inputs[1], node.kind, (*node.conditions, *_agree(extra)))

    return [(node.left, ours), (node.right, theirs)], build


def _semi(node: SemiJoin) -> tuple[list[tuple[Node, Keys]], Operator]:
    ours, theirs = _equalities(node.left, node.right, node.conditions)

    def build(inputs: list[Node], extra: list[tuple[str, ...]]) -> Node:
        return SemiJoin(inputs[0], inputs[1], node.anti, (*node.conditions, *_agree(extra)))

    return [(node.left, ours), (node.right, theirs)], build


def _set_operation(node: SetOperation) -> tuple[list[tuple[Node, Keys]], Operator]:
    def build(inputs: list[Node], extra: list[tuple[str, ...]]) -> Node:
        sides = []
        for each, own, added in zip(inputs, (node.left, node.right), extra or [(), ()]):
            sides.append(Project(each, tuple((n, column(n)) for n in (*own.columns, *added[:2]))))
        return SetOperation(sides[0], sides[1], node.kind, node.all, (*node.names, *extra[0][:2]))

    keys = [tuple(column(n) for n in side.columns) for side in (node.left, node.right)]
    return [(node.left, keys[0]), (node.right, keys[1])], build


def _register(kind: type[Node], shape: Callable[..., tuple[list[tuple[Node, Keys]], Operator]]) -> None:
    def delta_of(node: Node, context: Context) -> Node:
        inputs, build = shape(node)
        return edges(_versions(node, inputs, build, context)[0])

    def history_of(node: Node, context: Context) -> Node:
        inputs, build = shape(node)
        return _whole_history(node, inputs, build, context)

    register_delta(kind)(delta_of)
    register_history(kind)(history_of)


_register(Window, _window)
_register(Limit, _limit)
_register(OuterJoin, _outer)
_register(SemiJoin, _semi)
_register(SetOperation, _set_operation)
