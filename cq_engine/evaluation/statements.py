"""The statements of a delta plan, evaluated: the versions of a stage, and the rows of a delta log.

What they give is what their SQL gives (`planner.delta_plan`, `planner.consolidate`); tests hold both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cq_engine.algebra.nodes import VERSION, WEIGHT, Node
from cq_engine.core.arrays import first_places, group_starts, sort_places
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema
from cq_engine.evaluation.groups import normalized, numbers, order, require_equal
from cq_engine.evaluation.nodes import Evaluation
from cq_engine.evaluation.vectors import Flags, Numbers, Rows, TooLargeError, Vector, integers

__all__ = ["log_rows", "output_rows", "plain_rows"]


def plain_rows(root: Node, columns: Sequence[Column], leaf: Callable[[Node], Rows], most: int) -> pa.Table:
    """The rows of `root` under other names, by position. Raises UnsupportedError, TooLargeError."""
    return output_rows(root, root.columns, columns, leaf, most)


def output_rows(
    root: Node, outputs: Sequence[str], columns: Sequence[Column], leaf: Callable[[Node], Rows], most: int
) -> pa.Table:
    """Those of the columns `outputs`. Raises UnsupportedError, TooLargeError."""
    rows = Evaluation(leaf, most).rows(root)
    return _table([rows[name] for name in outputs], columns)


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
    rows = Evaluation(leaf, most).rows(root)
    rows = rows.add({name: normalized(rows[name]) for name in outputs})
    signed = _Signed(rows, integers(rows[VERSION].values), integers(rows[WEIGHT].values))
    if key is None:
        signed, added = _without_key(_net(signed, outputs), most)
    else:
        signed, added = _with_key(signed, outputs, [rows[name] for name in key])
    table = _table([signed.rows[name] for name in outputs], columns)
    for name, values in added:
        table = table.append_column(name, values)
    return table


def _table(vectors: Sequence[Vector], columns: Sequence[Column]) -> pa.Table:
    arrays = [vector.to_arrow(column.type) for vector, column in zip(vectors, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(columns))


_Added = tuple[tuple[str, pa.Array], ...]


@dataclass(frozen=True)
class _Signed:
    """Rows with the version and the weight of each."""

    rows: Rows
    versions: Numbers
    weights: Numbers

    def take(self, places: Numbers) -> _Signed:
        return _Signed(self.rows.take(places), self.versions[places], self.weights[places])


def _net(signed: _Signed, outputs: Sequence[str]) -> _Signed:
    """The signed rows without those that cancel: of equal ones the first, with their weights' sum."""
    places, sums = _sums(signed, outputs)
    kept = signed.take(places[sums != 0])
    return _Signed(kept.rows, kept.versions, sums[sums != 0])


def _sums(signed: _Signed, outputs: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Of equal rows of one version the place of the first, and the sum of the weights."""
    shown = [signed.rows[name] for name in outputs]
    for vector in shown:
        require_equal(vector.type)
    group = numbers([*shown, signed.rows[VERSION]], signed.rows.count)
    first = first_places(group)
    sums = np.zeros(len(first), dtype=np.int64)
    np.add.at(sums, group, signed.weights)
    return first, sums


def _with_key(signed: _Signed, outputs: Sequence[str], key: Sequence[Vector]) -> tuple[_Signed, _Added]:
    """The rows of the log in its order: by version and key, the row that leaves before the one that comes."""
    for name in outputs:
        require_equal(signed.rows[name].type)
    group, orders = numbers(key, signed.rows.count), [order(vector) for vector in key]
    weights = signed.weights.copy()

    def in_order(places: Numbers) -> Numbers:
        columns = (signed.versions, *orders, weights)
        return places[sort_places(*(column[places] for column in columns))]

    def sizes(places: Numbers) -> tuple[Numbers, Numbers]:
        """Where the rows of one version and key begin, and how many there are."""
        begins = np.flatnonzero(group_starts(signed.versions[places], group[places]))
        return begins, np.diff(np.append(begins, len(places)))

    places = in_order(np.arange(signed.rows.count))
    begins, size = sizes(places)
    several = places[np.repeat(size > 1, size)]
    if len(several):  # a row that is alone cancels none
        first, sums = _sums(
            _Signed(signed.rows.select((*outputs, VERSION)), signed.versions, weights).take(several), outputs
        )
        gone = np.ones(signed.rows.count, dtype=bool)
        gone[places[np.repeat(size == 1, size)]] = False
        gone[several[first]] = sums == 0
        weights[several[first]] = sums
        places = in_order(places[~gone[places]])
        begins, size = sizes(places)
    found = _Signed(signed.rows, signed.versions, weights).take(places)
    if not len(places):
        return found, _columns(places, places, places, np.zeros(0, dtype=bool))
    new, old = (
        np.add.reduceat(sign.astype(np.int64), begins) for sign in (found.weights > 0, found.weights < 0)
    )
    most = np.maximum.reduceat(np.abs(found.weights), begins)
    several_rows = np.repeat((new > 1) | (old > 1) | (most > 1), size)
    new, old = np.repeat(new, size), np.repeat(old, size)
    kinds = np.where(found.weights > 0, np.where(old > 0, 1, 0), np.where(new > 0, 2, 3))
    return found, _columns(
        kinds, found.versions, _ranks(found.versions, np.repeat(begins, size)), several_rows
    )


def _ranks(versions: Numbers, begins: Numbers) -> Numbers:
    """The number, from 1 in each version, of the group of rows that begins at `begins`."""
    ranks = np.cumsum(begins == np.arange(len(begins)), dtype=np.int64)
    in_version = group_starts(versions)
    found: Numbers = ranks - ranks[np.flatnonzero(in_version)[np.cumsum(in_version) - 1]] + 1
    return found


def _without_key(signed: _Signed, most: int) -> tuple[_Signed, _Added]:
    """Each row as often as its weight says."""
    times = np.abs(signed.weights)
    if int(times.sum()) > most:
        raise TooLargeError("rows without a key")
    found = signed.take(np.repeat(np.arange(len(times)), times))
    versions, weights = found.versions, found.weights
    in_order = sort_places(versions, weights)
    in_version = group_starts(versions[in_order])
    first = np.flatnonzero(in_version)[np.cumsum(in_version) - 1] if len(versions) else versions
    sequence = np.empty(len(versions), dtype=np.int64)
    sequence[in_order] = np.arange(len(versions)) - first + 1
    nothing = np.zeros(len(versions), dtype=bool)
    return found, _columns(np.where(weights > 0, 0, 3), versions, sequence, nothing)


_KINDS = pa.array(["insert", "update_postimage", "update_preimage", "delete"])


def _columns(kinds: Numbers, versions: Numbers, sequence: Numbers, duplicate: Flags) -> _Added:
    return (
        ("_change_type", _KINDS.take(pa.array(kinds))),
        ("_commit_version", pa.array(versions, pa.int64())),
        ("_sequence", pa.array(sequence, pa.int64())),
        ("_duplicate", pa.array(duplicate, pa.bool_())),
    )
