"""What the parts of the lowering hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from cq_engine.algebra.functions import conjuncts
from cq_engine.algebra.lowering.scope import Fields, Outer, Scope
from cq_engine.algebra.nodes import Filter, Join, Node, references

__all__ = ["Closure", "Ctes", "Domain", "Environment", "From", "Lowered", "split_joins"]


@dataclass(frozen=True)
class Lowered:
    """A lowered query: the plan, and for each result column its name in the plan and in the text.

    A subquery that reads outer columns also has the columns of their `domain`; with `one_row` it has exactly one row
    for each of the domain's values.
    """

    node: Node
    outputs: tuple[str, ...]
    visible: tuple[str, ...]
    domain: tuple[str, ...] = ()
    one_row: bool = False

    def fields(self) -> Fields:
        """The result columns by name; of two with one name the first."""
        found: Fields = {}
        for name, output in zip(self.visible, self.outputs):
            found.setdefault(name.lower(), exp.Column(this=exp.Identifier(this=output, quoted=False)))
        return found


@dataclass(frozen=True)
class Domain:
    """The distinct values of the outer expressions that a subquery reads: `node` has `columns`."""

    node: Node
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Closure:
    """A CTE's body, the environment that it sees, and the names of its column list."""

    body: exp.Expr
    environment: Environment
    renamed: tuple[str, ...]


Ctes = Mapping[str, Closure]


@dataclass(frozen=True)
class Environment:
    """What a query can see: CTEs, and in a subquery the query around it, with the domain that stands for it."""

    ctes: Ctes = field(default_factory=dict)
    outer: Outer | None = None
    domain: Domain | None = None

    def close(self) -> Environment:
        """Without the query around."""
        return replace(self, outer=None, domain=None)

    @property
    def keys(self) -> tuple[str, ...]:
        return self.domain.columns if self.domain is not None else ()


@dataclass
class From:
    """The FROM clause so far: inputs of one inner join, its conditions, and what its names mean.

    `shown` are the columns of `*` as (alias, name), with alias None for USING columns. `carried` are domain columns
    that inputs bring along; `has_domain` says that the domain itself is an input.
    """

    inputs: list[Node]
    conditions: list[exp.Expr]
    sources: dict[str, Fields]
    shown: list[tuple[str | None, str]]
    merged: Fields = field(default_factory=dict)
    carried: list[tuple[str, ...]] = field(default_factory=list)
    has_domain: bool = False

    @classmethod
    def of(cls, node: Node, alias: str, fields: Fields) -> From:
        """One relation."""
        return cls([node], [], {alias: fields}, [(alias, name) for name in fields])

    def scope(self, outer: Outer | None) -> Scope:
        return Scope(self.sources, self.merged, outer)

    def expression_of(self, shown: tuple[str | None, str]) -> exp.Expr:
        """What a column of `*` is."""
        alias, name = shown
        return self.merged[name] if alias is None else self.sources[alias][name]

    def beside(self, right: From, shown: list[tuple[str | None, str]] | None = None) -> From:
        """This and `right` in one inner join."""
        return From(
            self.inputs + right.inputs,
            self.conditions + right.conditions,
            {**self.sources, **right.sources},
            self.shown + right.shown if shown is None else shown,
            {**self.merged, **right.merged},
            self.carried + right.carried,
            self.has_domain or right.has_domain,
        )

    def over(self, node: Node) -> From:
        """The same names over `node`, which has all of their columns."""
        return replace(self, inputs=[node], conditions=[], carried=[])

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


def split_joins(node: Node) -> tuple[list[Node], list[exp.Expr]]:
    """The inputs and conditions of a join (or of a filter over one), to be merged into another join."""
    if isinstance(node, Join):
        return list(node.inputs), list(node.conditions)
    if isinstance(node, Filter):
        inputs, conditions = split_joins(node.input)
        return inputs, [*conditions, *conjuncts(node.condition)]
    return [node], []
