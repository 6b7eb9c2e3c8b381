"""A plan with some of its nodes replaced, from the leaves up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from cq_engine.algebra.nodes import Node

__all__ = ["rebuilt"]


_Rule = Callable[[Node], Node]


def rebuilt(node: Node, rule: _Rule, before: _Rule = lambda node: node) -> Node:
    """`node` after `rule` was applied to each of its nodes, inputs first; a node that is used twice stays one.

    What `rule` returns has at least the columns that parents read. A plan in which nothing changes is the same object.
    `before` is applied to a node before its inputs are seen; what it returns reads no more of them than the node did.
    """
    return _rebuilt(node, rule, before, {})


def _rebuilt(node: Node, rule: _Rule, before: _Rule, known: dict[int, Node]) -> Node:
    if id(node) in known:
        return known[id(node)]
    given, node = node, before(node)
    changed: dict[str, object] = {}
    for each in fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Node):
            done: object = _rebuilt(value, rule, before, known)
        elif isinstance(value, tuple) and value and all(isinstance(v, Node) for v in value):
            parts = tuple(_rebuilt(v, rule, before, known) for v in value)
            done = value if all(a is b for a, b in zip(parts, value)) else parts
        else:
            continue
        if done is not value:
            changed[each.name] = done
    known[id(given)] = rule(replace(node, **changed) if changed else node)
    return known[id(given)]
