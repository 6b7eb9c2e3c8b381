"""Plans over rows in memory: each node's rows, from those of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, singledispatchmethod

import numpy as np
from pyspark.sql import types as t

from cq_engine.algebra import nodes
from cq_engine.algebra.nodes import BEFORE, FOREVER, FROM, TO, VERSION, WEIGHT, Node
from cq_engine.core.beside import together
from cq_engine.evaluation.expressions import evaluate, truth
from cq_engine.evaluation.groups import aggregate, distinct
from cq_engine.evaluation.joins import inner_join, is_matched, mark, outer_join
from cq_engine.evaluation.vectors import (
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    concat,
    constant,
    integers,
    with_nulls,
)
from cq_engine.evaluation.windows import add_windows

__all__ = ["Evaluation"]


class Evaluation:
    """Evaluates nodes of plans, each once.

    Args:
        leaf: gives the rows of a leaf under the leaf's names.
        most: rows that an operator may give at most.
    """

    def __init__(self, leaf: Callable[[Node], Rows], most: int) -> None:
        self._leaf = leaf
        self._most = most
        self._known: dict[int, Rows] = {}

    def rows(self, node: Node) -> Rows:
        """The node's rows. Raises UnsupportedError, TooLargeError."""
        if id(node) not in self._known:
            found = self.evaluate(node)
            if found.count > self._most:
                raise TooLargeError(type(node).__name__)
            self._known[id(node)] = found
        return self._known[id(node)]

    @singledispatchmethod
    def evaluate(self, node: Node) -> Rows:
        """The node's rows, evaluated now."""
        raise UnsupportedError(type(node).__name__)

    @evaluate.register(nodes.Scan)
    @evaluate.register(nodes.Changes)
    @evaluate.register(nodes.History)
    @evaluate.register(nodes.StateRows)
    @evaluate.register(nodes.Given)
    def _rows_of_leaf(self, node: Node) -> Rows:
        return self._leaf(node)

    @evaluate.register
    def _empty(self, node: nodes.Empty) -> Rows:
        known = {VERSION: t.LongType(), FROM: t.LongType(), TO: t.LongType(), WEIGHT: t.IntegerType()}
        return Rows({name: constant(None, known.get(name, t.NullType()), 0) for name in node.columns}, 0)

    @evaluate.register
    def _values(self, node: nodes.Values) -> Rows:
        one = Rows({}, 1)
        columns = [concat([evaluate(row[n], one) for row in node.rows]) for n in range(len(node.names))]
        return Rows(dict(zip(node.names, columns)), len(node.rows))

    @evaluate.register
    def _filter(self, node: nodes.Filter) -> Rows:
        rows = self.rows(node.input)
        return rows.filter(truth(node.condition, rows))

    @evaluate.register
    def _project(self, node: nodes.Project) -> Rows:
        rows = self.rows(node.input)
        columns = [partial(evaluate, expression, rows) for _, expression in node.items]
        return Rows(dict(zip(node.columns, together(columns, rows.count))), rows.count)

    @evaluate.register
    def _union(self, node: nodes.UnionAll) -> Rows:
        parts = [self.rows(each) for each in node.inputs]
        columns = [
            partial(concat, [part[each.columns[n]] for part, each in zip(parts, node.inputs)])
            for n in range(len(node.names))
        ]
        count = sum(part.count for part in parts)
        return Rows(dict(zip(node.names, together(columns, count))), count)

    @evaluate.register
    def _join(self, node: nodes.Join) -> Rows:
        inputs = [self.rows(each) for each in node.inputs]
        return inner_join(inputs, node.conditions, node.columns, self._most)

    @evaluate.register
    def _outer_join(self, node: nodes.OuterJoin) -> Rows:
        left, right = self.rows(node.left), self.rows(node.right)
        return outer_join(left, right, node.kind, node.conditions, self._most)

    @evaluate.register
    def _semi_join(self, node: nodes.SemiJoin) -> Rows:
        left = self.rows(node.left)
        matched = is_matched(left, self.rows(node.right), node.conditions, self._most)
        return left.filter(~matched if node.anti else matched)

    @evaluate.register
    def _mark(self, node: nodes.Mark) -> Rows:
        left = self.rows(node.left)
        return mark(left, node.name, is_matched(left, self.rows(node.right), node.conditions, self._most))

    @evaluate.register
    def _aggregate(self, node: nodes.Aggregate) -> Rows:
        return aggregate(self.rows(node.input), node.keys, node.functions)

    @evaluate.register
    def _distinct(self, node: nodes.Distinct) -> Rows:
        return distinct(self.rows(node.input))

    @evaluate.register
    def _window(self, node: nodes.Window) -> Rows:
        return add_windows(self.rows(node.input), node.functions)

    @evaluate.register
    def _edges(self, node: nodes.Edges) -> Rows:
        rows = self.rows(node.input)
        begins, ends = (integers(rows[name].values) for name in (FROM, TO))
        kept = [np.flatnonzero((each > BEFORE) & (each < FOREVER)) for each in (begins, ends)]
        signed = rows.select(n for n in rows.columns if n not in (FROM, TO)).take(np.concatenate(kept))
        versions = np.concatenate([begins[kept[0]], ends[kept[1]]])
        weights = np.repeat(np.array([1, -1], dtype=np.int64), [len(kept[0]), len(kept[1])])
        return signed.add(
            {
                VERSION: Vector(t.LongType(), with_nulls(versions)),
                WEIGHT: Vector(t.IntegerType(), with_nulls(weights)),
            }
        )
