"""The tests: what `cq_engine.destinations.Destination` promises, of any destination."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cq_engine.catalog.store import Catalog
from cq_engine.core import faults
from cq_engine.core.errors import DestinationError
from cq_engine.destinations.callback import CallbackDestination
from cq_engine.destinations.contract.subject import SinkSubject, Subject
from cq_engine.destinations.contract.world import Crash, Line, World, crash_point, row
from cq_engine.destinations.envelope import DeltaBatch
from cq_engine.destinations.installed import check_class
from cq_engine.destinations.sink import Sink, sink_kind

__all__ = ["DestinationContract", "SinkContract"]


class DestinationContract:
    """Needs a fixture `subject`. A commit of more than two deltas comes in several batches where it may."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[World]:
        made = World(tmp_path / "warehouse")
        made.catalog.limits = replace(made.catalog.limits, batch_deltas=2)
        yield made
        made.catalog.close()

    def test_order_over_several_deliveries(self, subject: Subject) -> None:
        first = subject.world.refresh(("I", row(1)), ("I", row(2)), ("I", row(3)))
        second = subject.world.refresh(("D", row(2)))
        subject.deliver()
        third = subject.world.refresh(("I", row(9)), ("U", row(1), row(1, "x")), ("I", row(4)))
        subject.deliver()
        assert subject.received() == [
            (first, "I", 1),
            (first, "I", 2),
            (first, "I", 3),
            (second, "D", 2),
            (third, "I", 9),
            (third, "U", 1),
            (third, "I", 4),
        ]

    def test_only_selected_markers(self, subject: Subject) -> None:
        world = subject.world
        world.select("I", "D")
        a = world.refresh(("I", row(1)), ("U", row(2), row(2, "new")), ("D", row(3)))
        world.refresh(("U", row(1), row(1, "other")))
        subject.deliver()
        assert subject.received() == [(a, "I", 1), (a, "D", 3)]
        assert subject.destination.cursor.version >= a + 1

    def test_where_nothing_is_selected_only_the_cursor_moves(self, subject: Subject) -> None:
        world = subject.world
        world.select("D")
        upto = world.refresh(("I", row(1)))
        delivered = subject.deliver()
        assert delivered is not None
        assert (delivered.deltas, delivered.version, dict(delivered.changed)) == (0, None, {})
        assert world.catalog.newest_version == upto
        assert (subject.destination.cursor.version, subject.destination.cursor.sequence) == (upto, 0)

    def test_commits_without_deltas_are_passed_over(self, subject: Subject) -> None:
        world = subject.world
        empty = world.refresh()
        subject.deliver(empty)
        assert subject.destination.cursor.version == empty
        version = world.refresh(("I", row(1)))
        world.refresh()
        subject.deliver()
        assert subject.received() == [(version, "I", 1)]

    def test_nothing_comes_twice(self, subject: Subject) -> None:
        subject.world.refresh(("I", row(1)))
        upto = subject.world.catalog.newest_version
        assert subject.deliver(upto) is not None
        assert subject.deliver(upto) is None
        subject.deliver()
        assert len(subject.received()) == 1

    def test_delivers_only_up_to_the_version_it_is_told(self, subject: Subject) -> None:
        first = subject.world.refresh(("I", row(1)))
        second = subject.world.refresh(("I", row(2)))
        subject.deliver(first)
        assert subject.received() == [(first, "I", 1)]
        subject.deliver(second)
        assert subject.received() == [(first, "I", 1), (second, "I", 2)]

    def test_starts_at_its_cursor(self, subject: Subject) -> None:
        first = subject.world.refresh(("I", row(1)))
        second = subject.world.refresh(("I", row(2)))
        subject.world.start_at(subject.destination, first)
        subject.deliver()
        assert subject.received() == [(second, "I", 2)]

    def test_starts_in_the_middle_of_a_version(self, subject: Subject) -> None:
        if subject.destination.remembers:
            pytest.skip("its transactions end between versions")
        version = subject.world.refresh(("I", row(1)), ("I", row(2)), ("U", row(3), row(3, "x")))
        subject.world.start_at(subject.destination, version, 1)
        subject.deliver()
        assert subject.received() == [(version, "I", 2), (version, "U", 3)]

    def test_a_failure_is_counted_and_loses_nothing(self, subject: Subject) -> None:
        first = subject.world.refresh(("I", row(1)))
        subject.break_down()
        for failures in (1, 2):
            with pytest.raises(DestinationError) as raised:
                subject.deliver()
            cursor = subject.destination.cursor
            assert (cursor.version, cursor.failures, cursor.error) == (0, failures, raised.value.message)
        subject.repair()
        second = subject.world.refresh(("D", row(1)))
        subject.deliver()
        assert subject.received() == [(first, "I", 1), (second, "D", 1)]
        assert (subject.destination.cursor.failures, subject.destination.cursor.error) == (0, "")

    def test_a_failure_delays_no_other_destination(self, subject: Subject) -> None:
        world = subject.world
        subject.break_down()
        got: list[DeltaBatch] = []
        for expected in (1, 2):
            upto = world.refresh(("I", row(expected)))
            with pytest.raises(DestinationError):
                subject.deliver()
            other = CallbackDestination(world.services, world.query, "other", got.append)
            other.deliver(upto)
            assert (len(got), other.cursor.version) == (expected, upto)
            assert subject.destination.cursor.version == 0

    @pytest.mark.parametrize("point", ["deliver.begin", "deliver.before_cursor", "deliver.after_cursor"])
    @pytest.mark.parametrize("hit", [1, 2, 3])
    def test_a_crash_loses_nothing(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch, point: str, hit: int
    ) -> None:
        first = subject.world.refresh(*(("I", row(n)) for n in range(5)))
        second = subject.world.refresh(("U", row(1), row(1, "x")))
        expected = [(first, "I", n) for n in range(5)] + [(second, "U", 1)]
        with monkeypatch.context() as patch:
            patch.setattr(faults, "point", crash_point(point, hit))
            if subject.destination.exactly_once and hit > 1:
                subject.deliver(second)  # one delivery is one transaction, and passes each point once
            else:
                subject.dead = True
                with pytest.raises(Crash):
                    subject.deliver(second)
        subject.dead = False
        subject.deliver(second)
        if subject.exactly_once:
            assert subject.received() == expected
            return
        batches = subject.batches
        assert subject.received() == [line for batch in batches for line in batch]
        once = [batch for n, batch in enumerate(batches) if n == 0 or batches[n - 1] != batch]
        assert [line for batch in once for line in batch] == expected
        repeated = [n for n, (a, b) in enumerate(pairwise(batches)) if a == b]
        assert len(repeated) == (1 if point == "deliver.before_cursor" else 0)
        for n in repeated:
            assert subject.keys[n] == subject.keys[n + 1]

    def test_replay_gives_it_again(self, subject: Subject) -> None:
        first = subject.world.refresh(("I", row(1)))
        second = subject.world.refresh(("U", row(1), row(1, "x")), ("I", row(2)))
        subject.deliver()
        before = subject.received()
        subject.replay(first)
        subject.deliver()
        again: list[Line] = [(second, "U", 1), (second, "I", 2)]
        if subject.exactly_once and not subject.destination.exactly_once:
            again = []  # a sink that has the keys
        assert subject.received() == before + again
        if subject.keys:
            assert subject.keys[-1] == subject.keys[-2]

    def test_survives_a_restart(self, subject: Subject) -> None:
        world = subject.world
        world.refresh(("I", row(1)))
        subject.deliver()
        cursor = subject.destination.cursor
        world.catalog.close()
        again = Catalog.open(world.catalog.warehouse, clock=world.clock)
        try:
            found = again.cursor("TOTALS", cursor.destination)
            assert found is not None
            assert replace(found, query=cursor.query) == cursor
        finally:
            again.close()


class SinkContract(DestinationContract, ABC):
    """The suite for a `Sink`: a subclass, whose name begins with Test, says which, and how its target is looked at.

    `target` is a fixture, by default an empty directory; a subclass may have another, such as a server.
    """

    sink: ClassVar[type[Sink]]

    @abstractmethod
    def options(self, target: Any) -> Mapping[str, str]:
        """What WITH (...) says."""

    @abstractmethod
    def received(self, target: Any) -> list[Line]:
        """Of each delta that the target has, in the order in which it came: commit version, marker, and the value of the
        result column `id` (for D that of the old row)."""

    @abstractmethod
    def break_down(self, target: Any) -> None:
        """Makes deliveries fail until `repair`; the target has nothing yet."""

    @abstractmethod
    def repair(self, target: Any) -> None:
        """Makes deliveries possible again."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Any:
        made = tmp_path / "target"
        made.mkdir()
        return made

    @pytest.fixture
    def subject(self, world: World, target: Any) -> Iterator[SinkSubject]:
        made = SinkSubject(
            world,
            self.sink,
            self.options(target),
            received=lambda: self.received(target),
            break_down=lambda: self.break_down(target),
            repair=lambda: self.repair(target),
        )
        yield made
        made.tidy()

    def test_the_engine_takes_the_class_and_its_options(self, target: Any) -> None:
        assert check_class(self.sink) is self.sink
        kind, given = sink_kind("CONTRACT", self.sink), self.options(target)
        for name, option in kind.options.items():
            assert name in given or option.default is not None, f"options() has no {name}"
            option.check(given.get(name, option.default or ""))
        assert given.keys() <= kind.options.keys()
