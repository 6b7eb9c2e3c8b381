"""UNION ALL whose inputs differ in type: each input is cast to the union's type.

    R ∪ S : τ   ⇒   CAST(R AS τ) ∪ CAST(S AS τ)

Spark does so whenever it sees both inputs. A delta often has only one of them, and an expression above the union
(`CAST(x AS STRING)`, a division) would then be computed in that input's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from sqlglot import exp

from cq_engine.algebra.nodes import Node, Project, UnionAll, column

__all__ = ["union_types"]

Types = Callable[[Node, Sequence[exp.Expr]], Sequence[str]]


def union_types(node: Node, types: Types) -> Node:
    """`node` with casts below its unions where they are needed.

    Args:
        node: a defining query's plan.
        types: Spark's types of expressions over a node's columns.
    """
    return _rebuilt(node, types, {})


def _rebuilt(node: Node, types: Types, known: dict[int, Node]) -> Node:
    """`known` are the results by id: a node that is used twice stays one."""
    if id(node) in known:
        return known[id(node)]
    changed: dict[str, object] = {}
    for each in fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Node):
            done: object = _rebuilt(value, types, known)
        elif isinstance(value, tuple) and value and all(isinstance(v, Node) for v in value):
            parts = tuple(_rebuilt(v, types, known) for v in value)
            done = value if all(a is b for a, b in zip(parts, value)) else parts
        else:
            continue
        if done is not value:
            changed[each.name] = done
    result = replace(node, **changed) if changed else node
    known[id(node)] = _aligned(result, types) if isinstance(result, UnionAll) else result
    return known[id(node)]


def _aligned(node: UnionAll, types: Types) -> UnionAll:
    wanted = tuple(types(node, [column(name) for name in node.names]))
    inputs = tuple(_cast(each, wanted, types) for each in node.inputs)
    return node if inputs == node.inputs else UnionAll(inputs, node.names)


def _cast(node: Node, wanted: Sequence[str], types: Types) -> Node:
    present = types(node, [column(name) for name in node.columns])
    if tuple(present) == tuple(wanted):
        return node
    items = []
    for name, own, kind in zip(node.columns, present, wanted):
        to = exp.DataType.build(kind, dialect="spark")
        items.append((name, column(name) if own == kind else exp.Cast(this=column(name), to=to)))
    return Project(node, tuple(items))
