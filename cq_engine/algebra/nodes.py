"""The relational algebra: small frozen nodes whose constructors reject invalid plans.

Every column of a plan has a name of its own (`acct_3`), unique in the whole plan, so that inputs of a join never
clash and an expression needs no qualifier: a column reference is a sqlglot `Column` without a table. Nodes compare by
identity, so that a node used twice is one subplan. The inputs of a node follow from its fields (`children`).

The leaves are in `leaves`; all nodes can be imported from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from sqlglot import exp

from cq_engine.algebra.leaves import (
    BEFORE,
    FOREVER,
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Changes,
    Empty,
    Given,
    History,
    Meeting,
    Named,
    Node,
    OwnNames,
    PlanError,
    RuntimeFilter,
    Scan,
    StateRows,
    Values,
    column,
    references,
    require,
    require_columns,
)

__all__ = [
    "BEFORE",
    "FOREVER",
    "FROM",
    "TO",
    "VERSION",
    "WEIGHT",
    "Aggregate",
    "Changes",
    "Distinct",
    "Edges",
    "Empty",
    "Filter",
    "Generate",
    "Given",
    "History",
    "Join",
    "Limit",
    "Mark",
    "Meeting",
    "Named",
    "Node",
    "OuterJoin",
    "PlanError",
    "Project",
    "RuntimeFilter",
    "Scan",
    "SemiJoin",
    "SetOperation",
    "StateRows",
    "UnionAll",
    "Values",
    "Window",
    "children",
    "column",
    "inner_first",
    "input_fields",
    "references",
    "with_children",
]


class SameColumns(Node):
    """Base of nodes that have the columns of their input."""

    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


class TwoSided(Node):
    """Base of nodes that compare the rows of `left` with those of `right`."""

    left: Node
    right: Node
    conditions: tuple[exp.Expr, ...]

    def __post_init__(self) -> None:
        kind, left, right = type(self).__name__, self.left.columns, self.right.columns
        require(not set(left) & set(right), f"{kind} inputs share a column name")
        for condition in self.conditions:
            require_columns(left + right, references(condition), kind)


# ------------------------------------------------------------------------------------------------ linear


@dataclass(frozen=True, eq=False)
class Filter(SameColumns):
    input: Node
    condition: exp.Expr

    def __post_init__(self) -> None:
        require_columns(self.input.columns, references(self.condition), "Filter")


@dataclass(frozen=True, eq=False)
class Project(Node):
    input: Node
    items: Named

    def __post_init__(self) -> None:
        for _, expression in self.items:
            require_columns(self.input.columns, references(expression), "Project")
        require(len(set(self.columns)) == len(self.columns), f"Project repeats a name: {self.columns}")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.items)


@dataclass(frozen=True, eq=False)
class UnionAll(OwnNames):
    """Bag union; `inputs` have the same number of columns, the union has names of its own."""

    inputs: tuple[Node, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        require(bool(self.inputs), "UnionAll without inputs")
        require(
            all(len(i.columns) == len(self.names) for i in self.inputs), "UnionAll inputs differ in width"
        )


@dataclass(frozen=True, eq=False)
class Generate(Node):
    """LATERAL VIEW: each row with each of the rows that a generator function (explode, inline, ...) makes of it."""

    input: Node
    call: exp.Expr
    names: tuple[str, ...]
    outer: bool = False

    def __post_init__(self) -> None:
        require_columns(self.input.columns, references(self.call), "Generate")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns + self.names


# ------------------------------------------------------------------------------------------------ joins


@dataclass(frozen=True, eq=False)
class Join(Node):
    """An n-way inner join: every combination of rows for which all `conditions` are true."""

    inputs: tuple[Node, ...]
    conditions: tuple[exp.Expr, ...]

    def __post_init__(self) -> None:
        require(len(self.inputs) >= 2, "Join needs two inputs")
        require(len(set(self.columns)) == len(self.columns), "Join inputs share a column name")
        for condition in self.conditions:
            require_columns(self.columns, references(condition), "Join")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for each in self.inputs for name in each.columns)


@dataclass(frozen=True, eq=False)
class OuterJoin(TwoSided):
    """LEFT, RIGHT or FULL outer join."""

    left: Node
    right: Node
    kind: str
    conditions: tuple[exp.Expr, ...]

    def __post_init__(self) -> None:
        require(self.kind in ("LEFT", "RIGHT", "FULL"), f"no outer join {self.kind}")
        super().__post_init__()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns + self.right.columns


@dataclass(frozen=True, eq=False)
class SemiJoin(TwoSided):
    """Rows of `left` with (or with `anti`, without) a row of `right` for which all `conditions` are true."""

    left: Node
    right: Node
    anti: bool
    conditions: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns


@dataclass(frozen=True, eq=False)
class Mark(TwoSided):
    """Rows of `left`, each with the BOOLEAN column `name`: is there a row of `right` for which all `conditions` are true?

    Never NULL (an existence join; Neumann & Kemper, BTW 2015, call it mark join).
    """

    left: Node
    right: Node
    conditions: tuple[exp.Expr, ...]
    name: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.left.columns, self.name)


# ------------------------------------------------------------------------------------------------ stateful


@dataclass(frozen=True, eq=False)
class Aggregate(Node):
    """GROUP BY `keys` with aggregate `functions`; without keys a scalar aggregate of exactly one row.

    `of` names the operator that it stands for, where the query has another one.
    """

    input: Node
    keys: Named
    functions: Named
    scalar: bool = False
    of: str = ""

    def __post_init__(self) -> None:
        require(self.scalar == (not self.keys), "Aggregate: scalar means without keys")
        for _, expression in self.keys + self.functions:
            require_columns(self.input.columns, references(expression), "Aggregate")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.keys + self.functions)


@dataclass(frozen=True, eq=False)
class Distinct(SameColumns):
    """Each row once. `internal`: not the query's own DISTINCT, but a part of how something else is computed."""

    input: Node
    internal: bool = False


@dataclass(frozen=True, eq=False)
class SetOperation(OwnNames):
    """EXCEPT or INTERSECT, with ALL or without."""

    left: Node
    right: Node
    kind: str
    all: bool
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        require(self.kind in ("EXCEPT", "INTERSECT"), f"no set operation {self.kind}")
        require(
            len(self.left.columns) == len(self.right.columns) == len(self.names),
            "set operands differ in width",
        )


@dataclass(frozen=True, eq=False)
class Window(Node):
    """Adds window `functions` (sqlglot Window expressions) that all have the partition `keys`."""

    input: Node
    functions: Named
    keys: tuple[exp.Expr, ...]

    def __post_init__(self) -> None:
        for _, expression in self.functions:
            require_columns(self.input.columns, references(expression), "Window")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns + tuple(name for name, _ in self.functions)


@dataclass(frozen=True, eq=False)
class Limit(SameColumns):
    """The rows numbered (offset, offset + count] in `order`, per value of `keys` (without keys: of all)."""

    input: Node
    keys: tuple[str, ...]
    order: tuple[exp.Expr, ...]
    count: int | None
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Edges(Node):
    """Turns row versions (`_from`, `_to`) into signed rows: +1 where one begins, −1 where one ends in the interval."""

    input: Node

    def __post_init__(self) -> None:
        require({FROM, TO} <= set(self.input.columns), "Edges needs _from and _to")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(name for name in self.input.columns if name not in (FROM, TO)), VERSION, WEIGHT)


_INPUTS: dict[type, tuple[str, ...]] = {}


def input_fields(kind: type[Node]) -> tuple[str, ...]:
    """The fields of a node kind that hold its inputs: those declared as `Node` or `tuple[Node, ...]`, in order."""
    if kind not in _INPUTS:
        hints = get_type_hints(kind)
        inputs = (each.name for each in fields(kind) if hints[each.name] in (Node, tuple[Node, ...]))
        _INPUTS[kind] = tuple(inputs)
    return _INPUTS[kind]


def children(node: Node) -> tuple[Node, ...]:
    """The inputs of `node`, in order."""
    found: tuple[Node, ...] = ()
    for name in input_fields(type(node)):
        value = getattr(node, name)
        found += value if isinstance(value, tuple) else (value,)
    return found


def with_children(node: Node, inputs: Sequence[Node]) -> Node:
    """`node` over other inputs, as many as it has; the same object where they are the ones it has."""
    rest = list(inputs)
    changed: dict[str, Any] = {}
    for name in input_fields(type(node)):
        value = getattr(node, name)
        given = tuple(rest.pop(0) for _ in value) if isinstance(value, tuple) else rest.pop(0)
        changed[name] = given
    require(not rest, f"{type(node).__name__} has no place for {len(rest)} of the inputs")
    same = all(a is b for a, b in zip(children(node), inputs))
    return node if same else replace(node, **changed)


def inner_first(*roots: Node) -> list[Node]:
    """All nodes of the plans, each once, inputs before what reads them."""
    found: dict[int, Node] = {}

    def walk(node: Node) -> None:
        if id(node) not in found:
            for each in children(node):
                walk(each)
            found[id(node)] = node

    for root in roots:
        walk(root)
    return list(found.values())
