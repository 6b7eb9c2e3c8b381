"""A result that does not end by itself: rows as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.core.errors import CQError
from cq_engine.query.result import Result, rows_of

__all__ = ["StreamingResult"]


class StreamingResult(Result):
    """The rows of a statement such as FOLLOW. Iterating waits for rows and gives them as tuples; `batches` gives them
    as Arrow tables. `close` ends it, in any thread.
    """

    def __init__(
        self, schema: pa.Schema, following: Callable[[], pa.Table | None], close: Callable[[], None]
    ) -> None:
        """`following` waits for the next rows; None where there will be none."""
        super().__init__(arrow=schema.empty_table())
        self.is_stream = True
        self._schema = schema
        self._following = following
        self.close = close

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def batches(self) -> Iterator[pa.Table]:
        """The rows as they come, some at a time."""
        while (table := self._following()) is not None:
            yield table

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for table in self.batches():
            yield from rows_of(table)

    def show(self, limit: int = 0) -> None:  # noqa: ARG002 - as of a result
        """Prints rows as they come, until it is closed or interrupted."""
        from cq_engine.query.rendering import StreamTable

        shown = StreamTable()
        for table in self.batches():
            for line in shown.lines(table):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()

    def __repr__(self) -> str:
        return f"<Result: rows of ({', '.join(self.columns)}) as they come>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self))}</pre>"

    def to_arrow(self) -> pa.Table:
        self._refuse()

    def to_df(self) -> DataFrame:
        self._refuse()

    def fetchall(self) -> list[tuple[Any, ...]]:
        self._refuse()

    def head(self, limit: int) -> tuple[pa.Table, bool]:  # noqa: ARG002 - as of a result
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise CQError(
            "a query that is followed has no last row", hint="iterate over the result, or over batches()"
        )
