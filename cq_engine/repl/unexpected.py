"""Errors that nobody expected: one line for the person at the prompt, the traceback for a log."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from platformdirs import user_state_path

from cq_engine.core import private
from cq_engine.core.errors import CQError

__all__ = ["log_unexpected", "own_error", "state_directory"]

_LINE = 500
"""So much of the text of an error that nobody expected is shown."""
_REPORT = "this is a fault of cq-engine: report it with the traceback; other statements go on"


def log_unexpected(error: BaseException, warehouse: str, sql: str = "") -> CQError:
    """Writes the traceback of an error that nobody expected to a log, and gives the line to show instead."""
    report = "".join(traceback.format_exception(error))
    stamp = datetime.now(timezone.utc).isoformat(timespec="seconds")
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[0][:_LINE]}" if lines else type(error).__name__
    for directory in (_logs_of(warehouse), state_directory()):
        if directory is None:
            continue
        try:
            private.make_directory(directory)
            private.touch(directory / "cq.log")
            with (directory / "cq.log").open("a", encoding="utf-8") as log:
                log.write(f"{stamp} {what}\n{sql and sql.rstrip() + chr(10)}{report}\n")
        except OSError:
            continue
        return _InternalError(f"{what} (traceback in {directory / 'cq.log'})", hint=_REPORT)
    return _InternalError(what, hint=_REPORT)


class _InternalError(CQError):
    """An error that nobody expected, on one line, and what to do about it."""

    def render(self) -> str:
        at = self.location
        place = f"{at.source}:{at.line}:{at.column}: " if at else ""
        return f"{place}internal error: {self.message}\nhint: {self.hint}"


def state_directory() -> Path:
    """Where the prompt keeps its history: `cq-engine` in the user's directory for state."""
    return user_state_path("cq-engine", appauthor=False)


def _logs_of(warehouse: str) -> Path | None:
    """The log directory of a warehouse on this machine's disk that exists."""
    from cq_engine.catalog.storage.location import directory_of  # which a prompt without faults does without

    with suppress(CQError):
        place = directory_of(warehouse)
        return place / "logs" if place is not None and place.is_dir() else None
    return None


def own_error(error: BaseException) -> CQError | None:
    """The error as one that a person can act on: ours, or Spark's about their statement."""
    if isinstance(error, CQError):
        return error
    # Spark's errors are translated where they arise; should one get here, it is about the statement. Without Spark
    # there are none.
    if "pyspark.errors" not in sys.modules:
        return None
    from cq_engine.spark.sql import SPARK_ERRORS, translate_spark_error

    return translate_spark_error(error) if isinstance(error, SPARK_ERRORS) else None
