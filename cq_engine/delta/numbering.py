"""The numbers of a delta log's rows within their version, `_sequence`.

A window over a version is one task, however many rows the version has: right for the few rows of a commit, and the end of every
first result and recomputation of a large query. So the rows of a large version are dealt out by the hash of their key, and each part is
numbered by itself: part p of n gives p + 1, p + 1 + n, p + 1 + 2n, … The numbers are unique and increasing (SEMANTICS §2, law 5), and
have gaps where the parts are not equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from cq_engine.algebra.nodes import VERSION
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import quote

__all__ = ["dealt_out", "sequence"]

_PART = "_cq_part"


def dealt_out(
    rows: str, same: Sequence[str], columns: Sequence[str], types: Sequence[str], parts: int
) -> tuple[str, str, int]:
    """SQL for `rows` (a statement), what a window over one of their versions is partitioned by, and the number of parts.

    Rows that have the same values of `same`, which are among `columns` of `types`, are in one part. Columns whose equal values may have
    other bytes do not count: with none left there is one part.
    """
    kinds = dict(zip(map(str.lower, columns), types))
    known = [(name, kinds[name.lower()]) for name in same if name.lower() in kinds]
    hashed = [quote(name) for name, kind in known if can(kind, Use.GROUPED)]
    if parts <= 1 or not hashed:
        return rows, VERSION, 1
    return (
        f"SELECT *, pmod(hash({', '.join(hashed)}), {parts}) AS {_PART} FROM ({rows})",
        f"{VERSION}, {_PART}",
        parts,
    )


def sequence(number: str, parts: int) -> str:
    """SQL for `_sequence` (BIGINT) from a row's number in its part, from 1."""
    if parts == 1:
        return f"CAST({number} AS bigint)"
    return f"(CAST({number} AS bigint) - 1) * {parts} + {_PART} + 1"
