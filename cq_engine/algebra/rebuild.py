"""A plan with some of its nodes replaced, from the leaves up."""

from __future__ import annotations

from collections.abc import Callable

from cq_engine.algebra.nodes import Node, children, with_children

__all__ = ["rebuild"]


_Rule = Callable[[Node], Node]


def rebuild(node: Node, rule: _Rule, before: _Rule = lambda node: node) -> Node:
    """`node` after `rule` was applied to each of its nodes, inputs first; a node that is used twice stays one.

    What `rule` returns has at least the columns that parents read. A plan in which nothing changes is the same object.
    `before` is applied to a node before its inputs are seen; what it returns reads no more of them than the node did.
    """
    known: dict[int, Node] = {}

    def build(given: Node) -> Node:
        if id(given) not in known:
            node = before(given)
            known[id(given)] = rule(with_children(node, [build(each) for each in children(node)]))
        return known[id(given)]

    return build(node)
