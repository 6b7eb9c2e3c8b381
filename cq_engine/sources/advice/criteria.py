"""Fifteen criteria by which methods are compared without numbers, as Figure 11 of Carnes & Hanson (1998) does.

Marks go from 1, the best, to 5; 0 says that a criterion does not concern a method. The criteria are the issues that the paper
discusses method by method (locking §2 and §3.4, changes to tables, databases and applications §3.1 to §3.3, space, messages and
CPU §3.6, deletions §3.2.1, restrictions §3.1). The marks are of these methods as they are here, where the copy is kept in the
warehouse if it is not asked for elsewhere; they are not the paper's own.
"""

from __future__ import annotations

__all__ = ["CRITERIA", "marks"]

CRITERIA = (
    "source_io",
    "source_cpu",
    "locking",
    "messages",
    "source_space",
    "copy_space",
    "table_schema",
    "database_schema",
    "application",
    "transaction_length",
    "deletions",
    "frequency",
    "large_tables",
    "restriction",
    "history",
)
"""In order: pages read at the source; its CPU; what is kept from writing meanwhile; what travels; room there; room here beside
the table; new columns of the table; new tables, indexes or triggers; changes to programs that write; time that writes take
longer; whether deletions are seen; how often it can run; whether it does for millions of rows; whether only rows of the WHERE
travel; whether every state of a row is seen, with its time."""

_MARKS = {
    "TS":     (2, 1, 2, 1, 2, 1, 3, 3, 3, 2, 5, 2, 2, 2, 4),
    "TDI":    (2, 1, 2, 1, 3, 1, 4, 3, 5, 2, 2, 1, 1, 2, 4),
    "ATDI":   (1, 1, 1, 1, 4, 1, 4, 4, 5, 2, 2, 1, 1, 2, 4),
    "TLCS":   (4, 4, 4, 3, 1, 2, 1, 1, 1, 1, 1, 4, 4, 1, 4),
    "MDS":    (4, 2, 4, 5, 1, 1, 1, 1, 1, 1, 1, 5, 5, 1, 4),
    "ID":     (5, 2, 2, 5, 1, 1, 1, 1, 1, 1, 1, 4, 3, 1, 4),
    "ID/RCS": (4, 4, 2, 3, 1, 2, 1, 1, 1, 1, 1, 3, 2, 1, 4),
    "VBD":    (4, 3, 4, 4, 1, 1, 1, 1, 1, 1, 1, 5, 5, 1, 4),
    "LOG":    (1, 1, 1, 1, 3, 1, 1, 4, 1, 4, 1, 1, 1, 3, 1),
}  # fmt: skip


def marks(family: str, *, is_kept: bool = False) -> tuple[int, ...]:
    """The marks of a method by its name in the paper; of a log that the source keeps anyway, installing costs nothing."""
    found = _MARKS[family]
    if not is_kept:
        return found
    free = ("source_space", "database_schema", "transaction_length")
    return tuple(0 if name in free else mark for name, mark in zip(CRITERIA, found))
