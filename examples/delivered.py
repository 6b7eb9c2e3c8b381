"""What continuous queries delivered, as tables on the terminal. Shared by the examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import cq_engine

__all__ = ["delivered", "row_of", "show_delivered", "show_latest"]


def delivered(engine: cq_engine.Engine, query: str) -> Counter[str]:
    """How many I, D and U rows `query` has delivered."""
    return Counter(delta.marker for delta in engine.deltas(query))


def row_of(delta: cq_engine.Delta) -> tuple[Any, ...]:
    """The result row that a delta is about: the one that came or is there now, or the one that left."""
    row = delta.old if delta.marker == "D" and delta.old is not None else delta.new
    return () if row is None else tuple(row)


def show_delivered(
    console: Console, engine: cq_engine.Engine, refreshes: Mapping[str, Sequence[cq_engine.Refresh]]
) -> None:
    """One line per query: how it is refreshed, what it delivered, how long its refreshes took."""
    table = _table("Delivered")
    for heading in ("query", "refreshed"):
        table.add_column(heading, no_wrap=True)
    for heading in ("I", "D", "U", "runs", "median s", "max s"):
        table.add_column(heading, no_wrap=True, justify="right")
    for query, done in refreshes.items():
        counts = delivered(engine, query)
        seconds = [refresh.seconds for refresh in done] or [0.0]
        table.add_row(
            query,
            str(engine.describe(query).verdict),
            *(f"{counts[marker]:,}" for marker in "IDU"),
            f"{len(done):,}",
            f"{median(seconds):.2f}",
            f"{max(seconds):.2f}",
        )
    console.print(table)


def show_latest(
    console: Console, engine: cq_engine.Engine, query: str, columns: Sequence[str] = (), count: int = 5
) -> None:
    """The last `count` deltas of `query`; of their columns only `columns` where these are given."""
    names = list(engine.describe(query).columns)
    shown = [names.index(column) for column in columns or names]
    latest = list(engine.deltas(query))[-count:]
    table = _table(f"{query}: the last {len(latest)}")
    for heading in ("committed", "", *(names[position] for position in shown)):
        table.add_column(heading, no_wrap=True)
    for delta in latest:
        texts = _texts(row_of(delta), delta.old)
        table.add_row(
            f"{delta.commit_time:%d %b %H:%M}", delta.marker, *(texts[position] for position in shown)
        )
    console.print(table)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _texts(values: Sequence[Any], old: Sequence[Any] | None) -> list[str]:
    """Values as text, with the old value in front where an update changed it."""
    before = values if old is None else old
    return [_text(new) if new == was else f"{_text(was)} → {_text(new)}" for new, was in zip(values, before)]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
