"""Deltas in the parts in which they are given away."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["in_batches"]


def in_batches(
    blocks: Iterable[pa.Table], chunk: int, ends: Sequence[int] | None = None
) -> Iterator[tuple[pa.Table, bool]]:
    """Deltas in order, in any blocks, as batches of one version and at most `chunk` deltas; with `ends`, in ascending
    order, of the versions after one of these up to the next.

    With each batch comes whether it is the last one of its version, or of these: it is held back until that is known. A
    batch that is not the last one ends at a sequence above 0, because a cursor there could not be told from a finished
    version.
    """
    held: pa.Table | None = None
    place = -1
    for block in blocks:
        versions = block.column("version").to_numpy()
        for part in _parts(block, versions if ends is None else np.searchsorted(ends, versions)):
            before, version = place, part.column("version")[0].as_py()
            place = version if ends is None else bisect_left(ends, version)
            if held is not None and before != place:
                yield held, True
                held = None
            held = part if held is None else pa.concat_tables([held, part])
            while held.num_rows > chunk:
                size = chunk
                while size < held.num_rows and held.column("sequence")[size - 1].as_py() <= 0:
                    size += 1
                if size == held.num_rows:
                    break
                yield held.slice(0, size), False
                held = held.slice(size)
    if held is not None:
        yield held, True


def _parts(block: pa.Table, places: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    """Runs of rows with one place."""
    edges = [0, *(np.flatnonzero(places[1:] != places[:-1]) + 1).tolist(), block.num_rows]
    for start, end in pairwise(edges):
        if end > start:
            yield block.slice(start, end - start)
