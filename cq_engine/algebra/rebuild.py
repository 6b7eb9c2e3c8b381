"""A plan with some of its nodes replaced, from the leaves up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from cq_engine.algebra.nodes import Node

__all__ = ["rebuilt"]


def rebuilt(node: Node, rule: Callable[[Node], Node]) -> Node:
    """`node` after `rule` was applied to each of its nodes, inputs first; a node that is used twice stays one.

    What `rule` returns has at least the columns that parents read. A plan in which nothing changes is the same object.
    """
    return _rebuilt(node, rule, {})


def _rebuilt(node: Node, rule: Callable[[Node], Node], known: dict[int, Node]) -> Node:
    if id(node) in known:
        return known[id(node)]
    changed: dict[str, object] = {}
    for each in fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Node):
            done: object = _rebuilt(value, rule, known)
        elif isinstance(value, tuple) and value and all(isinstance(v, Node) for v in value):
            parts = tuple(_rebuilt(v, rule, known) for v in value)
            done = value if all(a is b for a, b in zip(parts, value)) else parts
        else:
            continue
        if done is not value:
            changed[each.name] = done
    known[id(node)] = rule(replace(node, **changed) if changed else node)
    return known[id(node)]
