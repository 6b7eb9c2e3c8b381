"""A timestamp of a source less an overlap, in which writes are read again that late commits may have hidden."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from cq_engine.core.errors import SourceError
from cq_engine.sources.sql.conversions import Misfit, parsed
from cq_engine.sources.sql.model import SourceColumn

__all__ = ["before"]

_DAY = timedelta(days=1)


def before(low: Any, overlap: timedelta | Decimal | int | None, column: SourceColumn) -> Any:
    """`low`, a value of `column`, less `overlap`: a number from a counter, a length of time from a timestamp.

    A text of ISO 8601, which SQLite has for timestamps, keeps its form; a date goes back by whole days.
    """
    if not overlap:
        return low
    try:
        if isinstance(overlap, timedelta):
            return _earlier(low, overlap)
        if isinstance(low, int | float | Decimal):
            return type(low)(Decimal(low) - overlap)
    except (Misfit, TypeError):
        pass
    except OverflowError:
        return datetime.min if isinstance(low, datetime) else date.min  # noqa: DTZ901 - all there is
    raise SourceError(
        f"column {column.name} has {low!r}, from which an overlap of {overlap} cannot be taken",
        hint="give the overlap of a counter as a number, that of a timestamp as a length of time",
    )


def _earlier(low: Any, overlap: timedelta) -> Any:
    if isinstance(low, datetime):
        return low - overlap
    days = _DAY * -(-overlap // _DAY)
    if isinstance(low, date):
        return low - days
    if not isinstance(low, str):
        raise Misfit
    moment = parsed(low)
    if moment.tzinfo is not None:
        raise Misfit
    if len(low.strip()) == len("2000-01-01"):
        return (moment - days).date().isoformat()
    separator = "T" if "T" in low else " "
    if "." not in low:
        return (moment - overlap).isoformat(separator, "seconds")
    return (moment - overlap).isoformat(separator, "microseconds")
