"""Joins of rows in memory: the pairs of rows that equalities choose, and of those the ones that the other conditions keep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.nodes import references
from cq_engine.core.arrays import sort_places
from cq_engine.core.beside import is_much, together
from cq_engine.evaluation.comparisons import check_compared_last
from cq_engine.evaluation.expressions import evaluate, truth
from cq_engine.evaluation.groups import numbers
from cq_engine.evaluation.vectors import (
    Flags,
    Numbers,
    Rows,
    TooLargeError,
    Vector,
    common_type,
    concat,
)

__all__ = ["equality", "inner_join", "is_matched", "mark", "outer_join"]


def inner_join(
    inputs: Sequence[Rows], conditions: Sequence[exp.Expr], columns: Collection[str], most: int
) -> Rows:
    """The columns of every combination of rows for which all conditions are true; each is asked as soon as its columns are
    there, and a column is taken along as long as it is needed. Another core joins half of many rows.

    Raises UnsupportedError, and TooLargeError where a join has more than `most` pairs.
    """
    first, others = inputs[0], inputs[1:]
    halves = _halves(first, others)
    if halves:
        pieces = [partial(_join, half, others, conditions, columns, most // 2) for half in halves]
        with suppress(TooLargeError):  # of a half, which the other may make up for
            return Rows.stacked(together(pieces, first.count))
    return _join(first, others, conditions, columns, most)


def _halves(first: Rows, others: Sequence[Rows]) -> list[Rows]:
    """The rows on the left, where they are many and what each half looks into is not much more; else nothing."""
    if not is_much(first.count) or sum(each.count for each in others) > 2 * first.count:
        return []
    middle = first.count // 2
    return [first.slice(0, middle), first.slice(middle, first.count - middle)]


def _join(
    first: Rows, others: Sequence[Rows], conditions: Sequence[exp.Expr], columns: Collection[str], most: int
) -> Rows:
    waiting, joined = list(conditions), first
    for each in (None, *others):
        known = set(joined.columns) | (set(each.columns) if each is not None else set())
        ready = [c for c in waiting if references(c) <= known]
        waiting = [c for c in waiting if not references(c) <= known]
        if each is None:
            for condition in ready:
                joined = joined.filter(truth(condition, joined))
        else:
            left, right = _pairs(joined, each, ready, most)
            needed = {*columns, *(name for condition in waiting for name in references(condition))}
            mine, theirs = (side.select(n for n in side.columns if n in needed) for side in (joined, each))
            joined = _combined(mine, theirs, left, right)
    return joined.select(columns)


def outer_join(left: Rows, right: Rows, kind: str, conditions: Sequence[exp.Expr], most: int) -> Rows:
    """LEFT, RIGHT or FULL outer join. Raises as `inner_join` does."""
    mine, theirs = _pairs(left, right, conditions, most)
    parts = [(mine, theirs)]
    if kind in ("LEFT", "FULL"):
        alone = np.flatnonzero(~_hit(mine, left.count))
        parts.append((alone, np.full(len(alone), -1)))
    if kind in ("RIGHT", "FULL"):
        alone = np.flatnonzero(~_hit(theirs, right.count))
        parts.append((np.full(len(alone), -1), alone))
    places = [np.concatenate(each) for each in zip(*parts)]
    return _combined(left, right, *(pa.array(p, pa.int64(), mask=p < 0) for p in places))


def is_matched(left: Rows, right: Rows, conditions: Sequence[exp.Expr], most: int) -> Flags:
    """Which rows of `left` have a row of `right` for which all conditions are true. Raises as `inner_join` does."""
    return _hit(_pairs(left, right, conditions, most)[0], left.count)


def mark(rows: Rows, name: str, matched: Flags) -> Rows:
    """The rows with a BOOLEAN column."""
    return rows.add({name: Vector(t.BooleanType(), pa.array(matched))})


def _hit(places: Numbers, count: int) -> Flags:
    found = np.zeros(count, dtype=bool)
    found[places] = True
    return found


def _combined(left: Rows, right: Rows, mine: pa.Array | Numbers, theirs: pa.Array | Numbers) -> Rows:
    return left.take(mine).add(right.take(theirs).columns)


def _pairs(left: Rows, right: Rows, conditions: Sequence[exp.Expr], most: int) -> tuple[Numbers, Numbers]:
    """The places of rows that are joined, on either side."""
    equalities, rest = [], []
    for condition in conditions:
        sides = equality(condition, left, right)
        if sides is None:
            rest.append(condition)
        else:
            equalities.append(sides)
    mine, theirs = _equal_pairs(left, right, equalities, most)
    if rest:
        needed = frozenset(name for condition in rest for name in references(condition))
        both = _combined(
            left.select(n for n in left.columns if n in needed),
            right.select(n for n in right.columns if n in needed),
            mine,
            theirs,
        )
        both = Rows(both.columns, len(mine))
        kept = np.ones(len(mine), dtype=bool)
        for condition in rest:
            kept &= np.asarray(truth(condition, both))
        mine, theirs = mine[kept], theirs[kept]
    return mine, theirs


def equality(condition: exp.Expr, left: Rows, right: Rows) -> tuple[exp.Expr, exp.Expr, bool] | None:
    """The two sides of an equality between the inputs, and whether NULL is equal to NULL in it; None of another condition. Raises
    UnsupportedError where Spark reads it otherwise."""
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
        return None
    check_compared_last(condition)
    one, other = condition.this, condition.expression
    names = references(one), references(other)
    if not all(names):
        return None
    safe = isinstance(condition, exp.NullSafeEQ)
    if names[0] <= left.columns.keys() and names[1] <= right.columns.keys():
        return one, other, safe
    if names[1] <= left.columns.keys() and names[0] <= right.columns.keys():
        return other, one, safe
    return None


def _equal_pairs(
    left: Rows, right: Rows, equalities: Sequence[tuple[exp.Expr, exp.Expr, bool]], most: int
) -> tuple[Numbers, Numbers]:
    here, there = np.arange(left.count), np.arange(right.count)
    if not equalities:
        if left.count * right.count > most:
            raise TooLargeError("a cross join")
        return np.repeat(here, right.count), np.tile(there, left.count)
    columns = []
    for one, other, safe in equalities:
        mine, theirs = evaluate(one, left), evaluate(other, right)
        common_type((mine.type, theirs.type))
        columns.append(concat([theirs, mine]))
        if not safe:
            here = here[np.asarray(mine.values.is_valid())[here]]
            there = there[np.asarray(theirs.values.is_valid())[there]]
    found = numbers(columns, left.count + right.count)
    return _matches(found[right.count :][here], found[: right.count][there], here, there, most)


def _matches(
    mine: Numbers, theirs: Numbers, here: Numbers, there: Numbers, most: int
) -> tuple[Numbers, Numbers]:
    """Pairs of places whose numbers are equal; those on the left in their order. The numbers are small: they index a table."""
    size = int(max(mine.max(initial=-1), theirs.max(initial=-1))) + 1
    per_number = np.bincount(theirs, minlength=size)
    counts = per_number[mine]
    total = int(counts.sum())
    if total > most:
        raise TooLargeError("a join")
    order = sort_places(theirs)
    low = (np.cumsum(per_number) - per_number)[mine]
    offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(here, counts), there[order[np.repeat(low, counts) + offsets]]
