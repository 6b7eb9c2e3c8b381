"""What views and deltas come to, worked out from their definitions alone: every combination of rows, and its count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from cq_engine.sources.sweep.model import Delta, Edge, Row, View

__all__ = ["Bag", "evaluate", "join", "step_deltas"]

Bag = Counter[tuple[Row, ...]]
"""Joined rows, one of each relation in the order of the view, and how often each is there."""


def evaluate(view: View, state: Mapping[str, Iterable[Row]]) -> Bag:
    """The view over the rows of each relation."""
    return join(view, {name: [(1, row) for row in rows] for name, rows in state.items()})


def step_deltas(view: View, delta: Delta) -> list[Bag]:
    """The change of the view by step."""
    found: list[Bag] = [Counter() for _ in delta.steps]
    inputs: dict[int, dict[str, list[tuple[int, Row]]]] = {}
    for relation in view.relations:
        for term, sign, row in delta.rows(relation.name):
            inputs.setdefault(term, {}).setdefault(relation.name, []).append((sign, row))
    for term, step in enumerate(delta.terms):
        for rows, count in join(view, inputs[term]).items():
            found[step][rows] += count
    return found


def join(view: View, inputs: Mapping[str, Iterable[tuple[int, Row]]]) -> Bag:
    """Signed rows of each relation, joined by all edges: relation by relation, comparing each pair."""
    partial: list[tuple[int, dict[str, Row]]] = [(1, {})]
    for relation in view.relations:
        edges = [edge for edge in view.edges if relation.name in {edge.left[0], edge.right[0]}]
        partial = [
            (count * sign, {**rows, relation.name: row})
            for count, rows in partial
            for sign, row in inputs[relation.name]
            if all(_holds(view, edge, {**rows, relation.name: row}) for edge in edges)
        ]
    found: Bag = Counter()
    for count, rows in partial:
        found[tuple(_comparable(rows[relation.name]) for relation in view.relations)] += count
    return Counter({rows: count for rows, count in found.items() if count})


def _comparable(row: Row) -> Row:
    return tuple("NaN" if value != value else value for value in row)


def _holds(view: View, edge: Edge, rows: Mapping[str, Row]) -> bool:
    if edge.left[0] not in rows or edge.right[0] not in rows:
        return True
    left, right = (_value(view, rows, side) for side in (edge.left, edge.right))
    if left is None or right is None:
        return False
    if edge.normal is not None:
        left, right = edge.normal(left), edge.normal(right)
    return bool(left == right) or (left != left and right != right)


def _value(view: View, rows: Mapping[str, Row], side: tuple[str, str]) -> Any:
    relation = view.by_name[side[0]]
    return rows[relation.name][relation.columns.index(side[1])]
