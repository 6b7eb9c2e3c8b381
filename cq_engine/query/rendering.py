"""Results as text: tables for a person, in psql's look.

 key | name  | amount
-----+-------+--------
   1 | Anna  |  12.50
   2 | NULL  |   3.00
(2 rows)

`rich.table` draws them. CSV and JSON (formats.py) are quicker where rows are many.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from html import escape
from itertools import zip_longest
from typing import Any, Protocol

from rich.cells import cell_len, set_cell_size

__all__ = [
    "CELL_WIDTH",
    "DEFAULT_LIMIT",
    "FORMATS",
    "Grid",
    "StreamTable",
    "grid",
    "render_float",
    "render_grid",
    "render_html",
    "render_result",
    "render_timestamp",
    "render_value",
    "row_count",
    "values_of",
]

DEFAULT_LIMIT = 20
"""How many rows a result shows unless something else is asked for."""

FORMATS = ("table", "csv", "json", "jsonl")
"""How rows can be written; formats.py has those that are not tables."""

CELL_WIDTH = 60
"""Terminal columns that one cell may take before it is cut with an ellipsis."""

NULL = "NULL"

_PSQL = "    \n  | \n -+ \n  | \n    \n    \n  | \n    "
"""A rule under the header, and bars between the columns."""

_WIDEST = 10**9
"""A width that no table has: a wide one is shown as it is, or expanded."""


@dataclass(frozen=True)
class Grid:
    """Cells ready to be shown: the column names, which columns stand to the right, and the rows as text."""

    columns: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


class Shown(Protocol):
    """What a result has to be shown: its rows or its message (`query/result.py`, which imports Spark)."""

    message: str
    whole: bool
    is_text: bool

    @property
    def has_rows(self) -> bool:
        """True for statements that give rows."""

    def head(self, limit: int) -> tuple[Any, bool]:
        """The first rows as an Arrow table (0: all), and whether there are more."""


def render_result(
    result: Shown,
    limit: int = DEFAULT_LIMIT,
    *,
    expanded: bool = False,
    width: int = 0,
    cell: int = CELL_WIDTH,
) -> str:
    """A result as text: its rows as a table with a row count, or its message.

    Args:
        result: the rows or message of a statement. A Spark DataFrame is evaluated here, for `limit` rows only.
        limit: the number of rows shown; 0 shows all.
        expanded: one line per value instead of one line per row.
        width: the terminal's width: a table that is wider is shown expanded; 0 where it does not matter.
        cell: the terminal columns that one cell may take; 0 for any number.
    """
    if not result.has_rows:
        return result.message or "OK"
    if result.is_text:
        return "\n".join(str(value) for value in result.head(0)[0].column(0).to_pylist())
    table, more = result.head(0 if result.whole else limit)
    shown = grid(table, lines=result.whole)
    text = render_grid(shown, cell=0 if result.whole else cell)
    if expanded or (width and not result.whole and _width(text) > width):
        text = _render_expanded(grid(table))
    parts = [text, row_count(table.num_rows, more), result.message]
    return "\n".join(part for part in parts if part)


def render_html(result: Shown, limit: int = DEFAULT_LIMIT) -> str:
    """A result as notebooks show it."""
    if not result.has_rows or result.is_text:
        return f"<pre>{escape(render_result(result))}</pre>"
    table, more = result.head(limit)
    shown = grid(table)
    align = [' style="text-align: right"' if right else "" for right in shown.right]
    head = "".join(f"<th{style}>{escape(name)}</th>" for name, style in zip(shown.columns, align))
    rows = (
        "".join(f"<td{style}>{escape(value)}</td>" for value, style in zip(row, align)) for row in shown.rows
    )
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    count = row_count(table.num_rows, more)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{count}</p>"


def render_grid(shown: Grid, *, cell: int = CELL_WIDTH) -> str:
    """A header, a rule and the rows, aligned; cells wider than `cell` are cut (0: none is), lines of a cell kept."""
    if not shown.columns:
        return ""
    from rich.box import Box  # slow to import, and needed once there is a result: the prompt comes first
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [tuple(_cut(part, cell) for part in line) for row in shown.rows for line in _lines(row)]
    drawn = Table(box=Box(_PSQL), show_edge=False, header_style="")
    for name, to_right in zip(shown.columns, shown.right):
        drawn.add_column(
            Text(_cut(_printable(name), cell)), justify="right" if to_right else "left", no_wrap=True
        )
    if lines:  # as one row of many lines, which rich draws ten times as fast as many rows
        drawn.add_row(*(Text("\n".join(column)) for column in zip(*lines)))
    console = Console(file=io.StringIO(), width=_WIDEST, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(drawn, crop=False, overflow="ignore")
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


class StreamTable:
    """A table that grows: a header before the first rows, and columns that only get wider."""

    def __init__(self, cell: int = CELL_WIDTH) -> None:
        self._cell = cell
        self._widths: list[int] = []

    def lines(self, table: Any) -> Iterator[str]:
        """The lines of more rows."""
        shown = grid(table)
        if not shown.rows:
            return
        names = tuple(_cut(_printable(name), self._cell) for name in shown.columns)
        rows = [tuple(_cut(value, self._cell) for value in row) for row in shown.rows]
        begun = bool(self._widths)
        known = self._widths or [cell_len(name) for name in names]
        self._widths = [max(cell_len(v) for v in column) for column in zip(*rows)]
        self._widths = [max(pair) for pair in zip(known, self._widths)]
        if not begun:
            yield " " + " | ".join(map(set_cell_size, names, self._widths)).rstrip()
            yield "-" + "-+-".join("-" * width for width in self._widths) + "-"
        for row in rows:
            yield " " + " | ".join(map(self._placed, row, self._widths, shown.right)).rstrip()

    def _placed(self, value: str, width: int, to_right: bool) -> str:
        return " " * (width - cell_len(value)) + value if to_right else set_cell_size(value, width)


def grid(table: Any, *, lines: bool = False) -> Grid:
    """The rows of an Arrow table as text; `lines`: text of several lines keeps them."""
    columns = tuple(table.column_names)
    cells = [_column(column, lines) for column in table.columns]
    right = tuple(_stands_right(field.type) for field in table.schema)
    return Grid(columns, right, tuple(zip(*cells)))


def row_count(rows: int, more: bool) -> str:
    """The line under a table.

    >>> row_count(1, False), row_count(20, True)
    ('(1 row)', '(first 20 rows; there are more)')
    """
    if more:
        return f"(first {rows} rows; there are more)" if rows != 1 else "(first row; there are more)"
    return f"({rows} row{'' if rows == 1 else 's'})"


def render_value(value: Any) -> str:
    """One value as one line of text: SQL's NULL, timestamps in UTC, control characters escaped.

    >>> render_value(None), render_value(True), render_value(Decimal("1E+2")), render_value([1, None, "a"])
    ('NULL', 'true', '100', '[1, NULL, "a"]')
    """
    if value is None:
        return NULL
    if isinstance(value, str):
        return _printable(value)
    for kind, shown in _SHOWN:
        if isinstance(value, kind):
            return shown(value)
    return _printable(str(value))


def values_of(column: Any) -> list[Any]:
    """The values of an Arrow column as Python's; as text what Python cannot hold."""
    from cq_engine.core.values import python_values

    values = python_values(column)
    if str(column.type) == "float":  # 0.1 as a FLOAT is 0.1, not 0.10000000149011612
        import numpy as np

        return [None if value is None else float(str(np.float32(value))) for value in values]
    return values


def _column(column: Any, lines: bool) -> list[str]:
    if not lines:
        return [render_value(value) for value in values_of(column)]
    return [
        "\n".join(map(render_value, value.split("\n"))) if isinstance(value, str) else render_value(value)
        for value in values_of(column)
    ]


def _lines(row: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The lines that a row takes, one for each line of its longest cell."""
    return zip_longest(*(value.split("\n") for value in row), fillvalue="")


def _stands_right(kind: Any) -> bool:
    import pyarrow.types as pat

    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind))


def _render_expanded(shown: Grid) -> str:
    """Every row as a block of `column | value` lines; nothing is cut."""
    names = [_printable(name) for name in shown.columns]
    width = max((cell_len(name) for name in names), default=0)
    lines = []
    for number, row in enumerate(shown.rows, start=1):
        lines.append(f"-[ row {number} ]".ljust(width + 1, "-"))
        lines.extend(f"{set_cell_size(name, width)} | {value}" for name, value in zip(names, row))
    return "\n".join(lines)


def _width(text: str) -> int:
    return max((cell_len(line) for line in text.splitlines()), default=0)


def _cut(text: str, width: int) -> str:
    if width <= 0 or cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def _printable(text: str) -> str:
    """The text with control characters escaped, so that no value moves the cursor or breaks a row."""
    if text.isprintable():
        return text
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    # Format characters join emoji and Arabic letters; those that turn the direction of writing garble a table.
    joins = char in "\u200c\u200d"
    return char if char.isprintable() or joins else char.encode("unicode_escape").decode("ascii")


def _render_nested(value: Any) -> str:
    """A value inside an array, a map or a struct: strings are quoted there."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else render_value(value)


def _show_list(value: Sequence[Any]) -> str:
    # Arrow gives a map as a list of pairs.
    if value and all(isinstance(item, tuple) for item in value):
        return "{" + ", ".join(f"{_render_nested(key)}: {_render_nested(item)}" for key, item in value) + "}"
    return "[" + ", ".join(_render_nested(item) for item in value) + "]"


def _show_struct(value: dict[str, Any]) -> str:
    return (
        "{" + ", ".join(f"{_printable(name)}: {_render_nested(item)}" for name, item in value.items()) + "}"
    )


def render_float(value: Any) -> str:
    """A float in Spark's spelling."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(value)


def render_timestamp(value: datetime, separator: str = " ") -> str:
    """A TIMESTAMP in UTC, marked `Z`; a TIMESTAMP_NTZ as it is."""
    mark = "" if value.tzinfo is None else "Z"
    moment = value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)
    return moment.isoformat(sep=separator) + mark


_SHOWN: tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...] = (
    (bool, lambda value: "true" if value else "false"),
    (Decimal, lambda value: format(value, "f")),
    (float, render_float),
    (datetime, render_timestamp),
    ((bytes, bytearray), lambda value: f"x'{bytes(value).hex()}'"),
    ((list, tuple), _show_list),
    (dict, _show_struct),
)
