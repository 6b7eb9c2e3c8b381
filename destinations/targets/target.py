"""A destination outside of the warehouse that has the cursor itself: exactly once, without a common transaction.

The target keeps a `Mark` of each query's deliveries and writes it in the transaction that brings the rows. The cursor in the
catalog follows. After a crash between the two the mark is ahead, and counts. Who places a destination by a statement gives
an order with a number of its own, which the catalog's cursor has as a negative `sequence` until it is carried out: a mark
of another order does not count.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog.destinations import merges
from cq_engine.catalog.model import ContinuousQuery, Cursor, DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError, DestinationError, Location
from cq_engine.destinations.base import Delivered, Destination, Unreachable
from cq_engine.destinations.envelope import key_places
from cq_engine.destinations.fit import columns_for
from cq_engine.destinations.layout import output_rows
from cq_engine.destinations.log import commit_times, read_pairs
from cq_engine.destinations.pairs import MARKERS
from cq_engine.destinations.targets.net_changes import net_changes, without_minus_zero
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.persisting import persisted
from cq_engine.storage.rows import conform

__all__ = [
    "Mark",
    "Target",
    "TargetDestination",
    "check_mode",
    "foreign_rows",
    "local",
]


def local(path: str) -> Path | None:
    """The directory of this machine that a path or URI means; None for another one."""
    if path.startswith("file://"):
        return Path(path.removeprefix("file://"))
    return None if "://" in path else Path(path)


def foreign_rows(destination: TargetDestination, shown: str) -> DestinationError:
    """The error where what is to be merged would take the place of rows of somebody else."""
    return DestinationError(
        f"{shown} has rows already, and none from {destination.name}",
        detail="mode = 'merge' would have the query's result in their place",
        hint="remove these rows, choose another table, or append with mode = 'history'",
    )


def check_mode(destination: DeclaredDestination, place: Callable[[str], Location | None]) -> None:
    """Raises AnalysisError where deltas of a result that is kept up to date could be left out."""
    on_failure = dict(destination.options).get("on_failure", "retry").lower()
    if merges(destination) and on_failure == "dead_letter":
        raise AnalysisError(
            "dead letters are not for mode = 'merge'",
            detail="the target would not be the query's result any more",
            hint="on_failure = 'pause' stops there",
            location=place("on_failure"),
        )


@dataclass(frozen=True)
class Mark:
    """What a target says of itself: it has everything up to `version`, by the order of this number."""

    version: int
    order: int


class Target(ABC):
    """An open target. `append`, `merge` and `replace` each are one transaction of it, which the mark is part of.

    All raise DestinationError where somebody else has served the target since `mark` was asked for.
    """

    @abstractmethod
    def check(self) -> None:
        """Raises DestinationError where the table that is there has not the columns, or, for what is to be merged, rows
        that are not the destination's own."""

    @abstractmethod
    def mark(self) -> Mark | None:
        """The mark; None where there is none, or no table to which it could belong."""

    @abstractmethod
    def append(self, rows: Iterator[pa.Table], mark: Mark) -> None:
        """Adds rows with the destination's columns."""

    @abstractmethod
    def merge(self, changes: Iterator[pa.Table], mark: Mark) -> bool:
        """Applies blocks of `net_changes`, one after the other; False, and nothing done, where there are too many."""

    @abstractmethod
    def replace(self, rows: Iterator[pa.Table], mark: Mark) -> None:
        """Has these rows in the place of all others."""


class TargetDestination(Destination):
    """Delivers to a `Target`: the history of deltas, or (`merges`) the query's current result.

    A delivery is cut into transactions of about `Limits.log_block_rows` change rows, always between two versions.
    """

    exactly_once: ClassVar[bool] = True
    background: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def __init__(
        self,
        services: Services,
        query: ContinuousQuery,
        declared: DeclaredDestination,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(services, query, declared.name)
        self.options = dict(declared.options)
        self.merges = merges(declared)
        self.token = declared.token
        """Under which the target keeps the mark, with the query's number."""
        self._stopped = stopped

    @abstractmethod
    def open(self) -> AbstractContextManager[Target]:
        """The target, for one delivery. Raises DestinationError, Unreachable where nothing answers."""

    @property
    def batch_deltas(self) -> int:
        return sys.maxsize  # it stands between versions

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of the target's table: those of the result where it merges, else the SELECT list."""
        if not self.merges:
            return columns_for(self.query)
        return tuple(Column(c.name, c.type) for c in self.query.result.columns[: self.query.width])

    @property
    def key(self) -> tuple[int, ...]:
        """The places of the key's columns in `columns`, where it merges."""
        return key_places(self.query) or ()

    def check(self) -> None:
        """Raises DestinationError where the query's rows do not fit the target; one that does not answer is no error."""
        if self.merges and self.query.key is None:
            raise DestinationError(
                f"continuous query {self.query.name} has no result key, by which {self.name} could be merged",
                detail="mode = 'merge' replaces and deletes rows by their key",
                hint="say PRIMARY KEY (...) in CREATE CONTINUOUS QUERY, or mode = 'history' in CREATE DESTINATION",
            )
        with suppress(Unreachable), self.open() as target:
            target.check()

    # ------------------------------------------------------------ a delivery

    def _deliver(self, cursor: Cursor, upto: int) -> Delivered:
        total = 0
        with self.open() as target:
            known = target.mark()
            order = -cursor.sequence if cursor.sequence < 0 else (0 if known is None else known.order)
            follows = known is not None and known.order == order and self._is_of_here(known)
            at = cursor.version
            if known is not None and follows and known.version >= self._floor():
                at = known.version
                if at > cursor.version:  # a crash came before the catalog was told
                    cursor = self._store(cursor, self._move(cursor, at, rows=self._count(cursor.version, at)))
            elif self.merges:
                cursor, count = self._transaction(cursor, partial(self._build, target, order))
                at, total, follows = cursor.version, count, True
            elif known is not None and cursor.sequence < 0 and order % 2 == 0:  # what it had before a crash
                at = max(at, known.version if known.version <= self.services.catalog.newest_version else 0)
            for end in self._ends(at, upto, always=not follows):
                if follows and end <= at:  # the whole result has been written instead
                    continue
                if self._stopped():
                    return Delivered(cursor, total)
                cursor, count = self._transaction(cursor, partial(self._write, target, at, Mark(end, order)))
                at, total, follows = cursor.version, total + count, True
        at = max(at, upto)
        if (cursor.version, cursor.sequence) != (at, 0):
            cursor = self._store(cursor, self._move(cursor, at))
        return Delivered(cursor, total)

    def _is_of_here(self, mark: Mark) -> bool:
        """False where the whole result is to be written because the mark is from a later time than the warehouse.

        Raises DestinationError where it is the history that has deltas of versions that are yet to come.
        """
        self.services.catalog.check_lease()  # who has lost the duties knows of old versions only
        newest = self.services.catalog.newest_version
        if mark.version <= newest:
            return True
        if self.merges:
            return False
        raise DestinationError(
            f"{self.kind.lower()} {self.name} has received {self.query.name} up to version {mark.version}, "
            f"and the warehouse ends at version {newest}",
            detail="the warehouse was restored from an older copy; what follows is not what the target has",
            hint=f"ALTER DESTINATION {self.name} REPLAY FOR {self.query.name} FROM VERSION n appends what comes after n",
        )

    def _count(self, after: int, upto: int) -> int:
        markers = MARKERS if self.merges else self.query.markers
        start = Cursor(self.query.name, "", after)
        return sum(wide.num_rows for wide in read_pairs(self.services, self.query, start, upto, markers))

    def _floor(self) -> int:
        return self.services.catalog.floor(self.query.result.id)

    def _ends(self, after: int, upto: int, *, always: bool) -> Iterator[int]:
        """Where transactions end: a version with nothing behind it that belongs to it, and not too much before it."""
        rows, end = 0, after
        changes = self.services.catalog.changes(self.query.result.id, after + 1, upto)
        for each in sorted(changes, key=lambda change: change.low):
            if rows and rows + each.rows > self.services.limits.log_block_rows and each.low > end:
                yield end
                rows = 0
            rows, end = rows + each.rows, min(upto, max(end, each.high))
        if rows or (always and after <= upto):
            yield upto

    def _transaction(self, cursor: Cursor, write: Callable[[], tuple[int, int]]) -> tuple[Cursor, int]:
        """One transaction of the target, which `write` does and says up to which version and with how many deltas."""
        self.services.catalog.check_lease()
        faults.point("deliver.begin")
        version, count = write()
        moved = self._store(cursor, self._move(cursor, version, rows=count))
        faults.point("deliver.after_cursor")
        return moved, count

    def _write(self, target: Target, after: int, mark: Mark) -> tuple[int, int]:
        query, count = self.query, 0

        def blocks() -> Iterator[pa.Table]:
            nonlocal count
            markers = MARKERS if self.merges else query.markers
            for wide in read_pairs(
                self.services, query, Cursor(query.name, "", after), mark.version, markers
            ):
                count += wide.num_rows
                yield net_changes(query, wide) if self.merges else self._rows(wide)

        if not self.merges:
            target.append(blocks(), mark)
        elif not target.merge(blocks(), mark):
            return self._build(target, mark.order)
        return mark.version, count

    def _rows(self, wide: pa.Table) -> pa.Table:
        versions = wide.column("version")
        times = commit_times(self.services, versions[0].as_py(), versions[-1].as_py())
        return output_rows(self.query, wide, times)

    # ------------------------------------------------------------ the whole result

    def _build(self, target: Target, order: int) -> tuple[int, int]:
        """Writes the whole result at the query's position; that version, and the number of rows."""
        services, count = self.services, 0
        with services.read_holds.reading():
            found = services.results(self.query.name, None, services.catalog.newest_version)

            def blocks() -> Iterator[pa.Table]:
                nonlocal count
                small, size = found.small, services.limits.log_block_rows
                for rows in result_blocks(found.frame(), size) if small is None else [small.rows]:
                    count += rows.num_rows
                    yield without_minus_zero(conform(rows, self.columns), self.key)

            target.replace(blocks(), Mark(found.version, order))
        return found.version, count


def result_blocks(rows: DataFrame, size: int) -> Iterator[pa.Table]:
    """The rows as Arrow in blocks of about `size`, of which the driver holds one at a time."""
    with persisted(rows) as kept:
        parts = max(1, math.ceil(kept.count() / size))
        if parts == 1:
            yield to_arrow(kept)
            return
        with persisted(kept.repartition(parts)) as cut:
            for part in range(parts):
                yield to_arrow(cut.where(f.spark_partition_id() == part))
