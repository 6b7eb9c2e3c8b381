"""The numbers of a delta log's rows within their version, `_sequence`.

A window over a version is one task, however many rows the version has: right for the few rows of a commit, and the end of every
first result and recomputation of a large query. So where executors make a delta, the rows of a version are dealt out by the hash of
their key, and each part is numbered by itself: part p of n gives p + 1, p + 1 + n, p + 1 + 2n, … The numbers are unique and increasing
(SEMANTICS §2, law 5), and have gaps where the parts are not equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from cq_engine.algebra.nodes import VERSION
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import quote

__all__ = ["dealt_out", "hashed", "sequence"]

_PART = "_cq_part"


def hashed(key: Sequence[str], columns: Sequence[str], types: Sequence[str]) -> list[str]:
    """SQL for what is the same where two rows have the same `key`: its columns, but those whose equal values may have other bytes.

    `key` names some of `columns`, which are of `types`.
    """
    kinds = dict(zip(map(str.lower, columns), types))
    return [quote(name) for name in key if name.lower() in kinds and can(kinds[name.lower()], Use.GROUPED)]


def dealt_out(rows: str, by: Sequence[str], parts: int) -> tuple[str, str, int]:
    """SQL for `rows` (a statement), what a window over one of their versions is partitioned by, and the number of parts.

    Rows for which the expressions `by` are the same are in one part; with no expression there is one part.
    """
    if parts <= 1 or not by:
        return rows, VERSION, 1
    dealt = f"SELECT *, pmod(hash({', '.join(by)}), {parts}) AS {_PART} FROM ({rows})"
    return dealt, f"{VERSION}, {_PART}", parts


def sequence(number: str, parts: int) -> str:
    """SQL for `_sequence` (BIGINT) from a row's number in its part, from 1."""
    if parts == 1:
        return f"CAST({number} AS bigint)"
    return f"(CAST({number} AS bigint) - 1) * {parts} + {_PART} + 1"
