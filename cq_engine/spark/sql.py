"""Spark SQL over given DataFrames, and Spark's errors as ours. Only public PySpark API, so that Spark Connect works."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog.attempts import TOPS
from cq_engine.core.columns import quote
from cq_engine.core.disk import RESTORE, disk_error, system_reason
from cq_engine.core.errors import (
    AnalysisError,
    CQError,
    CQSyntaxError,
    Location,
    StorageError,
    location_at,
)
from cq_engine.grammar.nesting import MAX_LEVELS
from cq_engine.spark.session_kind import is_connect
from cq_engine.spark.settings import whole_plans

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:  # a Spark Connect client without Py4J

    class Py4JError(Exception):  # type: ignore[no-redef]
        """Never raised."""


SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError)
"""What PySpark raises: mostly its own exceptions, but Py4J's where it does not translate (`toArrow`)."""
JVM_ERRORS: tuple[type[Exception], ...] = (*SPARK_ERRORS, ConnectionError)
"""The same, and what Python raises where nobody listens any more."""

__all__ = [
    "JVM_ERRORS",
    "SPARK_ERRORS",
    "TOO_COMPLEX",
    "Composed",
    "Py4JError",
    "analysed_plan",
    "explained_sql",
    "fresh_name",
    "is_lost",
    "location_at",
    "quote",
    "run_sql",
    "trace",
    "translate_errors",
    "translate_spark_error",
]

TOO_COMPLEX = (
    f"at most {MAX_LEVELS} levels of brackets and CASE, and some hundreds of operators in a row, can be read: write lists "
    "with IN, and parts of the query as common table expressions"
)
"""What to do about a statement that a stack does not hold."""

_AGAIN = "run it again: a Spark of the engine's own that has ended is started again, and nothing that was committed is lost"

_counter = itertools.count(1)
_token = secrets.token_hex(3)
_ANALYSED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized Logical Plan ==", re.DOTALL)
_FRESH = re.compile(r"`?\bcq_(?:\w+?)_[0-9a-f]{6}_\d+\b`?")


def fresh_name(prefix: str) -> str:
    """A relation name that no other call of this process gives: `cq_<prefix>_<token>_<n>`, ASCII, needs no quotes.

    >>> fresh_name("orders") != fresh_name("orders")
    True
    """
    plain = re.sub(r"[^a-z0-9]+", "_", prefix.lower()).strip("_") or "t"
    return f"cq_{plain}_{_token}_{next(_counter)}"


def run_sql(spark: SparkSession, text: str, relations: Mapping[str, DataFrame]) -> DataFrame:
    """The query `text`, in which the keys of `relations` (from `fresh_name`) name these DataFrames.

    Thread-safe, because fresh names never meet. PySpark's exceptions pass through; see `translate_spark_error`.
    """
    if is_connect(spark):
        return _run_connect(spark, text, relations)
    with _views(spark, relations):
        return spark.sql(text)


def explained_sql(spark: SparkSession, text: str, relations: Mapping[str, DataFrame]) -> str:
    """Spark's physical plan of `run_sql` as text. Not for Spark Connect."""
    with _views(spark, relations):
        explained = spark.sql(f"EXPLAIN {text}").first()
    return str(explained[0]) if explained is not None else ""


def analysed_plan(spark: SparkSession, text: str, relations: Mapping[str, DataFrame]) -> str:
    """Spark's analysed plan of the query as text, in which literals have no quotes; empty where Spark shows none."""
    with whole_plans(spark):
        explained = run_sql(spark, f"EXPLAIN EXTENDED {text}", relations).first()
    found = _ANALYSED.search(str(explained[0])) if explained is not None else None
    return found[1] if found is not None else ""


@contextmanager
def _views(spark: SparkSession, relations: Mapping[str, DataFrame]) -> Iterator[None]:
    """Names the relations for the statements in the block."""
    created: list[str] = []
    try:
        for name, frame in relations.items():
            frame.createOrReplaceTempView(name)
            created.append(name)
        yield
    finally:
        for name in created:
            spark.catalog.dropTempView(name)


def _run_connect(spark: SparkSession, text: str, relations: Mapping[str, DataFrame]) -> DataFrame:
    # A Connect client analyses later, when a view would be gone: hand the relations over inside the query. Without any, it
    # takes the text as it is.
    if not relations:
        return spark.sql(text)
    escaped = text.replace("{", "{{").replace("}", "}}")
    for name in relations:
        escaped = re.sub(rf"\b{re.escape(name)}\b", "{" + name + "}", escaped)
    arguments: dict[str, Any] = dict(relations)
    return spark.sql(escaped, **arguments)


@contextmanager
def translate_errors() -> Iterator[None]:
    """A block in which an exception of Spark becomes the CQError that `translate_spark_error` makes of it."""
    try:
        yield
    except JVM_ERRORS as error:
        raise translate_spark_error(error) from error


def translate_spark_error(
    error: BaseException,
    text: str | None = None,
    *,
    source: str = "<input>",
    names: Mapping[str, str] | None = None,
    positions: Sequence[Mapping[int, int]] = (),
    seen: str | None = None,
) -> CQError:
    """A PySpark exception as a CQError.

    Args:
        error: what PySpark raised; a CQError is given back as it is.
        text: the text that the user wrote, for the location.
        source: the name of the text in locations.
        names: fresh relation names and what the user called them, to be put back into the message.
        positions: steps back from the text that Spark saw to `text`: piece starts there → here (negative: nowhere).
        seen: that text, where others are evaluated with it, whose places mean nothing in `text`.

    Returns:
        CQSyntaxError for text that does not parse, AnalysisError for names and types, StorageError for files that
        cannot be read or written, else CQError. The message is
        Spark's first paragraph without error class, SQL state, query context and plan; `detail` is the error class.
    """
    if isinstance(error, CQError):
        return error
    condition = _condition(error)
    if is_lost(error):
        return CQError(
            "Spark does not answer", detail=f"{type(error).__name__}: {error}".split("\n", 1)[0], hint=_AGAIN
        )
    unread = _storage_error(error, condition)
    if unread is not None:
        return unread
    message = _message(error, names or {})
    detail = f"Spark error class {condition}" if condition else ""
    location = _location(error, text, source, positions, seen) if text is not None else None
    kind: type[CQError] = CQError
    if condition == "FAILED_TO_PARSE_TOO_COMPLEX" or "java.lang.StackOverflowError" in str(error):
        return AnalysisError(
            "the statement is nested too deeply for Spark", hint=TOO_COMPLEX, location=location
        )
    if isinstance(error, ParseException):
        kind = CQSyntaxError
    elif isinstance(error, AnalysisException):
        kind = AnalysisError
    return kind(message, detail=detail, hint=_hint(condition), location=location)


def is_lost(error: BaseException) -> bool:
    """Whether the JVM has gone, or the connection to it: Py4J's errors that are not Java's say so."""
    if isinstance(error, Py4JError):
        return not hasattr(error, "java_exception") and "Trace:" not in str(error)
    return isinstance(error, ConnectionError)


_OURS = re.compile(rf"/((?:{'|'.join(TOPS)})/[^/\s]+/[^\s:]+\.parquet)")
_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_IO = re.compile(r"(?:IO|FileNotFound|FileSystem|AccessDenied|FS)(?:Exception|Error)\b")


def _storage_error(error: BaseException, condition: str) -> StorageError | None:
    """The error where a file of the warehouse, or the disk, is what Spark has trouble with."""
    text = f"{error}\n{getattr(error, '_stackTrace', None) or ''}"
    ours = _OURS.search(text)
    unread = condition.startswith("FAILED_READ_FILE") or (condition == "PATH_NOT_FOUND" and ours is not None)
    if not unread and not (_IO.search(text) and system_reason(OSError(text)) is not None):
        return None
    what = f"read {ours[1]}" if ours is not None and unread else "read or write what the statement needs"
    causes = ["it is not there"] if "NOT_" in condition else _CAUSE.findall(text)
    return disk_error(what, OSError(causes[-1] if causes else _message(error, {})), hint=RESTORE)


class Composed:
    """A text built out of pieces of a user's text and of our own, which knows where its pieces came from."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.text = ""
        self.origin: dict[int, int] = {}

    @classmethod
    def plain(cls, user: str) -> Composed:
        """The user's text as it is."""
        return cls(user).take(0, len(user))

    def add(self, text: str) -> Composed:
        """Appends text of ours."""
        self.origin[len(self.text)] = -1
        self.text += text
        return self

    def take(self, start: int, end: int) -> Composed:
        """Appends `user[start:end]`."""
        self.origin[len(self.text)] = start
        self.text += self.user[start:end]
        return self

    def location(self, offset: int) -> Location | None:
        """The place of `text[offset]` in the user's text, if it came from there."""
        found = trace(self.origin, offset)
        return None if found is None else location_at(self.user, found)


def _condition(error: BaseException) -> str:
    if not isinstance(error, PySparkException):
        return _last_condition(str(error))
    try:
        found = error.getCondition()
    except Exception:  # noqa: BLE001 - the JVM side may be gone; the message matters more
        return ""
    if found:
        return str(found)
    return _last_condition(str(error))


def _last_condition(text: str) -> str:
    found = _INNER.findall(text)
    return str(found[-1]) if found else ""


_NOISE = (
    re.compile(r"^\[[A-Z][A-Z0-9_.]+\]\s*"),
    re.compile(r"\s*SQLSTATE: ?\w{5}.*\Z", re.DOTALL),
    re.compile(r"\s*If necessary,? set \"?spark\.sql\.ansi\.enabled.*\Z", re.DOTALL),
    re.compile(r"\s*\n== .*\Z", re.DOTALL),
    re.compile(r"\s*\n\s*(?:at |JVM stacktrace|Driver stacktrace).*\Z", re.DOTALL),
    re.compile(r";?\s*line \d+,? pos \d+;?.*\Z", re.DOTALL),
    re.compile(r";\s*\n'.*\Z", re.DOTALL),
    re.compile(r" on search path \[[^\]]*\]"),
    re.compile(r" Verify the spelling and correctness of the schema and catalog\..*\Z", re.DOTALL),
    # Columns of ours among the suggestions.
    re.compile(r", (?:`[^`]+`\.)*`_(?:cq_|row_id|s\d)\w*`"),
    re.compile(r"(?<=\[)(?:`[^`]+`\.)*`_(?:cq_|row_id|s\d)\w*`(?:, )?"),
)
_INNER = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]\s")


def _message(error: BaseException, names: Mapping[str, str]) -> str:
    text = str(error)
    inner = list(_INNER.finditer(text))
    if inner:
        text = text[inner[-1].start() :]  # the deepest cause
    for pattern in _NOISE:
        text = pattern.sub("", text)
    text = " ".join(text.split()) or type(error).__name__
    for name, shown in names.items():
        text = text.replace(name, shown)
    return _FRESH.sub("the relation", text)


def _hint(condition: str) -> str:
    # Spark's own advice to turn ANSI mode off would change what results mean.
    if condition.startswith("DIVIDE_BY_ZERO"):
        return "try_divide gives NULL where the divisor is 0"
    if condition.startswith(("CAST_INVALID_INPUT", "CAST_OVERFLOW")):
        return "try_cast gives NULL where a value cannot be cast"
    if condition == "SCALAR_SUBQUERY_TOO_MANY_ROWS":
        return "let the subquery give one row: aggregate it, or add LIMIT 1"
    return ""


def _location(
    error: BaseException,
    text: str,
    source: str,
    positions: Sequence[Mapping[int, int]],
    seen: str | None,
) -> Location | None:
    offset = _offset(error, seen)
    for step in positions:
        offset = trace(step, offset) if offset is not None else None
    return location_at(text, offset, source) if offset is not None and offset <= len(text) else None


def trace(positions: Mapping[int, int], offset: int) -> int | None:
    """Where `offset` came from, given the starts of pieces and where those came from."""
    nearest = max((start for start in positions if start <= offset), default=None)
    if nearest is None or positions[nearest] < 0:
        return None
    return positions[nearest] + (offset - nearest)


def _offset(error: BaseException, seen: str | None) -> int | None:
    """Where in the text that Spark saw the error lies, if Spark says so."""
    if not isinstance(error, PySparkException):
        return None
    try:
        contexts = error.getQueryContext()
        for context in contexts or []:
            if context.contextType().name == "SQL":
                start = int(context.startIndex())
                own = seen is None or seen[start:].startswith(str(context.fragment()))
                if start >= 0 and own:
                    return start
    except Exception:  # noqa: BLE001 - no context on this kind of error
        return None
    return None
