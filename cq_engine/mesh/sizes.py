"""What values take in memory one by one, and where to cut them into parts that take no more than they may."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TEXT_BYTES", "cuts", "fixed_width", "row_sizes", "value_sizes"]

_BIT = 1 / 8
"""Says whether there is a value."""
TEXT_BYTES = 4 + _BIT
"""What Arrow adds to a value of text: its offset, and whether it is there."""


def value_sizes(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Bytes of each value; of types that are neither text nor of a fixed width, their mean.

    >>> value_sizes(pa.array(["a", None, "abc"])).tolist()
    [5.125, 4.125, 7.125]
    """
    kind, width = values.type, fixed_width(values.type)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        lengths = pc.binary_length(values).fill_null(0)
        return np.asarray(lengths, np.float64) + TEXT_BYTES
    if width is None:
        width = values.nbytes / max(1, len(values)) + _BIT
    return np.full(len(values), width)


def fixed_width(kind: pa.DataType) -> float | None:
    """Bytes of each value, with the bit that says whether it is there; None where they differ."""
    try:
        return float(kind.bit_width) / 8 + _BIT
    except ValueError:  # of no fixed width
        return None


def row_sizes(rows: pa.Table, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Bytes of the rows at these places."""
    fixed, others = 0.0, []
    for column in rows.columns:
        width = fixed_width(column.type)
        if width is None:
            others.append(column)
        else:
            fixed += width
    found = np.full(len(places), fixed)
    for column in others:
        found += value_sizes(column)[places]
    return found


def cuts(sizes: npt.NDArray[np.float64], most: float) -> Iterator[tuple[int, int]]:
    """Begin and end of parts that take at most so much each, or have one value that takes more.

    >>> list(cuts(np.array([3.0, 3.0, 9.0, 1.0]), 7.0))
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0.0
        end = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
        yield start, end
        start = end
