"""What the parts of the lowering hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.functions import conjuncts
from cq_engine.algebra.nodes import Filter, Join, Node, references

__all__ = ["Closure", "Ctes", "Fields", "From", "Lowered", "unjoined", "visible_names"]


@dataclass(frozen=True)
class Lowered:
    """A lowered query: the plan, and for each result column its name in the plan.

    A subquery that reads outer columns also has the columns of their `domain`; with `one_row` it has exactly one row
    for each of the domain's values.
    """

    node: Node
    outputs: tuple[str, ...]
    domain: tuple[str, ...] = ()
    one_row: bool = False


@dataclass(frozen=True)
class Closure:
    """A CTE's body, the CTEs that it sees, and the names of its column list."""

    body: exp.Expr
    scope: Mapping[str, Closure]
    renamed: tuple[str, ...]


Ctes = Mapping[str, Closure]
Fields = dict[str, exp.Expr]
"""Column name (lower case) → expression over the plan's columns."""


@dataclass
class From:
    """The FROM clause so far: inputs of one inner join, its conditions, and what each alias's columns are."""

    inputs: list[Node]
    conditions: list[exp.Expr]
    sources: dict[str, Fields]

    def node(self) -> Node:
        """The join of all inputs; predicates on one input become filters on it."""
        inputs = list(self.inputs)
        joined = []
        for condition in self.conditions:
            used = references(condition)
            owner = [i for i, each in enumerate(inputs) if used and used <= set(each.columns)]
            if owner:
                inputs[owner[0]] = Filter(inputs[owner[0]], condition)
            else:
                joined.append(condition)
        if len(inputs) == 1:
            return Filter(inputs[0], exp.and_(*joined)) if joined else inputs[0]
        return Join(tuple(inputs), tuple(joined))


def visible_names(query: exp.Expr) -> list[str]:
    """The names of a query's result columns as its text gives them."""
    assert isinstance(query, (exp.Query, exp.Subquery))
    return [name or f"c{i}" for i, name in enumerate(query.named_selects)]


def unjoined(node: Node) -> tuple[list[Node], list[exp.Expr]]:
    """The inputs and conditions of a join (or of a filter over one), to be merged into another join."""
    if isinstance(node, Join):
        return list(node.inputs), list(node.conditions)
    if isinstance(node, Filter):
        inputs, conditions = unjoined(node.input)
        return inputs, [*conditions, *conjuncts(node.condition)]
    return [node], []
