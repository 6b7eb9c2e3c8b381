"""What every broker has to pass: the contract suite, and what is sent, refused, lost with the server and sent again."""

from __future__ import annotations

import json
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.errors import AnalysisError, DestinationError
from cq_engine.destinations import Retry, check_declared, reach
from cq_engine.destinations.brokers.broker import BrokerSink
from cq_engine.destinations.contract import Line, SinkContract, SinkSubject, World
from cq_engine.destinations.contract.world import row
from cq_engine.destinations.dead_letters import give_up
from tests.brokers import Server, free_port


@dataclass(frozen=True)
class Received:
    key: str | None
    body: bytes
    headers: dict[str, str]
    content_type: str


@dataclass
class Place:
    """Where a test's messages go: a name of its own on the server that the tests share."""

    server: Server
    name: str
    environment: pytest.MonkeyPatch
    client: Any = None


class BrokerTests(SinkContract):
    """A subclass has `sink`, `kind`, and says how its broker is asked."""

    sink: ClassVar[type[BrokerSink]]
    kind: ClassVar[str]
    place_option: ClassVar[str]
    can_be_killed: ClassVar[bool] = True

    @abstractmethod
    def messages(self, target: Place) -> list[Received]:
        """What the place has, in its order."""

    @abstractmethod
    def make(self, target: Place) -> None:
        """Makes the place, and a client to look at it."""

    def forget(self, target: Place) -> None:
        """Ends the client."""

    @abstractmethod
    def server(self, request: pytest.FixtureRequest) -> Server: ...

    @pytest.fixture
    def target(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
        made = Place(self.server(request), f"cq{time.time_ns()}", monkeypatch)
        monkeypatch.setenv("CQ_BROKER", made.server.url)
        self.make(made)
        yield made
        with suppress(Exception):
            self.forget(made)

    def options(self, target: Place) -> dict[str, str]:
        return {"url": "${CQ_BROKER}", self.place_option: target.name, "timeout": "5 seconds"}

    def received(self, target: Place) -> list[Line]:
        lines = []
        for each in self.messages(target):
            delta = json.loads(each.body)
            marker = {"c": "I", "u": "U", "d": "D"}[delta["op"]]
            lines.append((delta["commit_version"], marker, (delta["after"] or delta["before"])["id"]))
        return lines

    def declared(self, target: Place, **options: str) -> DeclaredDestination:
        given = {**self.options(target), **options}
        return DeclaredDestination("d", self.kind.upper(), tuple(given.items()), token="t1")

    def refusal(self, target: Place, world: World, **options: str) -> DestinationError:
        with pytest.raises(DestinationError) as raised:
            reach(self.declared(target, **options), world.services)
        return raised.value

    def subject_with(self, world: World, target: Place, **options: str) -> SinkSubject:
        given = {**self.options(target), **options}
        return SinkSubject(
            world, self.sink, given, received=list, break_down=lambda: None, repair=lambda: None
        )

    # ------------------------------------------------------------ what is sent

    def test_what_is_sent(self, world: World, target: Place) -> None:
        version = world.refresh(("I", row(1, 'ü"')), ("U", row(2, "a"), row(2, "b")), ("D", row(3)))
        self.subject_with(world, target).deliver()
        when = world.catalog.timestamp(version).isoformat()
        first, second, third = self.messages(target)
        assert json.loads(second.body) == {
            "query": "Totals", "commit_version": version, "commit_time": when, "op": "u", "key": {"ID": 2}, "sequence": 2,
            "before": {"id": 2, "name": "a", "amount": "1.50"}, "after": {"id": 2, "name": "b", "amount": "1.50"},
        }  # fmt: skip
        assert json.loads(first.body)["after"]["name"] == 'ü"'
        assert [each.key for each in (first, second, third)] == ['{"ID":1}', '{"ID":2}', '{"ID":3}']
        assert third.content_type == "application/json"
        assert third.headers == {
            "ce_specversion": "1.0", "ce_id": f"token/10/{version}/3", "ce_source": "/cq/sink/Totals",
            "ce_type": "cq.delta.d", "ce_time": when, "ce_partitionkey": '{"ID":3}', "cq_query": "Totals",
            "cq_commit_version": str(version),
            "cq_commit_time_ms": str(int(world.catalog.timestamp(version).timestamp() * 1000)),
        }  # fmt: skip

    def test_the_option_key(self, world: World, target: Place) -> None:
        world.refresh(
            ("I", row(1, "x")), ("U", row(2, "x"), row(2, "y")), ("D", row(3, "x")), ("I", row(4, "x"))
        )
        self.subject_with(world, target, key="NAME").deliver()
        assert [each.key for each in self.messages(target)] == [f'{{"name":"{n}"}}' for n in "xyxx"]
        destination = self.subject_with(world, target, key="nmae").destination
        with pytest.raises(DestinationError, match="no column nmae"):
            destination.check()

    def test_a_large_commit(self, world: World, target: Place) -> None:
        world.catalog.limits = type(world.catalog.limits)()
        version = world.refresh(*(("I", row(n)) for n in range(2000)))
        self.subject_with(world, target).deliver()
        assert self.received(target) == [(version, "I", n) for n in range(2000)]

    # ------------------------------------------------------------ trouble

    def test_killed_in_the_middle_of_a_delivery(self, world: World, target: Place) -> None:
        """Nothing is lost, each commit is whole before the next one begins, and what comes twice has the same id."""
        if not self.can_be_killed:
            pytest.skip("it lives in this process")
        world.catalog.limits = type(world.catalog.limits)()
        versions = [world.refresh(*(("I", row(n)) for n in range(20))) for _ in range(200)]
        subject = self.subject_with(world, target)
        reached = threading.Event()
        note = subject.note

        def noted(batch: Any) -> None:
            note(batch)
            if len(subject.batches) == 5:
                reached.set()

        subject.note = noted  # type: ignore[method-assign]
        killer = threading.Thread(target=lambda: (reached.wait(60), target.server.kill()))
        killer.start()
        with pytest.raises(DestinationError):
            subject.deliver()
        killer.join()
        assert 5 <= len(subject.batches) < 200
        assert subject.destination.cursor.failures == 1
        with pytest.raises(DestinationError):
            subject.deliver()
        target.server.start(120)
        self.reconnect(target)
        subject.deliver()
        got = self.messages(target)
        expected = [f"token/10/{version}/{n + 1}" for version in versions for n in range(20)]
        assert list(dict.fromkeys(each.headers["ce_id"] for each in got)) == expected
        assert len({(each.headers["ce_id"], each.body) for each in got}) == len(expected)
        assert len(got) <= len(expected) + 20

    def reconnect(self, target: Place) -> None:
        """A client that looks at the place goes on with a server that was started again."""

    def test_the_same_sink_goes_on_after_a_failure(
        self, world: World, target: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        version = world.refresh(("I", row(1)))
        subject = self.subject_with(world, target)
        subject.retry = Retry(attempts=2, base=0.01)
        self.break_down(target)
        pause = Retry.pause

        def repaired(retry: Retry, failures: int) -> float:
            self.repair(target)
            return pause(retry, failures)

        monkeypatch.setattr(Retry, "pause", repaired)
        subject.deliver()
        assert self.received(target) == [(version, "I", 1)]

    def test_poison_goes_to_the_dead_letters(
        self, world: World, target: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from cq_engine.destinations import with_dead_letters

        send = self.sink.send

        def refuse(sink: Any, made: Any) -> None:
            if any(b'"id":1,' in each.body for each in made):
                raise ValueError("poison")
            send(sink, made)

        monkeypatch.setattr(self.sink, "send", refuse)
        first, _, third = (world.refresh(("I", row(n))) for n in range(3))
        with world.catalog.write() as unit:
            unit.set_state(with_dead_letters(world.catalog.state, "sink", third))
        subject = self.subject_with(world, target)
        with pytest.raises(DestinationError, match="poison"):
            subject.deliver()
        list(give_up(subject.destination, third))
        subject.deliver()
        assert self.received(target) == [(first, "I", 0), (third, "I", 2)]
        assert subject.destination.cursor.dead == 1

    # ------------------------------------------------------------ CREATE

    def test_create(self, world: World, target: Place) -> None:
        declared = self.declared(target)
        check_declared(declared)
        reach(declared, world.services)

    def test_a_broker_that_is_down_is_no_error_at_create(self, world: World, target: Place) -> None:
        target.environment.setenv("CQ_BROKER", f"{target.server.scheme}://me:hush42@127.0.0.1:{free_port()}")
        begun = time.monotonic()
        reach(self.declared(target, timeout="1 second"), world.services)
        world.refresh(("I", row(1)))
        with pytest.raises(DestinationError) as raised:
            self.subject_with(world, target, timeout="1 second").deliver()
        assert time.monotonic() - begun < 8
        assert f"{target.server.scheme}://127.0.0.1:" in raised.value.message
        assert "hush42" not in raised.value.render()

    def test_declarations(self, target: Place) -> None:
        scheme = target.server.scheme
        for options, said in (
            ({"url": f"{scheme}://me:hush@host"}, "has a password in it"),
            ({"url": f"{scheme}://host?password=hush"}, "has password in it"),
            ({"url": "http://host"}, "is not possible"),
            ({"format": "xml"}, "is not possible"),
            ({"timeout": "0 seconds"}, "is not possible"),
            ({self.place_option: ""}, "is not possible"),
        ):
            with pytest.raises(AnalysisError, match=said):
                check_declared(self.declared(target, **options))

    def test_without_the_library(self, world: World, target: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, self.sink.package, None)
        error = self.refusal(target, world)
        assert f"pip install 'cq-engine[{self.sink.extra}]'" in error.hint
