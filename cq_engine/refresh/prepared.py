"""Statements of delta plans over plan inputs, which are planned once and run again over other rows.

There are two ways to plan one. Over few rows nothing is compiled: to generate and compile code costs more than a hundred
runs over some hundred rows save, and the first refresh of a query would wait for it. Over many rows Spark compiles it.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.nodes import Changes, Given, History, Node, StateRows
from cq_engine.core.interrupts import taken
from cq_engine.planner.delta_plan import Text
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.operators import keeps_nothing
from cq_engine.refresh.plan_inputs import PlanInput, PlanInputFullError, fits_plan_input
from cq_engine.refresh.source_rows import SourceRows
from cq_engine.spark.arrow_io import is_plain
from cq_engine.spark.session_kind import is_connect
from cq_engine.spark.settings import few_rows_session, plan_input_settings, small_settings
from cq_engine.spark.sql import explained_sql, fresh_name, run_sql

__all__ = ["PreparedStatement", "PreparedStatements"]


@dataclass
class PreparedStatement:
    """A planned statement."""

    text: str
    session: SparkSession
    many: bool
    relations: dict[str, DataFrame]
    inputs: list[tuple[Node, PlanInput]]
    frame: DataFrame
    checked: bool = False
    """Has Spark been asked whether the plan may run again?"""

    def source_rows(self, binder: IntervalBinder) -> list[pa.Table] | None:
        """The rows of its inputs; None where the driver cannot have them."""
        found = [binder.source_rows(leaf) for leaf, _ in self.inputs]
        rows = [each.rows for each in found if each is not None]
        return rows if len(rows) == len(found) else None

    def put(self, rows: Sequence[pa.Table]) -> None:
        """Replaces the rows of its inputs. Raises PlanInputFullError, OSError."""
        for (_, source), each in zip(self.inputs, rows, strict=True):
            source.put(each)

    def run(self) -> pa.Table:
        """Its rows. The first time Spark plans it; PySpark's exceptions pass through."""
        with _planning(self.session, self.many):
            return self.frame.toArrow()

    def run_again(self) -> pa.Table | None:
        """Its rows, from the plan that is there; None where that may not run again, which Spark is asked once: for the
        first run it is all the same, and it takes planning."""
        if not self.checked:
            with _planning(self.session, self.many):
                if not keeps_nothing(explained_sql(self.session, self.text, self.relations)):
                    return None
            self.checked = True
        return self.frame.toArrow()

    def remove(self) -> None:
        """Takes the inputs away."""
        _remove(self.inputs)


class StatementRows(NamedTuple):
    """A statement, and the rows that its inputs are to have."""

    statement: PreparedStatement
    rows: list[pa.Table]

    @property
    def row_count(self) -> int:
        return sum(map(len, self.rows))


@contextmanager
def _planning(session: SparkSession, many: bool) -> Iterator[None]:
    """The settings that statements over plan inputs are planned under; those over few rows have a session with them."""
    if not many:
        yield
        return
    with small_settings(session), plan_input_settings(session):
        yield


class PreparedStatements:
    """The statements of one delta plan, by name, as far as they are prepared: for few rows, or for many. Thread-safe: who
    finds them in use is told that there are none."""

    def __init__(self, *, many: bool) -> None:
        self.many = many
        self._by_name: dict[str, PreparedStatement | None] = {}
        self._spark: SparkSession | None = None
        self._lock = threading.Lock()
        self._forgotten = False

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def all_run_again(self) -> bool:
        """Is there none that cannot be run again?"""
        return None not in self._by_name.values()

    def source_rows(self, name: str, binder: IntervalBinder) -> StatementRows | None:
        """What the statement would run over; None where it is not prepared, or the driver cannot have the rows."""
        statement = self._by_name.get(name)
        rows = None if statement is None else statement.source_rows(binder)
        return None if statement is None or rows is None else StatementRows(statement, rows)

    def run(
        self,
        spark: SparkSession,
        name: str,
        text: Text,
        binder: IntervalBinder,
        limit: int,
        known: StatementRows | None = None,
    ) -> pa.Table | None:
        """The first `limit` rows of the statement `name`, which is prepared where it is not yet; None where it cannot be.

        `known` are its `source_rows`, where they have been asked for. PySpark's exceptions pass through.
        """
        with self._use() as free:
            if not free:
                return None
            if self._spark is not spark:
                self._clear()
                self._spark = spark
            if name not in self._by_name:
                return self._prepare_and_run(spark, name, text, binder, limit)
            if known is None or known.statement is not self._by_name[name]:
                known = self.source_rows(name, binder)
            if known is None:
                return None
            statement = known.statement
            try:
                statement.put(known.rows)
            except (PlanInputFullError, OSError):
                del self._by_name[name]
                statement.remove()
                return self._prepare_and_run(spark, name, text, binder, limit)
            found = statement.run_again()
            if found is None:
                statement.remove()
                self._by_name[name] = None
            return found

    def clear(self) -> None:
        """Forgets the statements; of a plan that runs, when it has run."""
        self._forgotten = True
        with self._use():
            pass  # who uses them clears them at the end

    @contextmanager
    def _use(self) -> Iterator[bool]:
        """Whether the block has the statements; not where another one has them."""
        with taken(self._lock) as alone:
            try:
                yield alone
            finally:
                if alone and self._forgotten:
                    self._clear()

    def _clear(self) -> None:
        for statement in self._by_name.values():
            if statement is not None:
                statement.remove()
        self._by_name = {}

    def _prepare_and_run(
        self, spark: SparkSession, name: str, text: Text, binder: IntervalBinder, limit: int
    ) -> pa.Table | None:
        try:
            statement = self._by_name[name] = _prepare(spark, text, binder, limit, self.many)
        except (_NotDrivenError, PlanInputFullError, OSError):
            return None
        return None if statement is None else statement.run()


def _prepare(
    spark: SparkSession, text: Text, binder: IntervalBinder, limit: int, many: bool
) -> PreparedStatement | None:
    """The statement over plan inputs; None where it can never be run again.

    Raises _NotDrivenError, PlanInputFullError or OSError where the present rows cannot be put into inputs.
    """
    if is_connect(spark) or not (spark.conf.get("spark.master") or "").startswith("local"):
        return None
    inputs = _PlanInputs(binder)
    try:
        limited = f"SELECT * FROM (\n{text(inputs, inputs.attach)}\n) LIMIT {limit}"
        session = spark if many else few_rows_session(spark)
        relations = {name: source.frame(session) for name, source in inputs.named.items()}
        with _planning(session, many):
            frame = run_sql(session, limited, relations)
    except BaseException as error:
        inputs.remove()
        if isinstance(error, _NeverFitsError):
            return None
        raise
    if not is_plain(frame.schema):
        inputs.remove()
        return None
    return PreparedStatement(limited, session, many, relations, inputs.inputs, frame)


class _NotDrivenError(Exception):
    """A leaf's rows are not at the driver."""


class _NeverFitsError(Exception):
    """A leaf's rows are of a type that a plan input cannot hold."""


class _PlanInputs:
    """Binds every leaf to a plan input with its present rows; leaves that are the same share one."""

    def __init__(self, binder: IntervalBinder) -> None:
        self.inputs: list[tuple[Node, PlanInput]] = []
        self.named: dict[str, PlanInput] = {}
        self._binder = binder
        self._names: dict[Hashable, str] = {}

    def attach(self, emitter: Emitter) -> None:
        emitter.one_partition = True

    def remove(self) -> None:
        """Takes the inputs away."""
        _remove(self.inputs)

    def __call__(self, leaf: Node) -> str:
        key = _leaf_key(leaf)
        if key not in self._names:
            found: SourceRows | None = self._binder.source_rows(leaf)
            if found is None:
                raise _NotDrivenError
            if not fits_plan_input(found.columns):
                raise _NeverFitsError
            source = PlanInput(found.columns, found.rows, self._binder.reader.limits)
            self.inputs.append((leaf, source))
            name = self._names[key] = fresh_name("input")
            self.named[name] = source
        shown = ", ".join(f"{quote(f'c{n}')} AS {quote(each)}" for n, each in enumerate(leaf.columns))
        return f"(SELECT {shown} FROM {self._names[key]})"


def _remove(inputs: Sequence[tuple[Node, PlanInput]]) -> None:
    for _, source in inputs:
        with suppress(OSError):
            source.remove()


def _leaf_key(leaf: Node) -> Hashable:
    """Equal for leaves that always have the same rows, by position."""
    if isinstance(leaf, Changes):
        return ("changes", leaf.scan.table, tuple(source for _, source in leaf.scan.fields))
    if isinstance(leaf, History):
        groups = tuple(
            tuple((leaf.scan.source_of(h.column), id(h.leaf), h.of_column) for h in filters)
            for filters in (leaf.filters, *leaf.among)
        )
        return ("history", leaf.scan.table, tuple(source for _, source in leaf.scan.fields), groups)
    if isinstance(leaf, Given):
        return ("input", leaf.name)
    assert isinstance(leaf, StateRows)
    return ("state", id(leaf))
