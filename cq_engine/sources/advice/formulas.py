"""What a tick of each method costs at the source: the formulas of Carnes & Hanson (1998), for one tick and in rows.

The paper counts pages: N of the base relation, of which a share λ changes between two scans; S, I and M are the sizes of the
relation with its new columns, of the index, and of the copy. A server counts the rows and index entries that it passes, and
so do we: X rows, of which c = λX change between two ticks. What is kept here (M, the auxiliary relation) costs the source
nothing and is left out.

| method | paper | rows read | rows shipped |
|---|---|---|---|
| timestamp with an index (TDI, ATDI, Fig. 4, 5) | Sλ + Iλ + K | (1 + o) c | (1 + o) c |
| timestamp without an index (Fig. 3) | S + λN | 2 X | (1 + o) c |
| CHECKSUM (TLCS, §3.3) | N + λM | X + c | X + c |
| COPY, VIEW (MDS, §3.1) | R(N) + M | X | X |
| RANGES (ID, §3.5) | 2.001 N | 2 X | X |
| RANGES with CHECKSUM (ID/RCS, §3.6) | R(N) + size(auxiliary) + λM | X + r s | r s + X/s |
| LOG | – | c | c |

Ours are: o, the length of the overlap by that of a tick, whose rows are read again; the second X without an index, as the
newest timestamp is looked for first; the second X of RANGES, as the end of each range is looked for in the index of the key;
the keys and checksums that CHECKSUM ships, counted as rows; and r, the ranges of s rows in which anything has changed. COPY
WITH (at = 'source') is not among them: it reads table and copy three times each, as Figure 1 has three parts, and ships c rows.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ASSUMED",
    "RANGE",
    "TICK",
    "Cost",
    "changed_ranges",
    "checksum",
    "copy",
    "log",
    "range_checksums",
    "ranges",
    "timestamp",
]

ASSUMED = 0.01
"""The share of rows that changes between two ticks where nothing is known: λ of Table 2."""
TICK = 60.0
"""Seconds between two ticks: captures run every minute if they are not told otherwise."""
RANGE = 1000
"""Rows of a range: the default of RANGES."""
_OVERLAP = 60.0 / TICK
"""The default overlap, one minute, by the length of a tick."""
_RECENT = 0.2
"""So many of the rows, those with the newest keys, get all but so many of the changes (§3.6, after Zipf)."""


@dataclass(frozen=True)
class Cost:
    """Rows and index entries that a tick passes at the source, and rows that leave it."""

    read: int
    shipped: int


def timestamp(rows: int, changed: float, *, indexed: bool) -> Cost:
    """TS, TDI and ATDI: what was written since the last tick and in the overlap; without an index by two scans."""
    written = round(min(rows, changed * (1 + _OVERLAP)))
    return Cost(written if indexed else 2 * rows, written)


def checksum(rows: int, changed: float) -> Cost:
    """TLCS: all keys with their checksums, and the rows that have changed."""
    return Cost(rows + round(changed), rows + round(changed))


def copy(rows: int) -> Cost:
    """MDS and VBD: all rows."""
    return Cost(rows, rows)


def ranges(rows: int) -> Cost:
    """ID: all rows, and in the index of the key all entries, of which each range's last is looked for."""
    return Cost(2 * rows, rows)


def range_checksums(rows: int, changed: float) -> Cost:
    """ID/RCS: all rows for the checksums of their ranges, and again those of the ranges that have changed."""
    whole = max(1, round(rows / RANGE))
    again = round(changed_ranges(whole, changed) * rows / whole)
    return Cost(rows + again, again + whole)


def log(changed: float) -> Cost:
    """A log has what has changed and nothing else."""
    return Cost(round(changed), round(changed))


def changed_ranges(number: int, changed: float) -> float:
    """How many of so many ranges have a change in them, of the changes four in five among the newest fifth of the keys.

    Within either part changes hit each range alike (Yao's function, by Cardenas).

    >>> round(changed_ranges(1000, 10), 1), round(changed_ranges(20, 200), 1)
    (10.0, 18.8)
    """
    parts = ((_RECENT * number, (1 - _RECENT) * changed), ((1 - _RECENT) * number, _RECENT * changed))
    return sum(_hit(some, hits) for some, hits in parts)


def _hit(number: float, hits: float) -> float:
    return min(number, hits) if number <= 1 else number * (1 - (1 - 1 / number) ** hits)
