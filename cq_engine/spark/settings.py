"""Spark settings that a refresh runs under, where several refreshes share one session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import types as t

from cq_engine.core.errors import CQError
from cq_engine.core.interrupts import deferred
from cq_engine.core.limits import Limits
from cq_engine.core.types import contains
from cq_engine.spark.widths import cores, shuffle_width

__all__ = [
    "SMALL_SETTINGS",
    "few_rows_session",
    "few_rows_settings",
    "meaning",
    "meaning_at_use",
    "note_use",
    "plan_input_settings",
    "small_settings",
    "whole_plans",
    "wide_settings",
    "writer",
]

SMALL_SETTINGS = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
"""Settings under which Spark plans small queries quickly. They change no result, so another thread may see them."""

_FEW_ROWS_SETTINGS = {
    # To compile a plan takes longer than it saves where it is run over some hundred rows, however often.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

_WIDTH = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_WIDE_SETTINGS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    # Rows of the driver that are a local relation are projected and filtered by the driver, each time that a plan is made. Of
    # others Spark does not know how large they are: those that it broadcasts stay local relations.
    "spark.sql.execution.arrow.localRelationThreshold": "10m",
}

_EXCLUDED = "spark.sql.optimizer.excludedRules"
_PLAN_INPUT_SETTINGS = {
    # A broadcast keeps its rows, and is a job of its own.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # A small file is not cut into one piece per core.
    "spark.sql.files.minPartitionNum": "1",
    # Spark estimates that joins of small inputs are large, and would shuffle what has one partition already. The estimate
    # of a join is the product of the files' sizes, which soon is more than the largest number that it can be told.
    "spark.sql.maxSinglePartitionBytes": "9223372036854775807b",
    "spark.sql.sources.fileCompressionFactor": "0.0000001",
    # This rule would move a semi-join to below what makes an input one partition.
    _EXCLUDED: "org.apache.spark.sql.catalyst.optimizer.PushDownLeftSemiAntiJoin",
}

_SHREDDING = "spark.sql.variant.writeShredding.enabled"


class _Session:
    """What is known of one session: how many run in it as it is, and how many want it for small queries."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.shared = 0
        self.exclusive = False
        self.layers: list[Mapping[str, str]] = []
        """The settings of the blocks that run now; of each setting the last one counts."""
        self.before: dict[str, str | None] = {}
        """What the settings in `layers` were before the first of them."""


_sessions: WeakKeyDictionary[SparkSession, _Session] = WeakKeyDictionary()
_beside: WeakKeyDictionary[SparkSession, dict[frozenset[tuple[str, str]], SparkSession]] = WeakKeyDictionary()
_guard = threading.Lock()


def _of(spark: SparkSession) -> _Session:
    with _guard:
        return _sessions.setdefault(spark, _Session())


def _put(spark: SparkSession, settings: Mapping[str, str | None]) -> dict[str, str | None]:
    """Sets the settings (None: unset) and gives what they were."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        elif before[name] != value:
            spark.conf.set(name, value)
    return before


def small_settings(spark: SparkSession) -> AbstractContextManager[None]:
    """Runs the block with SMALL_SETTINGS."""
    return _scope(spark, SMALL_SETTINGS)


def few_rows_settings(spark: SparkSession) -> AbstractContextManager[None]:
    """Runs the block with SMALL_SETTINGS, and without compiling plans."""
    return _scope(spark, {**SMALL_SETTINGS, **_FEW_ROWS_SETTINGS})


@contextmanager
def wide_settings(spark: SparkSession, size: int, limits: Limits) -> Iterator[int]:
    """Runs the block, which works over `size` bytes of files, with shuffles as wide as that asks for, and gives their width.

    Spark begins with so many partitions and puts together what turns out small, so that each core has some.
    """
    width = shuffle_width(size, cores(spark), limits)
    with _scope(spark, {**_WIDE_SETTINGS, _WIDTH: str(width)}):
        yield width


def plan_input_settings(spark: SparkSession) -> AbstractContextManager[None]:
    """Runs the block, inside of `small_settings`, so that plans over plan inputs (`refresh.plan_inputs`) need no shuffle."""
    return _scope(spark, _for_plan_inputs(spark.conf.get(_EXCLUDED, None)))


def _for_plan_inputs(given: str | None) -> dict[str, str]:
    """The settings for plan inputs; `given` are the rules that are excluded as it is."""
    rules = _PLAN_INPUT_SETTINGS[_EXCLUDED]
    excluded = given if given and rules in given else f"{given},{rules}" if given else rules
    return {**_PLAN_INPUT_SETTINGS, _EXCLUDED: excluded}


def few_rows_session(spark: SparkSession) -> SparkSession:
    """A session beside this one, with its settings as they are now, for plans that are run again and again over a few rows
    of plan inputs: nothing is compiled, and other threads' statements keep the settings that they want."""
    given = dict(spark.conf.getAll)
    with _guard:
        beside = _beside.setdefault(spark, {})
        found = beside.get(frozenset(given.items()))
        if found is not None:
            return found
    made = spark.newSession()
    wanted = {**given, **SMALL_SETTINGS, **_for_plan_inputs(given.get(_EXCLUDED)), **_FEW_ROWS_SETTINGS}
    known = dict(made.conf.getAll)
    for name, value in wanted.items():
        if known.get(name) != value and made.conf.isModifiable(name):
            made.conf.set(name, value)
    with _guard:
        return beside.setdefault(frozenset(given.items()), made)


def whole_plans(spark: SparkSession) -> AbstractContextManager[None]:
    """Runs the block so that plans that are shown have all their columns; Spark leaves out what comes after the 25th."""
    return _scope(spark, {"spark.sql.debug.maxToStringFields": str(2**31 - 1)})


@contextmanager
def _scope(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Runs the block with settings, over those of blocks that began before it; after the last, they are what they were."""
    session = _of(spark)
    layer: Mapping[str, str] | None = None
    try:
        with session.changed, deferred():
            before = _put(spark, {n: v for n, v in settings.items() if _top(session, n) != v})
            session.before.update({n: v for n, v in before.items() if n not in session.before})
            layer = dict(settings)
            session.layers.append(layer)
        yield
    finally:
        with deferred(), session.changed:
            if layer is not None:
                session.layers = [each for each in session.layers if each is not layer]
                found = {name: _top(session, name) for name in layer}
                over = {
                    n: session.before.pop(n) for n, v in found.items() if v is None and n in session.before
                }
                _put(spark, {**{n: v for n, v in found.items() if v not in (None, layer[n])}, **over})


def _top(session: _Session, name: str) -> str | None:
    """What the innermost block that has the setting wants; None where none has."""
    return next((layer[name] for layer in reversed(session.layers) if name in layer), None)


@contextmanager
def meaning(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[bool]:
    """Runs the block with settings that change what a query means (time zone, ANSI mode, ...); True where others were set.

    Blocks that find them as they are run side by side; one that has to change them runs alone.
    """
    session = _of(spark)
    before: dict[str, str | None] | None = None
    try:
        with session.changed:
            session.changed.wait_for(lambda: not session.exclusive)
            different = {n: v for n, v in wanted.items() if spark.conf.get(n, None) != v}
            if different:
                session.changed.wait_for(lambda: not session.exclusive and session.shared == 0)
            with deferred():
                before = _put(spark, different)
                session.exclusive = bool(different)
                session.shared += not different
        yield bool(before)
    finally:
        with deferred(), session.changed:
            if before is not None:
                try:
                    _put(spark, before)
                finally:  # also where there is no session any more
                    session.exclusive = False
                    session.shared -= not before
                    session.changed.notify_all()


_waiting: ContextVar[Callable[[SparkSession], None] | None] = ContextVar("waiting", default=None)
"""What the block of this thread that has not used Spark yet does with the session when it does."""


@contextmanager
def meaning_at_use(wanted: Mapping[str, str]) -> Iterator[None]:
    """Runs the block, and from its first use of Spark on (`note_use`) as `meaning` does: for one that may do without."""
    with ExitStack() as inside:

        def enter(session: SparkSession) -> None:
            _waiting.set(None)
            inside.enter_context(meaning(session, wanted))

        token = _waiting.set(enter)
        try:
            yield
        finally:
            _waiting.reset(token)


def note_use(session: SparkSession) -> None:
    """The session is going to be used in this thread."""
    enter = _waiting.get()
    if enter is not None:
        enter(session)


def writer(frame: DataFrame) -> DataFrameWriter:
    """`frame.write` for a file of the warehouse.

    Raises CQError where the session, which may be the user's own, would take VARIANT columns apart: the driver and
    other readers of Delta Lake know them as their two binary parts.
    """
    if contains(frame.schema, t.VariantType) and frame.sparkSession.conf.get(_SHREDDING, "false") == "true":
        raise CQError(
            "the Spark session would write VARIANT columns in shredded form",
            detail="warehouses hold them unshredded, which every reader understands",
            hint=f'call spark.conf.set("{_SHREDDING}", "false") on the session that you gave to connect()',
        )
    return frame.write
