"""What a statement gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.core.values import python_values
from cq_engine.spark.arrow_io import to_arrow

__all__ = ["Result"]


class Result:
    """The outcome of one statement: rows, or a message.

    Rows are held as an Arrow table (small results) or as a Spark DataFrame that is evaluated when asked.
    `message` is one line for a person, `rowcount` the number of rows that DML changed (-1 where it has no meaning),
    `commit_version` the version that the statement's own transaction got, or None.
    """

    def __init__(
        self,
        *,
        arrow: pa.Table | None = None,
        frame: DataFrame | None = None,
        message: str = "",
        rowcount: int = -1,
        commit_version: int | None = None,
        to_frame: Callable[[pa.Table], DataFrame] | None = None,
    ) -> None:
        self._arrow = arrow
        self._frame = frame
        self._to_frame = to_frame
        self.message = message
        self.rowcount = rowcount
        self.commit_version = commit_version

    @property
    def has_rows(self) -> bool:
        """True for statements that give rows, even where there are none."""
        return self._arrow is not None or self._frame is not None

    @property
    def schema(self) -> pa.Schema:
        return self.to_arrow().schema

    @property
    def columns(self) -> list[str]:
        if self._frame is not None:
            return list(self._frame.columns)
        return list(self._arrow.column_names) if self._arrow is not None else []

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table (collects to the driver)."""
        if self._arrow is None:
            self._arrow = to_arrow(self._frame) if self._frame is not None else pa.table({})
        return self._arrow

    def to_df(self) -> DataFrame:
        """The rows as a Spark DataFrame."""
        if self._frame is None:
            if self._to_frame is None:
                raise ValueError("this result has no rows")
            self._frame = self._to_frame(self.to_arrow())
        return self._frame

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows as tuples of Python values."""
        return rows_of(self.to_arrow())

    def show(self, limit: int = 20) -> None:
        """Prints the message, or up to `limit` rows as a table."""
        from cq_engine.repl.render import render_result

        print(render_result(self, limit))

    def __repr__(self) -> str:
        return f"Result({self.message!r})" if not self.has_rows else f"Result(columns={self.columns})"


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of an Arrow table as tuples."""
    columns: Sequence[list[Any]] = [python_values(column) for column in table.columns]
    return list(zip(*columns)) if columns else []
