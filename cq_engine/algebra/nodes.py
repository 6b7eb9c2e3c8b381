"""The relational algebra: small frozen nodes whose constructors reject invalid plans.

Every column of a plan has a name of its own (`acct_3`), unique in the whole plan, so that inputs of a join never
clash and an expression needs no qualifier: a column reference is a sqlglot `Column` without a table. Nodes compare by
identity, so that a node used twice is one subplan.

Two families of leaves: a `Scan` stands for a base table in a defining query; the others stand for what a refresh of
(a, b] reads, and appear only in delta plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

__all__ = [
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
    "Named",
    "Node",
    "OuterJoin",
    "PlanError",
    "Project",
    "Scan",
    "SemiJoin",
    "SetOperation",
    "StateRows",
    "UnionAll",
    "Values",
    "Window",
    "children",
    "column",
]

FROM = "_from"
TO = "_to"
VERSION = "_v"
WEIGHT = "_w"
BEFORE = -1
"""The version that stands for "before the interval"."""
FOREVER = 9_223_372_036_854_775_807
"""The version that stands for "still there at the end of the interval"."""


class PlanError(ValueError):
    """A node was put together wrongly: a defect of the planner, never of the user's query."""


def column(name: str) -> exp.Column:
    """A reference to the plan's column `name`."""
    return exp.Column(this=exp.Identifier(this=name, quoted=False))


def references(expression: exp.Expr) -> frozenset[str]:
    """The names of the columns that `expression` reads."""
    return frozenset(found.name for found in expression.find_all(exp.Column))


Named = tuple[tuple[str, exp.Expr], ...]
"""Named expressions, in column order."""


@dataclass(frozen=True, eq=False)
class Node:
    """Base of all nodes."""

    @property
    def columns(self) -> tuple[str, ...]:
        raise NotImplementedError


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise PlanError(problem)


def _require_columns(known: tuple[str, ...], used: frozenset[str], where: str) -> None:
    missing = sorted(used - set(known))
    _require(not missing, f"{where} reads {missing}, its input has {list(known)}")


# ------------------------------------------------------------------------------------------------ leaves


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """One occurrence of a table. `fields` maps each of the plan's columns to the table's."""

    table: str
    fields: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.fields)

    def source_of(self, name: str) -> str:
        """The table's own name of the plan's column `name`."""
        return dict(self.fields)[name]


@dataclass(frozen=True, eq=False)
class Changes(Node):
    """Net change rows of a scan's table in the interval, with `_v` and `_w` (−1 before-image, +1 after-image)."""

    scan: Scan

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.scan.columns, VERSION, WEIGHT)


@dataclass(frozen=True, eq=False)
class KeyHint:
    """Says that of a leaf only rows are needed whose `column` has a value that `of_column` of `leaf` has.

    `leaf` may be any node of the delta plan whose column leads down to leaves.
    """

    column: str
    leaf: Node
    of_column: str


@dataclass(frozen=True, eq=False)
class History(Node):
    """Row versions of a scan's table with validity `_from` <= v < `_to`, for v from the interval's start to its end."""

    scan: Scan
    hints: tuple[KeyHint, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.scan.columns, FROM, TO)


@dataclass(frozen=True, eq=False)
class StateRows(Node):
    """The stored state `label` as it was at the start of the interval."""

    label: str
    names: tuple[str, ...]
    hints: tuple[KeyHint, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True, eq=False)
class Given(Node):
    """Rows that were computed before, under the name `name`."""

    name: str
    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True, eq=False)
class Empty(Node):
    """No rows."""

    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True, eq=False)
class Values(Node):
    """Literal rows."""

    names: tuple[str, ...]
    rows: tuple[tuple[exp.Expr, ...], ...]

    def __post_init__(self) -> None:
        _require(all(len(row) == len(self.names) for row in self.rows), "VALUES rows differ in width")
        _require(len(self.rows) > 0, "VALUES without rows")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


# ------------------------------------------------------------------------------------------------ linear


@dataclass(frozen=True, eq=False)
class Filter(Node):
    input: Node
    condition: exp.Expr

    def __post_init__(self) -> None:
        _require_columns(self.input.columns, references(self.condition), "Filter")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, eq=False)
class Project(Node):
    input: Node
    items: Named

    def __post_init__(self) -> None:
        for _, expression in self.items:
            _require_columns(self.input.columns, references(expression), "Project")
        _require(len(set(self.columns)) == len(self.columns), f"Project repeats a name: {self.columns}")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.items)


@dataclass(frozen=True, eq=False)
class UnionAll(Node):
    """Bag union; `inputs` have the same number of columns, the union has names of its own."""

    inputs: tuple[Node, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        _require(bool(self.inputs), "UnionAll without inputs")
        _require(
            all(len(i.columns) == len(self.names) for i in self.inputs), "UnionAll inputs differ in width"
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True, eq=False)
class Generate(Node):
    """LATERAL VIEW: each row with each of the rows that a generator function (explode, inline, ...) makes of it."""

    input: Node
    call: exp.Expr
    names: tuple[str, ...]
    outer: bool = False

    def __post_init__(self) -> None:
        _require_columns(self.input.columns, references(self.call), "Generate")

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
        _require(len(self.inputs) >= 2, "Join needs two inputs")
        _require(len(set(self.columns)) == len(self.columns), "Join inputs share a column name")
        for condition in self.conditions:
            _require_columns(self.columns, references(condition), "Join")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for each in self.inputs for name in each.columns)


@dataclass(frozen=True, eq=False)
class OuterJoin(Node):
    """LEFT, RIGHT or FULL outer join."""

    left: Node
    right: Node
    kind: str
    conditions: tuple[exp.Expr, ...]

    def __post_init__(self) -> None:
        _require(self.kind in ("LEFT", "RIGHT", "FULL"), f"no outer join {self.kind}")
        _require(not set(self.left.columns) & set(self.right.columns), "OuterJoin inputs share a column name")
        for condition in self.conditions:
            _require_columns(self.columns, references(condition), "OuterJoin")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns + self.right.columns


@dataclass(frozen=True, eq=False)
class SemiJoin(Node):
    """Rows of `left` with (or with `anti`, without) a row of `right` for which all `conditions` are true."""

    left: Node
    right: Node
    anti: bool
    conditions: tuple[exp.Expr, ...]

    def __post_init__(self) -> None:
        both = self.left.columns + self.right.columns
        _require(not set(self.left.columns) & set(self.right.columns), "SemiJoin inputs share a column name")
        for condition in self.conditions:
            _require_columns(both, references(condition), "SemiJoin")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns


# ------------------------------------------------------------------------------------------------ stateful


@dataclass(frozen=True, eq=False)
class Aggregate(Node):
    """GROUP BY `keys` with aggregate `functions`; without keys a scalar aggregate of exactly one row."""

    input: Node
    keys: Named
    functions: Named
    scalar: bool = False

    def __post_init__(self) -> None:
        _require(self.scalar == (not self.keys), "Aggregate: scalar means without keys")
        for _, expression in self.keys + self.functions:
            _require_columns(self.input.columns, references(expression), "Aggregate")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.keys + self.functions)


@dataclass(frozen=True, eq=False)
class Distinct(Node):
    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, eq=False)
class SetOperation(Node):
    """EXCEPT or INTERSECT, with ALL or without."""

    left: Node
    right: Node
    kind: str
    all: bool
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        _require(self.kind in ("EXCEPT", "INTERSECT"), f"no set operation {self.kind}")
        _require(
            len(self.left.columns) == len(self.right.columns) == len(self.names),
            "set operands differ in width",
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True, eq=False)
class Window(Node):
    """Adds window `functions` (sqlglot Window expressions) that all have the partition `keys`."""

    input: Node
    functions: Named
    keys: tuple[exp.Expr, ...]

    def __post_init__(self) -> None:
        for _, expression in self.functions:
            _require_columns(self.input.columns, references(expression), "Window")

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns + tuple(name for name, _ in self.functions)


@dataclass(frozen=True, eq=False)
class Limit(Node):
    """The rows numbered (offset, offset + count] in `order`, per value of `keys` (without keys: of all)."""

    input: Node
    keys: tuple[str, ...]
    order: tuple[exp.Expr, ...]
    count: int | None
    offset: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, eq=False)
class Edges(Node):
    """Turns row versions (`_from`, `_to`) into signed rows: +1 where one begins, −1 where one ends in the interval."""

    input: Node

    def __post_init__(self) -> None:
        _require({FROM, TO} <= set(self.input.columns), "Edges needs _from and _to")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(name for name in self.input.columns if name not in (FROM, TO)), VERSION, WEIGHT)


def children(node: Node) -> tuple[Node, ...]:
    """The inputs of `node`, in order."""
    if isinstance(node, (Join, UnionAll)):
        return node.inputs
    if isinstance(node, (OuterJoin, SemiJoin, SetOperation)):
        return (node.left, node.right)
    if isinstance(node, (Filter, Project, Generate, Aggregate, Distinct, Window, Limit, Edges)):
        return (node.input,)
    return ()
