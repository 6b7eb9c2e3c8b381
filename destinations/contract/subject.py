"""What the suite asks of the destination that is tested, and how it asks a `Sink`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import pyarrow as pa

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.retry import Retry
from cq_engine.destinations.base import Delivered, Destination
from cq_engine.destinations.callbacks import Callbacks
from cq_engine.destinations.contract.world import Line, World
from cq_engine.destinations.envelope import DeltaBatch
from cq_engine.destinations.kind_parts import Wanted
from cq_engine.destinations.sink import Sink, make_sink, sink_class
from cq_engine.grammar.clauses import DestinationRef

__all__ = ["SinkSubject", "Subject"]


class Subject(ABC):
    """The destination `sink` of the world's query, and what it has received.

    One that is not `exactly_once` notes every batch that it has taken in `batches`, and its key in `keys`.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.batches: list[list[Line]] = []
        self.keys: list[tuple[str, int, int]] = []
        self.dead = False
        """A crash has come; what belongs to the process is not tidied up any more."""

    @property
    @abstractmethod
    def destination(self) -> Destination:
        """A new object for it, as every delivery has."""

    @property
    def exactly_once(self) -> bool:
        return self.destination.exactly_once

    @abstractmethod
    def received(self) -> list[Line]:
        """What the target has, in the order in which it came."""

    @abstractmethod
    def break_down(self) -> None:
        """Makes deliveries fail until `repair`."""

    @abstractmethod
    def repair(self) -> None: ...

    def deliver(self, upto: int | None = None) -> Delivered | None:
        """Delivers up to a version, by default the newest one."""
        return self.destination.deliver(self.world.catalog.newest_version if upto is None else upto)

    def replay(self, version: int) -> None:
        """What ALTER DESTINATION … REPLAY FROM VERSION does."""
        destination = self.destination
        with self.world.catalog.write() as unit:
            unit.set_cursor(destination.placed(destination.cursor, version))

    def note(self, batch: DeltaBatch) -> None:
        lines = ((d.commit_version, d.marker, (d.old if d.marker == "D" else d.new) or ()) for d in batch)
        self.batches.append([(version, marker, values[0]) for version, marker, values in lines])
        self.keys.append(batch.idempotency_key)


class SinkSubject(Subject):
    """A `Sink` with these options; `received`, `break_down` and `repair` are its author's."""

    def __init__(
        self,
        world: World,
        sink: type[Sink],
        options: Mapping[str, str],
        *,
        received: Callable[[], list[Line]],
        break_down: Callable[[], None],
        repair: Callable[[], None],
    ) -> None:
        super().__init__(world)
        self.sink = sink
        self.declared = DeclaredDestination("sink", "CONTRACT", tuple(options.items()), token="token")  # noqa: S106
        self.retry = Retry(attempts=1)
        self.left: list[Sink] = []
        """Those that a crash has left open."""
        self._received, self._break_down, self._repair = received, break_down, repair

    @property
    def destination(self) -> Destination:
        reference = DestinationRef("sink", "CONTRACT")
        wanted = Wanted(
            self.world.services, self.world.query, reference, self.declared, Callbacks(), self.world.catalog.state,
            self.retry, lambda: False,
        )  # fmt: skip
        return sink_class("CONTRACT")(wanted, _Noted(make_sink(self.sink, self.declared), self))

    @property
    def exactly_once(self) -> bool:
        return self.sink.exactly_once

    def received(self) -> list[Line]:
        return self._received()

    def break_down(self) -> None:
        self._break_down()

    def repair(self) -> None:
        self._repair()

    def tidy(self) -> None:
        """Closes what a crash has left open."""
        for sink in self.left:
            sink.close()


class _Noted(Sink):
    """Passes everything on, except `close` in a process that is dead, and notes what was taken."""

    def __init__(self, inner: Sink, subject: SinkSubject) -> None:
        super().__init__(inner.name, inner.options)
        self._inner, self._subject = inner, subject

    def check_columns(self, columns: pa.Schema) -> None:
        self._inner.check_columns(columns)

    def open(self) -> None:
        self._inner.check_turn = self.check_turn
        self._inner.open()

    def write(self, batch: DeltaBatch) -> None:
        self._inner.write(batch)
        self._subject.note(batch)

    def close(self) -> None:
        if self._subject.dead:
            self._subject.left.append(self._inner)
        else:
            self._inner.close()
