"""A result that does not end: its rows written as they come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from cq_engine.query.rendering import StreamTable

if TYPE_CHECKING:  # imports Spark
    from cq_engine.query.stream import StreamingResult

__all__ = ["write_stream"]


def write_stream(result: StreamingResult, form: str, write: Callable[[str], None], cell: int) -> None:
    """Writes rows until Ctrl-C ends it, or the result itself: as a table of which cells have up to `cell` characters,
    without progress rows, or with them as `csv` with one header, or as a JSON object per line."""
    import pyarrow.compute as pc

    from cq_engine.query.formats import render_csv, render_jsonl

    shown, header = StreamTable(cell), True
    with closing(result):
        for table in result.batches():
            if form == "table":
                follows = "_change_type" in table.column_names
                rows = table.filter(pc.field("_change_type") != "progress") if follows else table
                text = "\n".join(shown.lines(rows))
            elif form == "csv":
                text = render_csv(table, header=header)
                header = False
            else:
                text = render_jsonl(table)
            if text:
                write(text)
