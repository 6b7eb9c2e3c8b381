"""UNION ALL whose inputs differ in type: each input is cast to the union's type.

    R ∪ S : τ   ⇒   CAST(R AS τ) ∪ CAST(S AS τ)

EXCEPT and INTERSECT likewise. Spark does so whenever it sees both inputs. A delta often has only one of them, and an
expression above the union (`CAST(x AS STRING)`, a division) would then be computed in that input's own type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from cq_engine.algebra.coercion import Types, cast
from cq_engine.algebra.nodes import Node, Project, SetOperation, UnionAll, children, column
from cq_engine.algebra.rebuild import rebuild

__all__ = ["union_types"]


def union_types(node: Node, types: Types) -> Node:
    """`node` with casts below its set operations where they are needed.

    Args:
        node: a defining query's plan.
        types: Spark's types of expressions over a node's columns.
    """
    return rebuild(
        node, lambda each: _align(each, types) if isinstance(each, (UnionAll, SetOperation)) else each
    )


def _align(node: UnionAll | SetOperation, types: Types) -> Node:
    wanted = tuple(types(node, [column(name) for name in node.names]))
    inputs = tuple(_cast(each, wanted, types) for each in children(node))
    if inputs == children(node):
        return node
    if isinstance(node, UnionAll):
        return UnionAll(inputs, node.names)
    return replace(node, left=inputs[0], right=inputs[1])


def _cast(node: Node, wanted: Sequence[str], types: Types) -> Node:
    present = types(node, [column(name) for name in node.columns])
    if tuple(present) == tuple(wanted):
        return node
    items: list[tuple[str, exp.Expr]] = []
    for name, own, kind in zip(node.columns, present, wanted):
        items.append((name, column(name) if own == kind else cast(column(name), kind)))
    return Project(node, tuple(items))
