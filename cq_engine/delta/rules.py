"""The delta and history rules of all operators: each has them in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping

from cq_engine.algebra.nodes import Node
from cq_engine.delta import (
    aggregate,
    distinct,
    join,
    linear,
    mark,
    outer_join,
    semi_join,
    top_n,
    window,
)
from cq_engine.delta.context import Rule

__all__ = ["RULES"]

RULES: Mapping[type[Node], Rule] = {
    rule.kind: rule
    for rule in (
        *linear.RULES,
        join.RULE,
        outer_join.RULE,
        semi_join.RULE,
        mark.RULE,
        aggregate.RULE,
        distinct.RULE,
        window.RULE,
        top_n.RULE,
    )
}
