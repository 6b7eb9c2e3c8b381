"""Destinations of type kafka, against the mock cluster that librdkafka has: no broker of Kafka's own was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from cq_engine.core.errors import AnalysisError, DestinationError
from cq_engine.destinations import Retry, check_declared
from cq_engine.destinations.brokers.kafka import KafkaSink
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

        consumer = kafka.Consumer(
            {"bootstrap.servers": f"127.0.0.1:{target.server.port}", "group.id": "g", "log_level": 0}
        )
        try:
            places = [kafka.TopicPartition(target.name, n, 0) for n in range(PARTITIONS)]
            count = sum(consumer.get_watermark_offsets(place, timeout=5)[1] for place in places)
            consumer.assign(places)
            found = []
            while len(found) < count:
                message = consumer.poll(5)
                assert message is not None
                assert message.error() is None
                found.append(message)
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
                calls.append(sink._producer.purge())
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
