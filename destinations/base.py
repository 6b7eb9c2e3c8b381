"""What every destination promises."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyarrow as pa
from pyspark.errors import PySparkException

from cq_engine.catalog.model import CatalogState, ContinuousQuery, Cursor
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.errors import CQError, DestinationError, LeaseError
from cq_engine.destinations.batches import in_batches
from cq_engine.destinations.log import read_pairs
from cq_engine.spark.sql import translate_spark_error

__all__ = ["Delivered", "Destination", "Unreachable", "cursor_name"]


class Unreachable(DestinationError):
    """The target does not answer; what is wrong with it, if anything, is not known."""


def cursor_name(kind: str, name: str) -> str:
    """The name under which the catalog keeps the cursor of a destination (`Cursor.destination`).

    >>> cursor_name("TABLE", "Alerts")
    'table:alerts'
    """
    return f"{kind.lower()}:{name.lower()}"


@dataclass(frozen=True)
class Delivered:
    """What one delivery did: how many deltas it gave away, and where the cursor stands now.

    A delivery that committed to the warehouse says its commit `version`, and in `changed` the tables and the kinds
    of change (INSERT, DELETE, UPDATE), as `Scheduler.committed` takes them.
    """

    cursor: Cursor
    deltas: int
    version: int | None = None
    changed: Mapping[str, frozenset[str]] = field(default_factory=dict)


class Destination(ABC):
    """A place that the deltas of one continuous query go to.

    The contract:

    *From log to cursor.* A destination gives away what the query's delta log holds after the destination's own
    durable cursor, up to the version it is told, and moves the cursor. It reads nothing but the log: a refresh has
    made the deltas durable before any destination sees them, so the same deltas can be read again after a failure.

    *Selection.* Only deltas with one of the query's markers are given away. A delta that is not selected is passed
    over, and an update is never split into a delete and an insert.

    *Order.* Deltas are given away in the order of (commit version, sequence). None is given away before everything
    ahead of it has been.

    *Guarantee.* With `exactly_once`, what is given away and the cursor become durable in one transaction: no crash
    loses or repeats a delta. Without, the cursor follows what was given away: after a crash or a failure a batch may
    come again, whole and with the same idempotency key, but none is lost.

    *Failure.* A delivery that fails raises DestinationError, leaves the cursor where the last success put it, and
    counts the failure in it. It delays this destination only: neither the query's refreshes nor its other
    destinations wait. The next delivery starts again at the cursor.

    A destination without a cursor yet gets everything that the log holds. Deliveries to one destination of one query
    must not overlap; the caller sees to that.
    """

    kind: ClassVar[str]
    """TABLE, CALLBACK, ..., as in the DESTINATION clause."""
    exactly_once: ClassVar[bool]
    whole: ClassVar[bool] = False
    """The deltas of a commit are given away, or go to the dead letters, all of them or none."""
    background: ClassVar[bool] = False
    """Served by threads of its own, so that no refresh waits for it."""
    registered: ClassVar[bool] = False
    """Served by the process in which something is registered under its name, and not by the one with the duties."""
    pulled: ClassVar[bool] = False
    """Nothing is delivered: whoever wants the deltas takes them."""
    jitter: ClassVar[float] = 0.0
    """By which part pauses after a failure may be longer, so that many senders do not come back at once."""
    merges: bool = False
    """The target has the query's current result, and can have that of one query only."""
    remembers: ClassVar[bool] = False
    """The target has the cursor, too, in the transaction of its rows (`destinations/targets/target.py`)."""

    def __init__(self, services: Services, query: ContinuousQuery, name: str) -> None:
        self.services = services
        self.query = query
        self.name = name

    @classmethod
    def placed(cls, cursor: Cursor, version: int) -> Cursor:
        """The cursor where a statement says that the destination stands behind `version`, whatever it has received.

        One that remembers otherwise gets the number of this order, as a `sequence` below 0 until it is carried out: an
        even one goes forward, so that what the destination has received beyond `version` is not given to it again.
        """
        forward = version > cursor.version and cursor.sequence >= 0
        sequence = -1 - (2 * secrets.randbits(60) + forward) if cls.remembers else 0
        return replace(cursor, version=version, sequence=sequence, failures=0, error="")

    @classmethod
    def admit(
        cls,
        services: Services,  # noqa: ARG003 - for subclasses
        query: ContinuousQuery,  # noqa: ARG003 - for subclasses
        state: CatalogState,
        name: str,  # noqa: ARG003 - for subclasses
    ) -> CatalogState:
        """What the definition of `query`, which delivers to `name`, makes of `state`. Raises AnalysisError where the query's
        rows do not fit; with the catalog held."""
        return state

    def check(self) -> None:
        """Raises DestinationError where the query cannot deliver to it; called before it is durable that it does."""
        return

    @property
    def batch_deltas(self) -> int:
        """How many deltas of a commit are given away, or refused, together at most."""
        return self.services.limits.batch_deltas

    def batches(self, cursor: Cursor, upto: int) -> Iterator[tuple[pa.Table, bool]]:
        """The deltas after `cursor` up to version `upto`, in the parts that are given away, or refused, together; with each
        whether a cursor behind it stands at the end of its last version."""
        blocks = read_pairs(self.services, self.query, cursor, upto, self.query.markers)
        return in_batches(blocks, self.batch_deltas, self._batch_ends(cursor))

    def _batch_ends(self, cursor: Cursor) -> Sequence[int] | None:  # noqa: ARG002 - for subclasses
        """The versions after `cursor` at which batches end, in ascending order; None for each that has deltas."""
        return None

    @property
    def cursor(self) -> Cursor:
        """How far the destination has been served."""
        name = cursor_name(self.kind, self.name)
        return self.services.catalog.cursor(self.query.name, name) or Cursor(self.query.name, name, 0)

    def deliver(self, upto: int) -> Delivered | None:
        """Gives away what the log holds after the cursor up to and including version `upto`.

        Returns:
            What was done, or None where the cursor was there already.

        Raises:
            DestinationError: the delivery failed, and will be tried again by the next one.
            LeaseError: the warehouse belongs to another process.
        """
        cursor = self.cursor
        if cursor.version > upto or (cursor.version == upto and cursor.sequence == 0):
            return None
        try:
            return self._deliver(cursor, upto)
        except LeaseError:
            raise
        except Exception as error:
            failure = self._failure(error)
            self._count_failure(failure.message)
            raise failure from error

    @abstractmethod
    def _deliver(self, cursor: Cursor, upto: int) -> Delivered:
        """Does what `deliver` says; there is something after `cursor` to look at."""

    def _move(self, cursor: Cursor, version: int, sequence: int = 0, rows: int = 0) -> Cursor:
        """The cursor after a success, which gave `rows` deltas away."""
        received = cursor.rows + rows
        return replace(cursor, version=version, sequence=sequence, failures=0, error="", rows=received)

    def _store(self, cursor: Cursor, moved: Cursor) -> Cursor:
        """Makes `moved` durable in the place of `cursor`, and returns it. Raises ConflictError where that is elsewhere."""
        with self.services.catalog.write(by_any=self.registered) as unit:
            unit.set_cursor(moved, after=cursor)
            faults.point("deliver.before_cursor")
        return moved

    def _count_failure(self, message: str) -> None:
        """Writes a failure into the cursor, which stays where it is."""
        # The failure itself matters more than its record.
        with suppress(Exception), self.services.catalog.write(by_any=True) as unit:
            cursor = self.cursor
            unit.set_cursor(replace(cursor, failures=cursor.failures + 1, error=message))

    def _failure(self, error: Exception) -> DestinationError:
        if isinstance(error, DestinationError):
            return error
        known = isinstance(error, (CQError, PySparkException))
        cause = translate_spark_error(error).message if known else f"{type(error).__name__}: {error}"
        return DestinationError(
            f"{self.kind.lower()} {self.name} could not be served by continuous query {self.query.name}: {cause}",
            detail=error.detail if isinstance(error, CQError) else "",
            hint=error.hint
            if isinstance(error, CQError) and error.hint
            else "it is tried again with the next delivery",
        )
