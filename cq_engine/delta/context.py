"""What the rules share during the planning of one delta, and their dispatch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cq_engine.algebra.names import Names
from cq_engine.algebra.nodes import (
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Aggregate,
    Empty,
    Meeting,
    Node,
    PlanError,
    RuntimeFilter,
    Scan,
    children,
    inner_first,
)
from cq_engine.delta.accumulators import State

__all__ = ["Context", "Points", "Rule", "aggregates", "delta", "has_changes", "history"]


@dataclass(frozen=True)
class Rule:
    """What an operator does with changes: a node of `kind` and the context → its delta (None: always empty), its history."""

    kind: type[Node]
    delta: Callable[[Any, Context], Node] | None
    history: Callable[[Any, Context], Node]


@dataclass(frozen=True)
class Points:
    """The affected points: `node` has the columns `keys`, `start` (a version, or −1 for "before") and `end`."""

    node: Node
    keys: tuple[str, ...]
    start: str
    end: str


@dataclass
class Context:
    """One planning run with the `rules` of all operators (`delta.rules`).

    `changed` are the tables (lower case) with changes in the interval.

    `stored` maps the id of an Aggregate node to its state; `insert_only` says that no table lost or changed a row.
    `filters` narrow the histories of single scans to rows that can join, `among` to those and to rows that change, `meets` to
    rows that join by other conditions than equality.
    `at_once`: joins may read all versions of such rows, rather than a term per input that changes.
    """

    rules: Mapping[type[Node], Rule]
    names: Names
    changed: frozenset[str]
    stored: Mapping[int, State] = field(default_factory=dict)
    insert_only: bool = False
    at_once: bool = False
    filters: Mapping[int, tuple[RuntimeFilter, ...]] = field(default_factory=dict)
    among: Mapping[int, tuple[tuple[RuntimeFilter, ...], ...]] = field(default_factory=dict)
    meets: Mapping[int, Meeting] = field(default_factory=dict)
    deltas: dict[int, Node] = field(default_factory=dict)
    histories: dict[int, Node] = field(default_factory=dict)
    versions: dict[int, Node] = field(default_factory=dict)
    accumulated: dict[int, Node] = field(default_factory=dict)
    points: dict[Hashable, Points | None] = field(default_factory=dict)
    rewritten: dict[int, Node] = field(default_factory=dict)
    """Nodes that a rule expresses by other nodes."""
    kept: list[Node] = field(default_factory=list)
    """Nodes made on the way, so that ids stay unique while the memos live."""

    def with_filters(
        self, filters: Mapping[int, tuple[RuntimeFilter, ...]], meets: Mapping[int, Meeting] | None = None
    ) -> Context:
        """A context for one term of a join: histories made in it read only what the filters let through."""
        return replace(self, filters=filters, among={}, meets=meets or {}, histories={})

    def with_any_of(self, among: Mapping[int, tuple[tuple[RuntimeFilter, ...], ...]]) -> Context:
        """A context for all terms of a join: histories made in it have the rows that some term needs."""
        return replace(self, filters={}, among=among, meets={}, histories={})


def has_changes(node: Node, context: Context) -> bool:
    """True if a table below `node` has changes in the interval."""
    if isinstance(node, Scan):
        return node.table in context.changed
    return any(has_changes(child, context) for child in children(node))


def _rule(node: Node, context: Context) -> Rule:
    rule = context.rules.get(type(node))
    if rule is None:
        raise PlanError(f"no delta rule for {type(node).__name__}")
    return rule


def delta(node: Node, context: Context) -> Node:
    """The signed rows of `node`: its columns, `_v`, `_w`."""
    if id(node) not in context.deltas:
        rule = _rule(node, context)
        if rule.delta is not None and has_changes(node, context):
            result = rule.delta(node, context)
        else:
            result = Empty((*node.columns, VERSION, WEIGHT))
        if result.columns != (*node.columns, VERSION, WEIGHT):
            raise PlanError(f"delta of {type(node).__name__} has columns {result.columns}")
        context.kept += [node, result]
        context.deltas[id(node)] = result
    return context.deltas[id(node)]


def history(node: Node, context: Context) -> Node:
    """The row versions of `node`: its columns, `_from`, `_to`."""
    if id(node) not in context.histories:
        result = _rule(node, context).history(node, context)
        if result.columns != (*node.columns, FROM, TO):
            raise PlanError(f"history of {type(node).__name__} has columns {result.columns}")
        context.kept += [node, result]
        context.histories[id(node)] = result
    return context.histories[id(node)]


def aggregates(node: Node) -> list[Aggregate]:
    """The aggregates in `node`, inner ones first, each once."""
    return [each for each in inner_first(node) if isinstance(each, Aggregate)]
