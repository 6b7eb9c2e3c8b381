"""Two rows of a result with one key: found in what a refresh computed, and said with the rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.algebra.nodes import BEFORE, FROM
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.core.errors import ResultKeyError
from cq_engine.planner.compiled import StoredAggregate

__all__ = ["doubled", "duplicate_key", "two_rows"]


def doubled(versions: pa.Table, stored: StoredAggregate) -> list[Sequence[object]]:
    """The declared keys that stand for two result rows at a commit of the interval."""
    many = pc.and_(pc.greater(versions.column("_n"), 1), pc.greater(versions.column(FROM), BEFORE))
    rows = versions.filter(many).slice(0, 1)
    return [[rows.column(k)[0].as_py() for k in stored.keys]] if rows.num_rows else []


def duplicate_key(query: ContinuousQuery, rows: pa.Table) -> ResultKeyError:
    """The error for two rows of a delta with one key."""
    return two_rows(query, [rows.column(k)[0].as_py() for k in query.key or ()], rows)


def two_rows(query: ContinuousQuery, values: Sequence[object], log: pa.Table | None) -> ResultKeyError:
    """The error for two rows of a result with one key; `log` are delta rows among which they may be found."""
    names = query.key or ()
    key = ", ".join(f"{n} = {v!r}" for n, v in zip(names, values)) or "the empty key"
    columns = query.result.columns[: query.width]
    shown = [
        str(tuple(row[c.name] for c in columns))
        for row in (
            log.slice(0, 1000).to_pylist() if log is not None and "_change_type" in log.column_names else []
        )
        if [row[n] for n in names] == list(values) and row["_change_type"] in ("insert", "update_postimage")
    ]
    rows = f"rows: {'; '.join(shown[:4])}" if shown else ""
    return ResultKeyError(
        f"two rows of {query.name} have the result key ({key})",
        detail=rows,
        hint="declare a PRIMARY KEY that is unique in the result, or correct the data and RESUME the query",
    )
