"""Dimension views: the queries that can be maintained from partial deltas (Jörg & Dessloch, Definition 2).

A dimension view has projections, selections and joins only, and every join follows from attributes of one side to the
primary key of the other. Its rows are then known by the primary key of one table, its *root*: all others follow from
it. That key has to be in the result (§5.2); keys that a join leads to need not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch

from sqlglot import exp

from cq_engine.algebra.nodes import Filter, Join, Node, Project, Scan, column, references

__all__ = ["NotDimension", "Step", "View", "dimension_view"]

KeyOf = Callable[[str], Sequence[str]]
"""The primary key of a table."""
Describe = Callable[[Node], str]


class NotDimension(Exception):
    """The query is no dimension view: `clause` is what is to blame, the text says why, `hint` what would help."""

    def __init__(self, clause: str, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.clause = clause
        self.hint = hint


@dataclass(frozen=True)
class Step:
    """The join with the input at `place` of a Join, by `conditions`, which lead to its key; `others` are conditions on
    the joined rows."""

    place: int
    conditions: tuple[exp.Expr, ...]
    others: tuple[exp.Expr, ...]


@dataclass(frozen=True)
class View:
    """How a Join is put together: from the input at `root`, step by step."""

    root: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Rows:
    """How the rows of a node are known: by the columns `key`, which are the key of `table`."""

    key: tuple[str, ...]
    table: str
    views: Mapping[int, View]


def dimension_view(
    node: Node, outputs: Sequence[str], key_of: KeyOf, describe: Describe
) -> tuple[tuple[str, ...], Mapping[int, View]]:
    """The columns of `outputs` that are the key of the root, and how each join is put together, by the id of its node.

    Args:
        node: the query's plan.
        outputs: the columns of its result.
        key_of: the primary keys of the tables.
        describe: says what a node is in the query's words.

    Raises:
        NotDimension: the query is no dimension view, or its key is not in the result.
    """
    hidden: Rows | None = None
    for rows in _rows(node, _Search(key_of, describe)):
        if set(rows.key) <= set(outputs):
            return rows.key, rows.views
        hidden = hidden or rows
    assert hidden is not None
    raise _without_key(hidden.table, key_of)


def _without_key(table: str, key_of: KeyOf) -> NotDimension:
    names = ", ".join(key_of(table))
    return NotDimension(
        "SELECT",
        f"the result does not have ({names}), the key of {table}, by which its rows are known",
        f"select {names}, too",
    )


@dataclass(frozen=True)
class _Search:
    key_of: KeyOf
    describe: Describe


@singledispatch
def _rows(node: Node, search: _Search) -> Iterator[Rows]:
    """The ways in which the rows of `node` are known; at least one. Raises NotDimension."""
    raise NotDimension(
        search.describe(node),
        "a dimension view has projections, selections and joins only",
        "give the tables a snapshot (leave out WITHOUT SNAPSHOT), from which such a query can be maintained",
    )


@_rows.register
def _scan(node: Scan, search: _Search) -> Iterator[Rows]:
    names = {source.lower(): name for name, source in node.fields}
    key = search.key_of(node.table)
    if not key or any(part.lower() not in names for part in key):
        raise _without_key(node.table, search.key_of)
    yield Rows(tuple(names[part.lower()] for part in key), node.table, {})


@_rows.register
def _filter(node: Filter, search: _Search) -> Iterator[Rows]:
    return _rows(node.input, search)


@_rows.register
def _project(node: Project, search: _Search) -> Iterator[Rows]:
    shown: dict[str, str] = {}
    for name, expression in node.items:
        bare = expression.unnest()
        if isinstance(bare, exp.Column):
            shown.setdefault(bare.name, name)
    hidden: Rows | None = None
    for rows in _rows(node.input, search):
        if all(part in shown for part in rows.key):
            yield Rows(tuple(shown[part] for part in rows.key), rows.table, rows.views)
            return
        hidden = hidden or rows
    assert hidden is not None
    raise _without_key(hidden.table, search.key_of)


@_rows.register
def _join(node: Join, search: _Search) -> Iterator[Rows]:
    inputs = [next(iter(_rows(each, search))) for each in node.inputs]
    below: dict[int, View] = {}
    for each in inputs:
        below.update(each.views)
    found = False
    for root, rows in enumerate(inputs):
        steps = _steps(node, root, [each.key for each in inputs])
        if steps is not None:
            found = True
            yield Rows(rows.key, rows.table, {**below, id(node): View(root, steps)})
    if not found:
        tables = " and ".join(each.table for each in inputs)
        raise NotDimension(
            search.describe(node),
            f"the join does not lead from one of {tables} to the primary keys of the others",
            "join on columns = the whole primary key of the other table, or give the tables a snapshot",
        )


def _steps(node: Join, root: int, keys: Sequence[Sequence[str]]) -> tuple[Step, ...] | None:
    """The joins that lead from the input at `root` to all others, each by equalities with its whole key."""
    known = set(node.inputs[root].columns)
    waiting = list(node.conditions)
    rest = [place for place in range(len(node.inputs)) if place != root]
    steps: list[Step] = []
    while rest:
        for place in rest:
            leading = _leading(waiting, known, keys[place])
            if leading is not None:
                break
        else:
            return None
        rest.remove(place)
        known |= set(node.inputs[place].columns)
        waiting = [each for each in waiting if each not in leading]
        others = [each for each in waiting if references(each) <= known]
        waiting = [each for each in waiting if not references(each) <= known]
        steps.append(Step(place, tuple(leading), tuple(others)))
    return tuple(steps)


def _leading(conditions: Sequence[exp.Expr], known: set[str], key: Sequence[str]) -> list[exp.Expr] | None:
    """Of the conditions one for each column of `key` that holds it equal to something known; None where one has none."""
    found: list[exp.Expr] = []
    for part in key:
        for each in conditions:
            bare = each.unnest()
            if not isinstance(bare, exp.EQ):
                continue
            sides = (bare.left.unnest(), bare.right.unnest())
            for one, other in (sides, sides[::-1]):
                if one == column(part) and references(other) and references(other) <= known:
                    found.append(each)
                    break
            else:
                continue
            break
        else:
            return None
    return found
