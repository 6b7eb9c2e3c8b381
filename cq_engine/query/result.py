"""What a statement gives back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.core.calls import one_call
from cq_engine.core.errors import CQError
from cq_engine.core.values import python_values
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.jobs import tag_jobs
from cq_engine.spark.sql import JVM_ERRORS, translate_spark_error

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result", "place_errors", "rows_of", "text_result"]

Translate = Callable[[BaseException], CQError]
Place = Callable[[CQError], CQError]


class Result:
    """The outcome of one statement: rows, or a message.

    Rows are held as an Arrow table (small results) or as a Spark DataFrame that is evaluated when asked, so that only
    then an expression can fail. Iterating gives the rows as tuples.

    `message` is one line for a person, `rowcount` the number of rows that DML changed (-1 where it has no meaning),
    `commit_version` the version that the statement's own transaction got, or None. `whole` says that nothing of it is
    ever cut for a person; `is_text` that its one column is lines of a text, which is shown without a frame.
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
        translate: Translate = translate_spark_error,
        whole: bool = False,
        is_text: bool = False,
    ) -> None:
        self._arrow = arrow
        self._frame = frame
        self._to_frame = to_frame
        self._translate = translate
        self._place: Place = lambda error: error
        self.message = message
        self.rowcount = rowcount
        self.commit_version = commit_version
        self.whole = whole or is_text
        self.is_text = is_text
        self.is_stream = False
        """Rows come one after the other, without an end (`query/stream.py`)."""

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
            self._arrow = self._collect(self._frame) if self._frame is not None else pa.table({})
        return self._arrow

    def to_df(self) -> DataFrame:
        """The rows as a Spark DataFrame."""
        if self._frame is None:
            if self._to_frame is None:
                raise ValueError("this result has no rows")
            self._frame = self._to_frame(self.to_arrow())
        return self._frame

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame (collects to the driver)."""
        return self.to_arrow().to_pandas()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows as tuples of Python values."""
        return rows_of(self.to_arrow())

    def head(self, limit: int) -> tuple[pa.Table, bool]:
        """The first `limit` rows (0: all), and whether there are more; of a DataFrame no more are computed."""
        if limit <= 0:
            return self.to_arrow(), False
        if self._arrow is None and self._frame is not None:
            table = self._collect(self._frame.limit(limit + 1))
        else:
            table = self.to_arrow()
        return table.slice(0, limit), table.num_rows > limit

    def show(self, limit: int = 20) -> None:
        """Prints the message, or up to `limit` rows as a table; wide cells are cut at a terminal only."""
        from cq_engine.query.rendering import CELL_WIDTH, render_result

        print(render_result(self, limit, cell=CELL_WIDTH if sys.stdout.isatty() else 0))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())

    def __repr__(self) -> str:
        """The message, or the columns and how many rows there are; computes nothing."""
        if not self.has_rows:
            return f"<Result: {self.message or 'OK'}>"
        names = ", ".join(self.columns)
        if self._arrow is None:
            return f"<Result: rows of ({names}), not computed yet>"
        count = self._arrow.num_rows
        return f"<Result: {count} row{'' if count == 1 else 's'} of ({names})>"

    def _repr_html_(self) -> str:
        from cq_engine.query.rendering import render_html

        return render_html(self)

    @one_call
    def _collect(self, frame: DataFrame) -> pa.Table:
        try:
            tag_jobs(frame.sparkSession)
            return to_arrow(frame)
        except JVM_ERRORS as error:
            raise self._place(self._translate(error)) from error


def text_result(column: str, text: str) -> Result:
    """A text, as rows of one line each."""
    return Result(arrow=pa.table({column: pa.array(text.split("\n"), pa.string())}), is_text=True)


def place_errors(result: Result, place: Place) -> Result:
    """The result, whose errors `place` will put into the script that its statement stands in."""
    result._place = place  # noqa: SLF001 - of this module, and not for users
    return result


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of an Arrow table as tuples."""
    columns: Sequence[list[Any]] = [python_values(column) for column in table.columns]
    return list(zip(*columns)) if columns else []
