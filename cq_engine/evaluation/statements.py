"""The statements of a delta plan, evaluated: the versions of a stage, and the rows of a delta log.

What they give is what their SQL gives (`planner.delta_plan`, `planner.consolidate`); tests hold both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from cq_engine.algebra.nodes import VERSION, WEIGHT, Node
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema
from cq_engine.evaluation.groups import normalized, numbers, order, require_equal
from cq_engine.evaluation.nodes import Evaluation
from cq_engine.evaluation.vectors import Flags, Numbers, Rows, TooLargeError, Vector, integers
from cq_engine.evaluation.windows import starts_of

__all__ = ["log_rows", "plain_rows"]


def plain_rows(root: Node, columns: Sequence[Column], leaf: Callable[[Node], Rows], most: int) -> pa.Table:
    """The rows of `root` under other names, by position. Raises UnsupportedError, TooLargeError."""
    rows = Evaluation(leaf, most).rows(root)
    return _table([rows[name] for name in root.columns], columns)


def log_rows(
    root: Node,
    outputs: Sequence[str],
    columns: Sequence[Column],
    key: Sequence[str] | None,
    leaf: Callable[[Node], Rows],
    most: int,
) -> pa.Table:
    """A delta log's rows from signed ones: `columns`, which are the `outputs` of `root`, `_change_type`, `_commit_version`,
    `_sequence` and `_duplicate`, as `planner.consolidate` describes them. Raises UnsupportedError, TooLargeError."""
    rows = _net(Evaluation(leaf, most).rows(root), outputs)
    versions, weights = integers(rows[VERSION].values), integers(rows[WEIGHT].values)
    if key is None:
        places, added = _without_key(versions, weights, most)
        rows = rows.take(places)
    else:
        added = _with_key(rows, [rows[name] for name in key], versions, weights)
    return (
        _table([rows[name] for name in outputs], columns)
        .append_column(*added[0])
        .append_column(*added[1])
        .append_column(*added[2])
        .append_column(*added[3])
    )


def _table(vectors: Sequence[Vector], columns: Sequence[Column]) -> pa.Table:
    arrays = [vector.to_arrow(column.type) for vector, column in zip(vectors, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(columns))


def _net(rows: Rows, outputs: Sequence[str]) -> Rows:
    """The signed rows without those that cancel: of equal ones the first, with their weights' sum."""
    rows = rows.add({name: normalized(rows[name]) for name in outputs})
    shown = [rows[name] for name in outputs]
    for vector in shown:
        require_equal(vector.type)
    group = numbers([*shown, rows[VERSION]], rows.count)
    _, first, place = np.unique(group, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), dtype=np.int64)
    np.add.at(sums, place, integers(rows[WEIGHT].values))
    kept = sums != 0
    found = rows.select((*outputs, VERSION)).take(first[kept])
    return found.add({WEIGHT: Vector(rows[WEIGHT].type, pa.array(sums[kept]))})


_Added = tuple[tuple[str, pa.Array], ...]


def _with_key(rows: Rows, key: Sequence[Vector], versions: Numbers, weights: Numbers) -> _Added:
    group = numbers([*key, rows[VERSION]], rows.count)
    _, place = np.unique(group, return_inverse=True)
    many = len(group) and int(place.max()) + 1
    new, old = (np.bincount(place[sign], minlength=many)[place] for sign in (weights > 0, weights < 0))
    most = np.zeros(many, dtype=np.int64)
    np.maximum.at(most, place, np.abs(weights))
    kinds = np.where(weights > 0, np.where(old > 0, 1, 0), np.where(new > 0, 2, 3))
    in_order = np.lexsort((*reversed([order(vector) for vector in key]), versions))
    in_version = starts_of(versions[in_order])
    ranks = np.cumsum(starts_of(versions[in_order], group[in_order]))
    first = np.flatnonzero(in_version)[np.cumsum(in_version) - 1] if len(group) else np.empty(0, np.int64)
    sequence = np.empty(len(group), dtype=np.int64)
    sequence[in_order] = ranks - ranks[first] + 1
    return _columns(kinds, versions, sequence, (new > 1) | (old > 1) | (most[place] > 1))


def _without_key(versions: Numbers, weights: Numbers, most: int) -> tuple[Numbers, _Added]:
    times = np.abs(weights)
    if int(times.sum()) > most:
        raise TooLargeError("rows without a key")
    places = np.repeat(np.arange(len(weights)), times)
    versions, weights = versions[places], weights[places]
    in_order = np.lexsort((weights, versions))
    in_version = starts_of(versions[in_order])
    first = np.flatnonzero(in_version)[np.cumsum(in_version) - 1] if len(places) else places
    sequence = np.empty(len(places), dtype=np.int64)
    sequence[in_order] = np.arange(len(places)) - first + 1
    nothing = np.zeros(len(places), dtype=bool)
    return places, _columns(np.where(weights > 0, 0, 3), versions, sequence, nothing)


_KINDS = pa.array(["insert", "update_postimage", "update_preimage", "delete"])


def _columns(kinds: Numbers, versions: Numbers, sequence: Numbers, duplicate: Flags) -> _Added:
    return (
        ("_change_type", _KINDS.take(pa.array(kinds))),
        ("_commit_version", pa.array(versions, pa.int64())),
        ("_sequence", pa.array(sequence, pa.int64())),
        ("_duplicate", pa.array(duplicate, pa.bool_())),
    )
