"""The leaves of plans, and what all nodes share: names of columns, expressions, checks (see `nodes`).

Two families of leaves: a `Scan` stands for a base table in a defining query; the others stand for what a refresh of
(a, b] reads, and appear only in delta plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from cq_engine.core.columns import BEFORE, FOREVER

__all__ = [
    "BEFORE",
    "FOREVER",
    "FROM",
    "TO",
    "VERSION",
    "WEIGHT",
    "Changes",
    "Empty",
    "Given",
    "History",
    "Named",
    "Node",
    "OwnNames",
    "PlanError",
    "RuntimeFilter",
    "Scan",
    "StateRows",
    "Values",
    "column",
    "references",
    "require",
    "require_columns",
]

FROM = "_from"
TO = "_to"
VERSION = "_v"
WEIGHT = "_w"


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


class OwnNames(Node):
    """Base of nodes whose columns have the names that are given in the field `names`."""

    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise PlanError(problem)


def require_columns(known: tuple[str, ...], used: frozenset[str], where: str) -> None:
    missing = sorted(used - set(known))
    require(not missing, f"{where} reads {missing}, its input has {list(known)}")


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
class RuntimeFilter:
    """Says that of a leaf only rows are needed whose `column` has a value that `of_column` of `leaf` has.

    `leaf` may be any node of the delta plan whose column leads down to leaves.
    """

    column: str
    leaf: Node
    of_column: str


@dataclass(frozen=True, eq=False)
class Meeting:
    """Says that of a leaf only rows are needed for which all `conditions` are true with some row of `leaf`, a node of the delta plan.

    The conditions are between columns of the leaf and of that node, and none is an equality that a runtime filter could be made of.
    """

    leaf: Node
    conditions: tuple[exp.Expr, ...]


@dataclass(frozen=True, eq=False)
class History(Node):
    """Row versions of a scan's table with validity `_from` <= v < `_to`, for v from the interval's start to its end.

    With `among`: of the rows that change in the interval, and of those that one of these groups of filters wants. What `meets` says
    may be left unheeded, as any filter may.
    """

    scan: Scan
    filters: tuple[RuntimeFilter, ...] = ()
    among: tuple[tuple[RuntimeFilter, ...], ...] = ()
    meets: Meeting | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.scan.columns, FROM, TO)


@dataclass(frozen=True, eq=False)
class StateRows(OwnNames):
    """The stored state `label` as it was at the start of the interval."""

    label: str
    names: tuple[str, ...]
    filters: tuple[RuntimeFilter, ...] = ()


@dataclass(frozen=True, eq=False)
class Given(OwnNames):
    """Rows that were computed before, under the name `name`."""

    name: str
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Empty(OwnNames):
    """No rows."""

    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Values(OwnNames):
    """Literal rows."""

    names: tuple[str, ...]
    rows: tuple[tuple[exp.Expr, ...], ...]

    def __post_init__(self) -> None:
        require(all(len(row) == len(self.names) for row in self.rows), "VALUES rows differ in width")
        require(len(self.rows) > 0, "VALUES without rows")
