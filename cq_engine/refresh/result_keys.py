"""The error for two rows of a result with one key, which names the rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cq_engine.catalog.model import ContinuousQuery
from cq_engine.core.errors import ResultKeyError
from cq_engine.core.values import python_rows

__all__ = ["duplicate_key_error", "two_rows_error"]


def duplicate_key_error(query: ContinuousQuery, rows: pa.Table) -> ResultKeyError:
    """The error for two rows of a delta with one key."""
    first = python_rows(rows.slice(0, 1))[0]
    return two_rows_error(query, [first[k] for k in query.key or ()], rows)


def two_rows_error(query: ContinuousQuery, values: Sequence[object], log: pa.Table) -> ResultKeyError:
    """The error for two rows of a result with one key; `log` are delta rows among which they may be found."""
    names = query.key or ()
    key = ", ".join(f"{n} = {v!r}" for n, v in zip(names, values)) or "the empty key"
    columns = query.result.columns[: query.width]
    shown = [
        str(tuple(row[c.name] for c in columns))
        for row in python_rows(log)
        if [row[n] for n in names] == list(values) and row["_change_type"] in ("insert", "update_postimage")
    ]
    rows = f"rows: {'; '.join(shown[:4])}" if shown else ""
    return ResultKeyError(
        f"two rows of {query.name} have the result key ({key})",
        detail=rows,
        hint="declare a PRIMARY KEY that is unique in the result, or correct the data and RESUME the query",
    )
