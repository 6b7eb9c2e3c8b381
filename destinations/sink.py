"""Types of destinations that other packages bring: what their authors write, and how it is served.

A package names its subclass of `Sink` as an entry point of the group `cq_engine.destinations`; the entry point's name is the
type in CREATE DESTINATION. `cq_engine.destinations.contract` is the suite of tests that such a class passes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import ClassVar

import pyarrow as pa

from cq_engine.catalog.model import Cursor, DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import CQError, DestinationError
from cq_engine.destinations.base import Delivered
from cq_engine.destinations.callback import CallbackDestination
from cq_engine.destinations.envelope import DeltaBatch, result_schema
from cq_engine.destinations.kind_parts import Kind, Wanted
from cq_engine.destinations.options import COMMON, Option
from cq_engine.destinations.variables import VARIABLE, expand

__all__ = ["Sink", "SinkDestination", "failure", "make_sink", "sink_class", "sink_kind"]

_log = logging.getLogger(__name__)


class Sink(ABC):
    """Where the deltas of one query go: a subclass is a type of destinations.

    The engine makes one object for each delivery and calls `open`, `write` for every batch, and `close`, all in one thread,
    which is none that refreshes. Deliveries to one destination of one query never overlap; those of several queries may.

    *Order.* Batches come in commit order, a large commit in several (`DeltaBatch.last`). The next one comes when `write`
    has returned.

    *At least once.* When `write` returns, the batch counts as received: by then it must be durable. After a failure or a
    crash the same batch may come again, whole and with the same `DeltaBatch.idempotency_key`; so it may after REPLAY.

    *Failures.* Whatever a method raises is a failed delivery: SHOW DESTINATIONS shows the text, the batch comes again after
    a pause, and the declaration says when that ends (`on_failure`). Raise `cq_engine.DestinationError` for a message of
    your own, without secrets; its attribute `wait_seconds` is the least pause that the target asks for.
    """

    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    """What WITH (...) takes besides `on_failure`, `max_attempts` and `backoff`; names in lower case."""
    exactly_once: ClassVar[bool] = False
    """`write` passes over a batch whose key the target has, and stores rows and key in one transaction of the target."""

    token: str = ""
    """What tells the destination from another one that has, or had, its name; with `DeltaBatch.query_id`, version and sequence
    it is a key that no other delta has."""

    check_turn: Callable[[], None] = staticmethod(lambda: None)
    """Raises LeaseError where another process serves the destination now. The engine has asked before each batch; it is to be
    asked again where the target ends another process's work for this one."""

    def __init__(self, name: str, options: Mapping[str, str]) -> None:
        """Must not touch the target.

        Args:
            name: the destination's.
            options: a value for every one of `OPTIONS`: as declared, with the environment's values in the place of
                `${NAME}`, else the default.
        """
        self.name = name
        self.options = options

    def check(self) -> None:
        """Called by CREATE DESTINATION, and by ALTER … SET, before they are durable.

        Raises:
            DestinationError: the target answers and refuses, or the options do not fit together. A target that is down is
                no reason: the destination then lags, and shows why.
        """
        return

    def check_columns(self, columns: pa.Schema) -> None:  # noqa: ARG002 - for subclasses
        """Called where a query with these result columns is to deliver here, before that is durable.

        Raises:
            DestinationError: they do not fit.
        """
        return

    def open(self) -> None:
        """Before the first batch of a delivery; not called where there is none."""
        return

    @abstractmethod
    def write(self, batch: DeltaBatch) -> None:
        """Makes a batch durable: at least one delta, all of one commit."""

    def close(self) -> None:
        """After the last batch of a delivery that was opened, and after a failure. Nothing may depend on it: a process that
        dies does not call it. What it raises is logged."""
        return


class SinkDestination(CallbackDestination):
    """Gives batches to a `Sink`, each in a place of its own with the cursor behind it."""

    registered: ClassVar[bool] = False
    jitter: ClassVar[float] = 0.25

    def __init__(self, wanted: Wanted, sink: Sink) -> None:
        super().__init__(
            wanted.services, wanted.query, wanted.declared.name, self._write,
            retry=wanted.retry, stopped=wanted.stopped,
        )  # fmt: skip
        self.sink = sink
        self.sink.check_turn = self._check_turn
        self._opened = False

    def check(self) -> None:
        self.sink.check_columns(result_schema(self.query))

    def _deliver(self, cursor: Cursor, upto: int) -> Delivered:
        try:
            return super()._deliver(cursor, upto)
        finally:
            if self._opened:
                self._opened = False
                try:
                    self.sink.close()
                except Exception as error:  # noqa: BLE001 - what was written is durable
                    _log.warning("destination %s could not be closed: %r", self.name, error)

    def _write(self, batch: DeltaBatch) -> None:
        if not self._opened:
            self.sink.open()
            self._opened = True
        self.sink.write(batch)


@cache
def sink_class(kind: str) -> type[SinkDestination]:
    """The class of destinations of a type that is none of the engine's own, whether its package is installed or not."""

    class Named(SinkDestination):
        pass

    Named.kind = kind
    return Named


def make_sink(of: type[Sink], declared: DeclaredDestination) -> Sink:
    """The sink of a declaration. Raises DestinationError for a variable that is not set, or an option that does not fit."""
    given = dict(declared.options)
    options: dict[str, str] = {}
    for name, option in of.OPTIONS.items():
        if option.default is None and name not in given:
            kind = declared.type.lower()
            raise DestinationError(
                f"there is no {kind} {declared.name}",
                hint=f"declare it first: CREATE DESTINATION {declared.name} TYPE {kind} WITH ({name} = …)",
            )
        said = given.get(name, option.default or "")
        options[name] = expand(said)
        if options[name] != said:
            _check(declared, name, said, option, options[name])
    try:
        sink = of(declared.name, options)
        sink.token = declared.token
        return sink
    except Exception as error:
        raise failure(declared, error) from error


def failure(declared: DeclaredDestination, error: Exception) -> DestinationError:
    """What a method of a sink raised, as an error of the destination."""
    if isinstance(error, DestinationError):
        return error
    said = error.message if isinstance(error, CQError) else f"{type(error).__name__}: {error}"
    return DestinationError(f"{declared.type.lower()} {declared.name}: {said}")


def _check(declared: DeclaredDestination, name: str, said: str, option: Option, value: str) -> None:
    try:
        option.check(value)
    except Exception:  # noqa: BLE001 - the check's own text may have the value, which may be a secret
        raise DestinationError(
            f"{declared.type.lower()} {declared.name}: the value of {said} is not possible for {name}",
            hint=option.hint,
        ) from None


def sink_kind(name: str, of: type[Sink]) -> Kind:
    """The kind that such a class is."""
    of_kind = sink_class(name)

    def ask(declared: DeclaredDestination, _: Services) -> None:
        sink = make_sink(of, declared)
        try:
            sink.check()
        except Exception as error:
            raise failure(declared, error) from error

    return Kind(
        of_kind,
        {**{each: _as_written(option) for each, option in of.OPTIONS.items()}, **COMMON},
        lambda wanted: of_kind(wanted, make_sink(of, wanted.declared)),
        reach=ask,
    )


def _as_written(option: Option) -> Option:
    """The option of a sink, whose check sees values as they are where variables are known."""

    def check(value: str) -> None:
        if option.secret and value and not VARIABLE.fullmatch(value):
            raise ValueError
        if not VARIABLE.search(value):
            try:
                option.check(value)
            except Exception as error:
                raise ValueError from error

    return replace(option, check=check)
