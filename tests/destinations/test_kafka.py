"""Destinations of type kafka, against the mock cluster that librdkafka has: no broker of Kafka's own was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from cq_engine.core.errors import AnalysisError, DestinationError, LeaseError
from cq_engine.destinations import Retry, check_declared
from cq_engine.destinations.brokers.kafka import KafkaSink, TransactionMark
from cq_engine.destinations.brokers.messages import Message
from cq_engine.destinations.contract import World
from cq_engine.destinations.contract.world import row
from tests import brokers
from tests.brokers import Server, free_port
from tests.destinations.broker_tests import BrokerTests, Place, Received

PARTITIONS = 4


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[Server]:
    pytest.importorskip("confluent_kafka")
    with brokers.kafka() as server:
        yield server


class OnePartition(KafkaSink):
    """So that all that was sent has one order."""

    partition = 0


class TestKafka(BrokerTests):
    sink = OnePartition
    kind = "kafka"
    place_option = "topic"
    can_be_killed = False

    def server(self, request: pytest.FixtureRequest) -> Server:
        found: Server = request.getfixturevalue("kafka_server")
        return found

    def options(self, target: Place) -> dict[str, str]:
        return {**super().options(target), "timeout": "2 seconds"}

    def make(self, target: Place) -> None:
        import confluent_kafka as kafka

        maker = kafka.Producer({"bootstrap.servers": f"127.0.0.1:{target.server.port}", "log_level": 0})
        maker.list_topics(target.name, timeout=5)  # which makes it
        while target.name not in maker.list_topics(timeout=5).topics:
            time.sleep(0.01)

    def messages(self, target: Place) -> list[Received]:
        """Those of all partitions, one after the other where there is more than one."""
        import confluent_kafka as kafka

        settings = {"bootstrap.servers": f"127.0.0.1:{target.server.port}", "group.id": "g", "log_level": 0}
        consumer = kafka.Consumer({**settings, "enable.partition.eof": True, "fetch.wait.max.ms": 10})
        try:
            consumer.assign([kafka.TopicPartition(target.name, n, 0) for n in range(PARTITIONS)])
            found, ended = [], 0
            while ended < PARTITIONS:
                message = consumer.poll(5)
                assert message is not None
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == kafka.KafkaError._PARTITION_EOF
                    ended += 1
        finally:
            consumer.close()
        made = []
        for message in found:
            headers = {name: value.decode() for name, value in message.headers()}
            content, key = headers.pop("content-type"), message.key()
            made.append(Received(None if key is None else key.decode(), message.value(), headers, content))
        return made

    def break_down(self, target: Place) -> None:
        target.environment.setenv("CQ_BROKER", f"kafka://127.0.0.1:{free_port()}")

    def repair(self, target: Place) -> None:
        target.environment.setenv("CQ_BROKER", target.server.url)

    def test_the_same_sink_goes_on_after_a_failure(
        self, world: World, target: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        version = world.refresh(("I", row(1)))
        subject = self.subject_with(world, target)
        subject.retry = Retry(attempts=2, base=0.01)
        send, calls = self.sink.send, list[int]()

        def once_late(sink: KafkaSink, made: Sequence[Message]) -> None:
            if not calls:
                calls.append(1)
                if sink._producer is not None:  # transactions have one from the first of them on
                    sink._producer.purge()
                raise TimeoutError
            send(sink, made)

        monkeypatch.setattr(self.sink, "send", once_late)
        subject.deliver()
        assert self.received(target) == [(version, "I", 1)]

    def test_a_key_stays_in_its_partition(
        self, world: World, target: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(self.sink, "partition", -1)
        versions = [world.refresh(*(("U", row(n), row(n, f"v{m}")) for n in range(20))) for m in range(5)]
        self.subject_with(world, target).deliver()
        got = self.received(target)
        assert sorted(got) == sorted((version, "U", n) for version in versions for n in range(20))
        for n in range(20):
            assert [version for version, _, number in got if number == n] == versions

    def test_no_topic(self, world: World, target: Place) -> None:
        assert "there is no topic other" in self.refusal(target, world, topic="other").message

    def test_a_setting_that_librdkafka_has_not(self, world: World, target: Place) -> None:
        target.environment.setenv("CQ_BROKER", f"{target.server.url}?no.such.setting=1")
        assert "no.such.setting" in self.refusal(target, world).message

    def test_what_the_engine_needs_cannot_be_set(self, world: World, target: Place) -> None:
        target.environment.setenv("CQ_BROKER", f"{target.server.url}?acks=0&enable.idempotence=false")
        version = world.refresh(("I", row(1)))
        self.subject_with(world, target).deliver()
        assert self.received(target) == [(version, "I", 1)]

    def test_a_password_of_a_setting_is_a_secret(self, target: Place) -> None:
        with pytest.raises(AnalysisError, match=r"has ssl\.key\.password in it"):
            check_declared(self.declared(target, url="kafka://host?ssl.key.password=hush"))

    def test_a_message_that_is_too_large(self, world: World, target: Place) -> None:
        """What has the same key and follows it is not sent before it."""
        world.catalog.limits = type(world.catalog.limits)()
        world.refresh(("I", row(1, "x")), ("D", row(2, "x" * 2_000_000)), ("I", row(3, "x")))
        with pytest.raises(DestinationError, match="too large"):
            self.subject_with(world, target, key="amount").deliver()
        assert [each.headers["ce_id"][-1] for each in self.messages(target)] == ["1"]


class Watched:
    """A transactional producer. The mock cluster takes offsets in transactions and forgets them: they are kept here."""

    def __init__(self, inner: Any, sink: Transactional) -> None:
        self._inner, self._sink = inner, sink
        self._pending: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin_transaction(self) -> None:
        self._sink.calls.append("begin")
        self._inner.begin_transaction()

    def send_offsets_to_transaction(self, places: Any, *more: Any) -> None:
        self._sink.calls.append("offsets")
        self._fail("offsets")
        self._inner.send_offsets_to_transaction(places, *more)
        ((place),) = places
        self._pending = (place.offset, place.metadata)

    def commit_transaction(self, *more: Any) -> None:
        self._sink.calls.append("commit")
        self._inner.commit_transaction(*more)
        self._sink.kept[self._sink.of] = self._pending
        self._fail("commit")

    def abort_transaction(self, *more: Any) -> None:
        self._inner.abort_transaction(*more)  # raises where none is open
        self._sink.calls.append("abort")

    def _fail(self, call: str) -> None:
        import confluent_kafka as kafka

        if call in self._sink.fails:
            self._sink.fails.remove(call)
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))


class Transactional(OnePartition):
    exactly_once = True
    kept: ClassVar[dict[str, tuple[int, str]]] = {}
    calls: ClassVar[list[str]] = []
    fails: ClassVar[list[str]] = []
    """Calls that raise once: `commit` when the cluster has carried it out."""
    of = ""

    def _begin(self, of: str) -> None:
        self.of = f"{of}/{self.options['topic']}"
        super()._begin(of)
        self._producer = Watched(self._producer, self)

    def read_mark(self) -> TransactionMark | None:
        assert super().read_mark() is None
        found = self.kept.get(self.of)
        return None if found is None else TransactionMark.read(*found)


class TestTransactional(TestKafka):
    """What the engine says to a cluster, and what it does with the answers. That a transaction is all or nothing for its
    readers, and that a second producer ends the first, is the cluster's part, which the mock cluster does not have."""

    sink = Transactional

    def options(self, target: Place) -> dict[str, str]:
        return {**super().options(target), "transactional": "true"}

    @pytest.fixture(autouse=True)
    def quiet(self) -> None:
        Transactional.calls.clear()
        Transactional.fails.clear()

    def test_a_message_that_is_too_large(self, world: World, target: Place) -> None:
        """Takes what is in its transaction with it."""
        world.refresh(("I", row(1)), ("I", row(2, "x" * 2_000_000)))
        with pytest.raises(DestinationError, match="too large"):
            self.subject_with(world, target, timeout="10 seconds").deliver()
        assert self.sink.calls == ["begin", "abort"]

    def test_one_transaction_per_commit(self, world: World, target: Place) -> None:
        world.catalog.limits = type(world.catalog.limits)()
        versions = [world.refresh(*(("I", row(n)) for n in range(30))) for _ in range(3)]
        self.subject_with(world, target, timeout="10 seconds").deliver()
        assert self.sink.calls == ["begin", "offsets", "commit"] * 3
        assert self.received(target) == [(version, "I", n) for version in versions for n in range(30)]

    def test_a_commit_whose_answer_is_lost(self, world: World, target: Place) -> None:
        versions = [world.refresh(("I", row(n)), ("I", row(n + 10))) for n in range(3)]
        subject = self.subject_with(world, target, timeout="10 seconds")
        self.sink.fails.append("commit")
        with pytest.raises(DestinationError, match="Timed out"):
            subject.deliver()
        subject.deliver()
        expected = [(version, "I", n + more) for n, version in enumerate(versions) for more in (0, 10)]
        assert self.received(target) == expected

    def test_what_fails_before_the_commit_is_aborted(self, world: World, target: Place) -> None:
        """And comes again, in a transaction of its own."""
        version = world.refresh(("I", row(1)))
        subject = self.subject_with(world, target, timeout="10 seconds")
        self.sink.fails.append("offsets")
        with pytest.raises(DestinationError, match="Timed out"):
            subject.deliver()
        assert self.sink.calls == ["begin", "offsets", "abort"]
        subject.deliver()
        assert self.sink.calls[3:] == ["begin", "offsets", "commit"]
        assert set(self.received(target)) == {(version, "I", 1)}  # of which readers of a cluster see one

    def test_a_part_of_a_commit_that_has_come(self, world: World, target: Place) -> None:
        """Also where the parts are not those of the last time."""
        version = world.refresh(*(("I", row(n)) for n in range(6)))
        when = round(world.catalog.timestamp(version).timestamp() * 1000)
        self.sink.kept[f"token/10/{target.name}"] = (version, f"4 {when}")
        self.subject_with(world, target, timeout="10 seconds").deliver()
        assert self.received(target) == [(version, "I", 4), (version, "I", 5)]

    def test_a_warehouse_that_was_restored(self, world: World, target: Place) -> None:
        """Has other commits by the numbers that the mark knows."""
        self.sink.kept[f"token/10/{target.name}"] = (1, "6 1000")
        version = world.refresh(("I", row(1)))
        assert version == 1
        self.subject_with(world, target, timeout="10 seconds").deliver()
        assert self.received(target) == [(version, "I", 1)]

    def test_a_process_that_has_lost_the_duties_meanwhile(
        self, world: World, target: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was stopped before it began with its transactions: that ends its successor's, and it must not send again what
        the successor has sent."""
        version = world.refresh(("I", row(1)))
        subject = self.subject_with(world, target, timeout="10 seconds")
        begin = Transactional._begin

        def begun_late(sink: Transactional, of: str) -> None:
            begin(sink, of)
            monkeypatch.setattr(world.catalog, "check_lease", lost)

        def lost() -> None:
            raise LeaseError("another process has the duties")

        with monkeypatch.context() as only_here:
            only_here.setattr(Transactional, "_begin", begun_late)
            check_lease = world.catalog.check_lease
            with pytest.raises(LeaseError):
                subject.deliver()
        monkeypatch.setattr(world.catalog, "check_lease", check_lease)
        assert self.sink.calls == []
        assert self.received(target) == []
        subject.deliver()
        assert self.received(target) == [(version, "I", 1)]
