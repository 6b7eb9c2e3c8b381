"""A script as a destination: DML over the deltas of one source transaction, as one transaction of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import CHANGE_TYPE, UPDATE_PREIMAGE
from cq_engine.catalog.graph import names_of
from cq_engine.catalog.model import CatalogState, ContinuousQuery, Cursor
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.errors import ConflictError, CQError, DestinationError, LeaseError
from cq_engine.core.values import python_rows
from cq_engine.destinations.base import Delivered, Destination
from cq_engine.destinations.batches import in_batches
from cq_engine.destinations.kind_parts import Kind, Wanted, no_trigger
from cq_engine.destinations.layout import shown_columns
from cq_engine.destinations.log import commit_times, read_frame, read_pairs
from cq_engine.destinations.options import COMMON, Option, count
from cq_engine.destinations.triggers.depth import depth_of
from cq_engine.destinations.triggers.script import check_columns, filtered, run_step, steps
from cq_engine.destinations.triggers.transitions import (
    DELTAS,
    Given,
    deltas,
    many_deltas,
    tables,
    tables_of_many,
)
from cq_engine.grammar import Script
from cq_engine.planner.tokens import scan
from cq_engine.spark.arrow_io import few_rows, to_arrow
from cq_engine.spark.sql import translate_errors
from cq_engine.transactions.retries import retried
from cq_engine.transactions.transaction import Transaction

__all__ = ["KIND", "TriggerDestination"]

_SELECTED = "selected"
"""Beside the wide columns: whether the WHEN holds."""


@dataclass(frozen=True)
class _Source:
    """The deltas of one commit: on the driver for those that a WHEN selects, or None where they are too many."""

    version: int
    time: datetime
    count: int
    wide: pa.Table | None


class TriggerDestination(Destination):
    """Runs the script once for each commit that has deltas, in order: its DML, the cursor and how deep it is in a chain
    of triggers are one commit. Where nothing changes, only the cursor moves.

    A conflict with another transaction is no failure: the script runs again over what is there then.
    """

    kind: ClassVar[str] = "TRIGGER"
    exactly_once: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    background: ClassVar[bool] = True

    def __init__(
        self,
        services: Services,
        query: ContinuousQuery,
        name: str,
        script: Script,
        *,
        max_depth: int = 16,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(services, query, name)
        self.script = script
        self.max_depth = max_depth
        self._stopped = stopped
        self._steps = steps(script)

    @classmethod
    def admit(
        cls, services: Services, query: ContinuousQuery, state: CatalogState, name: str
    ) -> CatalogState:
        declared = state.destinations[name.lower()]
        if declared.script is not None:
            check_columns(services, query, declared.name, declared.script)
        return state

    def _deliver(self, cursor: Cursor, upto: int) -> Delivered:
        if cursor.sequence > 0:  # the rest goes where the beginning went
            raise DestinationError(
                cursor.error or f"a part of commit {cursor.version} is in the dead letters"
            )
        done = Delivered(cursor, 0)
        try:
            for source in self._sources(cursor, upto):
                if self._stopped():
                    return done
                one = self._run(done.cursor, source)
                done = _both(done, one)
                if one.cursor.version != source.version:
                    return done
        except Exception:
            if done.deltas == 0:
                raise
            return done  # the next delivery begins with what has failed
        if done.cursor.version < upto:
            done = replace(done, cursor=self._store(done.cursor, self._move(done.cursor, upto)))
        return done

    # ------------------------------------------------------------ the deltas

    def _sources(self, cursor: Cursor, upto: int) -> Iterator[_Source]:
        """The commits after the cursor, in order; one that is too large for the driver is read where it is used."""
        services, size = self.services, self.services.limits.log_block_rows
        while True:
            blocks = read_pairs(services, self.query, cursor, upto, self.query.markers)
            for wide, last in in_batches(map(self._asked, blocks), size):
                version = wide.column("version")[0].as_py()
                time_ = services.catalog.timestamp(version)
                yield _Source(
                    version, time_, len(wide) if last else self._count(version), wide if last else None
                )
                if not last:
                    cursor = replace(cursor, version=version)
                    break
            else:
                return

    def _count(self, version: int) -> int:
        """The deltas of a large commit."""
        before = Cursor(self.query.name, "", version - 1)
        rows = read_frame(self.services, self.query, before, version, self.query.markers)
        with translate_errors():
            return rows.where(f.col(CHANGE_TYPE) != UPDATE_PREIMAGE).count()

    def _asked(self, wide: pa.Table) -> pa.Table:
        """Deltas with the column _SELECTED: whether the WHEN holds, asked once for many commits; NULL where that fails."""
        if not self.script.condition:
            return wide
        try:
            selected = self._answers(wide)
        except CQError:
            selected = pa.nulls(len(wide), pa.bool_())
        return wide.append_column(_SELECTED, selected)

    def _answers(self, wide: pa.Table) -> pa.Array:
        versions = wide.column("version")
        times = commit_times(self.services, versions[0].as_py(), versions[-1].as_py())
        kept = filtered(self.services, self.script.condition, deltas(self.services, self.query, wide, times))
        with translate_errors():
            places = to_arrow(kept.select("_cq_row")).column(0)
        return pc.is_in(pa.array(range(len(wide)), pa.int64()), places)

    def _selected(self, source: _Source, wide: pa.Table) -> pa.Table:
        """The deltas for which the WHEN holds. Raises DestinationError where it fails for one of them."""
        if not self.script.condition:
            return wide
        selected = wide.column(_SELECTED)
        if selected.null_count:
            try:
                selected = self._answers(wide)
            except CQError as error:
                raise self._refusal(source, "", error, "in its WHEN: ") from error
        return wide.filter(selected)

    # ------------------------------------------------------------ one transaction

    def _run(self, cursor: Cursor, source: _Source) -> Delivered:
        """The script over one commit's deltas. Where another delivery has moved the cursor, nothing is done."""
        moved = self._move(cursor, source.version, rows=source.count)
        depth = 1 + depth_of(self.services, self.query, cursor.version, source.version)
        attempt = partial(self._attempt, cursor, moved, source, depth)
        catalog, tries = self.services.catalog, self.services.limits.statement_tries
        while True:
            try:
                return retried(attempt, tries)
            except ConflictError:
                if self._stopped():
                    return Delivered(cursor, 0)
            if self._reads_results():
                continue
            try:
                with (
                    catalog.lock
                ):  # others of this process wait: it would never have its turn beside many of them
                    return attempt()
            except ConflictError:
                continue

    def _reads_results(self) -> bool:
        """Whether the script may read results of queries, which take locks of their own."""
        words = {token.text.lower() for token in scan(self.script.text)}
        return any(words & names_of(query) for query in self.services.catalog.state.queries.values())

    def _attempt(self, cursor: Cursor, moved: Cursor, source: _Source, depth: int) -> Delivered:
        now = self.cursor
        if (now.version, now.sequence) != (cursor.version, cursor.sequence):
            return Delivered(now, 0)
        transaction: Transaction | None = None
        try:
            for given, key in self._given(source):
                self._check_depth(source, depth)
                if transaction is None:
                    transaction = Transaction(self.services, trusted=True)
                transaction.given = given
                self._run_steps(transaction, source, key)
            faults.point("deliver.begin")
            if transaction is not None:
                self._commit(transaction, cursor, moved, source, depth)
        finally:
            if transaction is not None and transaction.is_open:
                transaction.rollback()
        version = None if transaction is None else transaction.commit_version
        if version is None:
            self._store(cursor, moved)
        faults.point("deliver.after_cursor")
        return Delivered(moved, source.count, version, {} if transaction is None else transaction.changed)

    def _run_steps(self, transaction: Transaction, source: _Source, key: str) -> None:
        for step in self._steps:
            try:
                run_step(transaction, self.script, step, source.version, source.time)
            except (ConflictError, LeaseError):
                raise
            except CQError as error:
                raise self._refusal(source, key, error) from error

    def _given(self, source: _Source) -> Iterator[tuple[Given, str]]:
        """The transition tables of each run of the script, and the key of the only delta in them."""
        services, query = self.services, self.query
        if self.script.each_row:
            for wide in self._pieces(source):
                for n in range(len(wide)):
                    row = wide.slice(n, 1)
                    yield tables(services, query, row), self._key(row)
        elif source.wide is not None:
            wide = self._selected(source, source.wide)
            if len(wide):
                yield tables(services, query, wide), ""
        else:
            many = many_deltas(services, query, source.version, source.time)
            rows = filtered(services, self.script.condition, {DELTAS: lambda: many})
            if not self.script.condition or few_rows(rows.select("_cq_row"), 0) is None:
                yield tables_of_many(query, rows), ""

    def _pieces(self, source: _Source) -> Iterator[pa.Table]:
        """The deltas that the WHEN selects, in order, at most `Limits.log_block_rows` at a time."""
        if source.wide is not None:
            yield self._selected(source, source.wide)
            return
        before = Cursor(self.query.name, "", source.version - 1)
        for wide in read_pairs(self.services, self.query, before, source.version, self.query.markers):
            yield self._selected(source, self._asked(wide))

    # ------------------------------------------------------------ the commit

    def _commit(
        self, transaction: Transaction, cursor: Cursor, moved: Cursor, source: _Source, depth: int
    ) -> None:
        def also(unit: UnitOfWork, version: int) -> None:
            unit.set_cursor(moved, after=cursor)
            unit.set_depth(version, depth)
            faults.point("deliver.before_cursor")

        try:
            transaction.commit(also=also)
        except (ConflictError, LeaseError):
            raise
        except CQError as error:
            raise self._refusal(source, "", error) from error

    # ------------------------------------------------------------ what goes wrong

    def _check_depth(self, source: _Source, depth: int) -> None:
        if depth > self.max_depth:
            raise DestinationError(
                f"trigger {self.name} does not run for commit {source.version} of continuous query {self.query.name}: "
                f"{depth - 1} triggers have led to it, one after the other",
                detail=f"max_depth = {self.max_depth}; a trigger whose changes reach its own query runs again",
                hint=f"let its WHEN or its statements end that, then ALTER DESTINATION {self.name} SKIP FOR "
                f"{self.query.name} TO VERSION {source.version}; or SET WITH (max_depth = ...)",
            )

    def _refusal(self, source: _Source, key: str, error: CQError, where: str = "") -> DestinationError:
        delta = f"the delta of {key} in " if key else ""
        return DestinationError(
            f"trigger {self.name} failed on {delta}commit {source.version} of continuous query {self.query.name}: "
            f"{where}{error.message}",
            detail=error.detail,
            hint=error.hint or "nothing of the commit is applied; it is tried again with the next delivery",
        )

    def _key(self, row: pa.Table) -> str:
        """What names the one delta of `row`: its key, or all of it."""
        wanted = {name.lower() for name in self.query.key or ()}
        columns = [(n, c.name) for n, c in enumerate(self.query.result.columns[: self.query.width])]
        shown = [(n, name) for n, name in columns if name.lower() in wanted] or columns
        values = shown_columns(row, [n for n, _ in shown])
        rows = pa.Table.from_arrays(values, names=[name for _, name in shown])
        return "(" + ", ".join(f"{name} = {value}" for name, value in python_rows(rows)[0].items()) + ")"


def _both(first: Delivered, second: Delivered) -> Delivered:
    changed = dict(first.changed)
    for table, kinds in second.changed.items():
        changed[table] = changed.get(table, frozenset()) | kinds
    version = first.version if second.version is None else second.version
    return Delivered(second.cursor, first.deltas + second.deltas, version, changed)


_MAX_DEPTH = Option("16", count, "write how many triggers may lead to one another, as in max_depth = 4")


def _make(wanted: Wanted) -> TriggerDestination:
    declared = wanted.declared
    if declared.script is None:
        raise no_trigger(declared.name)
    depth = count(dict(declared.options).get("max_depth", _MAX_DEPTH.default or ""))
    return TriggerDestination(
        wanted.services, wanted.query, declared.name, declared.script, max_depth=depth, stopped=wanted.stopped
    )


KIND = Kind(TriggerDestination, {"max_depth": _MAX_DEPTH, **COMMON}, _make)
