"""Window functions over frames: sums, means, numbers and extremes of what a frame holds, and its first, last and nth row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.dialect import write
from cq_engine.evaluation.expressions import evaluate
from cq_engine.evaluation.groups import LONG, is_sum_safe, sum_type
from cq_engine.evaluation.partitions import Partitions
from cq_engine.evaluation.vectors import (
    EXACT,
    INTEGERS,
    Flags,
    Numbers,
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    integers,
    is_number,
    with_nulls,
)

__all__ = ["Frames", "over_frames"]

_CURRENT, _UNBOUNDED = "CURRENT ROW", "UNBOUNDED"


@dataclass(frozen=True)
class Frames:
    """For each row, in the window's order, where its frame begins and the place behind it; the same where it is empty."""

    low: Numbers
    high: Numbers
    from_start: bool
    """Do all of them begin with their partition?"""
    whole: bool
    """Is each the whole partition?"""

    @classmethod
    def of(cls, node: exp.Window, part: Partitions) -> Frames:
        """ROWS with numbers, RANGE without; without either RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW, and the whole
        partition where there is no order, as in Spark. Raises UnsupportedError for other frames."""
        spec = node.args.get("spec")
        if node.args.get("order") is None:
            if spec is not None:
                raise UnsupportedError(write(node))
            return cls(part.first, part.ends, True, True)
        if spec is None:
            return cls(part.first, part.peers[1], True, False)
        if spec.args.get("exclude"):
            raise UnsupportedError(write(node))
        rows = _word(spec, "kind") == "ROWS"
        start, end = (_Bound.of(spec, name) for name in ("start", "end"))
        low, high = start.places(part, rows, 0), end.places(part, rows, 1)
        from_start = start == _Bound(_UNBOUNDED, "PRECEDING")
        whole = from_start and end == _Bound(_UNBOUNDED, "FOLLOWING")
        return cls(low, np.maximum(low, high), from_start, whole)

    @property
    def empty(self) -> Flags:
        """Which frames have no row."""
        found: Flags = self.low == self.high
        return found

    def sums(self, values: Numbers) -> Numbers:
        """The sum of the values in each frame, of values in the window's order."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
        found: Numbers = before[self.high] - before[self.low]
        return found


@dataclass(frozen=True)
class _Bound:
    """An end of a frame: a word or a number of rows, and to which side."""

    value: str | int
    side: str

    @classmethod
    def of(cls, spec: exp.Expr, name: str) -> _Bound:
        value = spec.args.get(name) or _CURRENT
        if isinstance(value, exp.Literal) and not value.is_string and value.this.isdigit():
            return cls(int(value.this), _word(spec, f"{name}_side"))
        if str(value).upper() == _CURRENT:
            return cls(_CURRENT, "")
        if str(value).upper() == _UNBOUNDED:
            return cls(_UNBOUNDED, _word(spec, f"{name}_side"))
        raise UnsupportedError(write(spec))

    def places(self, part: Partitions, rows: bool, behind: int) -> Numbers:
        """Of each row where its frame begins, or with `behind` = 1 the place behind it."""
        if self.value == _UNBOUNDED:
            return part.first if self.side == "PRECEDING" else part.ends
        if not rows:
            if self.value != _CURRENT:
                raise UnsupportedError("a frame of a distance")
            return part.peers[behind]
        offset = 0 if isinstance(self.value, str) else min(self.value, len(part.places))
        if self.side == "PRECEDING":
            offset = -offset
        found: Numbers = np.clip(np.arange(len(part.places)) + offset + behind, part.first, part.ends)
        return found


def _word(spec: exp.Expr, name: str) -> str:
    return str(spec.args.get(name) or "").upper()


def over_frames(node: exp.Window, rows: Rows, part: Partitions) -> Vector:
    """The values of a function over its frames. Raises UnsupportedError, TooLargeError."""
    call = node.this
    frames = Frames.of(node, part)
    if isinstance(call, exp.Count) and isinstance(call.this, exp.Star) and not call.expressions:
        return Vector(t.LongType(), part.back(with_nulls(frames.high - frames.low)))
    if (
        type(call) not in (*_NUMBERS, *_PICKS)
        or call.expressions
        or isinstance(call.this, exp.Distinct | exp.Star)
    ):
        raise UnsupportedError(write(node))
    vector = evaluate(call.this, rows)
    if type(call) in _PICKS:
        return _pick(call, vector, part, frames)
    return _number(call, vector, part, frames)


_NUMBERS = (exp.Sum, exp.Max, exp.Min, exp.Count, exp.Avg)
_PICKS = (exp.FirstValue, exp.First, exp.LastValue, exp.Last, exp.NthValue)


def _pick(call: exp.Expr, vector: Vector, part: Partitions, frames: Frames) -> Vector:
    """The value of one row of each frame."""
    if isinstance(call, exp.NthValue):
        offset = call.args.get("offset")
        if not isinstance(offset, exp.Literal) or not offset.this.isdigit() or not int(offset.this):
            raise UnsupportedError(write(call))
        wanted = frames.low + min(int(offset.this), len(part.places) + 1) - 1
    else:
        wanted = frames.high - 1 if isinstance(call, exp.LastValue | exp.Last) else frames.low
    missing = frames.empty | (wanted >= frames.high)
    places = part.places[np.where(missing, 0, wanted)]
    return Vector(vector.type, part.back(vector.values.take(pa.array(places, pa.int64(), mask=missing))))


def _number(call: exp.Expr, vector: Vector, part: Partitions, frames: Frames) -> Vector:
    """The sum, mean, extreme or number of the values that are not NULL."""
    nulls = vector.nulls[part.places]
    seen = frames.sums((~nulls).astype(np.int64))
    if isinstance(call, exp.Count):
        return Vector(t.LongType(), part.back(with_nulls(seen)))
    if not is_number(vector.type):
        raise UnsupportedError(f"a window over {vector.type.simpleString()}")
    values = integers(vector.values)[part.places]
    if isinstance(call, exp.Max | exp.Min):
        found = _extremes(values, nulls, part, frames, smallest=isinstance(call, exp.Min))
        return Vector(vector.type, part.back(with_nulls(found, seen == 0)))
    mean = isinstance(call, exp.Avg)
    if not is_sum_safe(values, EXACT if mean else LONG):
        raise TooLargeError("a sum of too many digits")
    sums = frames.sums(values)
    if mean:
        return Vector(t.DoubleType(), part.back(_means(vector.type, sums, seen)))
    return Vector(sum_type(vector.type), part.back(with_nulls(sums, seen == 0)))


def _means(kind: t.DataType, sums: Numbers, seen: Numbers) -> pa.Array:
    """Means of whole numbers, which Spark adds up as DOUBLE: exactly, since the sums are small."""
    if type(kind) not in INTEGERS:
        raise UnsupportedError(f"the mean of {kind.simpleString()}")
    return pc.divide(pa.array(sums.astype(np.float64)), pa.array(seen.astype(np.float64), mask=seen == 0))


def _extremes(values: Numbers, nulls: Flags, part: Partitions, frames: Frames, *, smallest: bool) -> Numbers:
    """The extremes of the values that are not NULL. Raises UnsupportedError where frames begin anywhere."""
    if not frames.from_start:
        raise UnsupportedError("an extreme of a frame that moves")
    if not len(values):
        return values
    if frames.whole:
        limits = np.iinfo(np.int64)
        function, neutral = (np.minimum, limits.max) if smallest else (np.maximum, limits.min)
        found: Numbers = function.reduceat(np.where(nulls, neutral, values), part.starts)
        return np.repeat(found, np.diff(np.append(part.starts, len(values))))
    return _running_extreme(values, nulls, part, smallest=smallest)[np.maximum(frames.high - 1, 0)]


def _running_extreme(values: Numbers, nulls: Flags, part: Partitions, *, smallest: bool) -> Numbers:
    """By the values' ranks, which rise from one partition to the next: so a running extreme does not leave its own."""
    # ~ turns the order round, and no value overflows, as the smallest does under -
    sorted_values, ranks = np.unique(~values if smallest else values, return_inverse=True)
    size = len(sorted_values) + 1
    ranks = np.where(nulls, 0, ranks + 1)
    found = np.maximum.accumulate(ranks + part.first * size) - part.first * size
    best = sorted_values[np.maximum(found - 1, 0)]
    return ~best if smallest else best
