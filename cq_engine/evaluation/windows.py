"""Window functions over rows in memory: numbers, ranks, rows before and after, and what frames hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.dialect import write
from cq_engine.algebra.nodes import Named
from cq_engine.core.beside import together
from cq_engine.evaluation.expressions import evaluate
from cq_engine.evaluation.frames import over_frames
from cq_engine.evaluation.partitions import Partitions
from cq_engine.evaluation.vectors import Rows, UnsupportedError, Vector, with_nulls

__all__ = ["add_windows"]

_RANKS = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)


def add_windows(rows: Rows, functions: Named) -> Rows:
    """The rows with the functions' values. Raises UnsupportedError, TooLargeError."""
    known: dict[str, Partitions] = {}
    calls: dict[str, Callable[[], Vector]] = {}

    def column_of(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window):
            return node
        label = f"window {len(calls)}"
        calls[label] = partial(_window, node, rows, _partitions(node, rows, known))
        return exp.Column(this=exp.Identifier(this=label, quoted=True))

    outer = {name: expression.transform(column_of) for name, expression in functions}
    found = rows.add(dict(zip(calls, together(list(calls.values()), rows.count))))
    return rows.add({name: evaluate(expression, found) for name, expression in outer.items()})


def _partitions(node: exp.Window, rows: Rows, known: dict[str, Partitions]) -> Partitions:
    """The order of a window; of the same PARTITION BY and ORDER BY it is found once."""
    if set(node.args) - {"this", "partition_by", "order", "spec", "over", "alias", "first"}:
        raise UnsupportedError(write(node))
    key = f"{node.args.get('partition_by')!r} {node.args.get('order')!r}"
    if key not in known:
        known[key] = Partitions.of(node, rows)
    return known[key]


def _window(node: exp.Window, rows: Rows, part: Partitions) -> Vector:
    given, call = node.args.get("order"), node.this
    if type(call) not in (*_RANKS, exp.Lead, exp.Lag):
        return over_frames(node, rows, part)
    if given is None or node.args.get("spec") is not None:
        raise UnsupportedError(write(node))
    return _neighbour(call, rows, part) if isinstance(call, exp.Lead | exp.Lag) else _rank(call, part)


def _rank(call: exp.Expr, part: Partitions) -> Vector:
    """The number or rank of each row in its partition."""
    if call.expressions:
        raise UnsupportedError(write(call))
    if isinstance(call, exp.RowNumber):
        return Vector(t.IntegerType(), part.back(with_nulls(part.positions + 1)))
    if isinstance(call, exp.Rank | exp.DenseRank):
        ranks = part.ranks(dense=isinstance(call, exp.DenseRank))
        return Vector(t.IntegerType(), part.back(with_nulls(ranks)))
    size = part.ends - part.first
    if isinstance(call, exp.PercentRank):
        places, size = part.ranks(dense=False) - 1, np.maximum(size - 1, 1)
    else:
        places = part.peers[1] - part.first
    quotients = pc.divide(pa.array(places.astype(np.float64)), pa.array(size.astype(np.float64)))
    return Vector(t.DoubleType(), part.back(quotients))


def _neighbour(call: exp.Lead | exp.Lag, rows: Rows, part: Partitions) -> Vector:
    """The value of the row so many places after or before."""
    offset, default = call.args.get("offset"), call.args.get("default")
    number = offset is None or (isinstance(offset, exp.Literal) and offset.this.isdigit())
    if not number or not (default is None or isinstance(default, exp.Null)):
        raise UnsupportedError(write(call))
    vector = evaluate(call.this, rows)
    count = len(part.places)
    distance = 1 if offset is None else min(int(offset.this), count)
    wanted = np.arange(count) + (distance if isinstance(call, exp.Lead) else -distance)
    missing = (wanted < part.first) | (wanted >= part.ends)
    places = part.places[np.where(missing, 0, wanted)]
    return Vector(vector.type, part.back(vector.values.take(pa.array(places, pa.int64(), mask=missing))))
