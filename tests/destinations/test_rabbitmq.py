"""Destinations of type rabbitmq, against a server that the tests start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cq_engine.core.errors import DestinationError
from cq_engine.destinations.brokers.rabbitmq import RabbitSink
from cq_engine.destinations.contract import World
from cq_engine.destinations.contract.world import row
from tests import brokers
from tests.brokers import Server
from tests.destinations.broker_tests import BrokerTests, Place, Received


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[Server]:
    if problem := brokers.missing(brokers.RABBITMQ, "pika"):
        pytest.skip(problem)
    with brokers.rabbitmq() as server:
        yield server


class TestRabbitMQ(BrokerTests):
    """The exchange and the queue bound to it have the place's name."""

    sink = RabbitSink
    kind = "rabbitmq"
    place_option = "exchange"

    def server(self, request: pytest.FixtureRequest) -> Server:
        found: Server = request.getfixturevalue("rabbitmq_server")
        return found

    def make(self, target: Place) -> None:
        self.reconnect(target)
        self.repair(target)

    def forget(self, target: Place) -> None:
        channel = target.client.channel()
        channel.exchange_delete(target.name)
        channel.queue_delete(target.name)
        target.client.close()

    def messages(self, target: Place) -> list[Received]:
        """Those in the queue, which stay in it."""
        channel, found = target.client.channel(), []
        while True:
            method, properties, body = channel.basic_get(target.name)
            if method is None:
                channel.close()  # which gives them back, in order
                return found
            assert properties.delivery_mode == 2
            assert properties.message_id == properties.headers["ce_id"]
            headers = dict(properties.headers)
            found.append(Received(headers.get("ce_partitionkey"), body, headers, properties.content_type))

    def break_down(self, target: Place) -> None:
        target.client.channel().exchange_delete(target.name)

    def repair(self, target: Place) -> None:
        channel = target.client.channel()
        channel.exchange_declare(target.name, "fanout", durable=True)
        channel.queue_declare(target.name, durable=True)
        channel.queue_bind(target.name, target.name)
        channel.close()

    def reconnect(self, target: Place) -> None:
        import pika

        target.client = pika.BlockingConnection(pika.URLParameters(target.server.url))

    def test_no_exchange(self, world: World, target: Place) -> None:
        self.break_down(target)
        assert f"no exchange '{target.name}'" in self.refusal(target, world).message

    def test_a_wrong_password(self, world: World, target: Place) -> None:
        target.environment.setenv("CQ_BROKER", target.server.url.replace("//", "//guest:hush42@"))
        error = self.refusal(target, world)
        assert "ACCESS_REFUSED" in error.message
        assert "hush42" not in error.render()

    def test_no_virtual_host(self, world: World, target: Place) -> None:
        target.environment.setenv("CQ_BROKER", f"{target.server.url}/other")
        assert "other" in self.refusal(target, world).message

    def test_what_no_queue_takes_is_a_failure(self, world: World, target: Place) -> None:
        target.client.channel().queue_unbind(target.name, target.name)
        version = world.refresh(("I", row(1)))
        subject = self.subject_with(world, target, routing_key="a.b")
        with pytest.raises(DestinationError, match=r"no queue for routing key a\.b"):
            subject.deliver()
        self.repair(target)
        subject.deliver()
        assert self.received(target) == [(version, "I", 1)]

    def test_routing_key(self, world: World, target: Place) -> None:
        world.refresh(("I", row(1)))
        self.subject_with(world, target).deliver()
        self.subject_with(world, target, routing_key="k").replay(0)
        self.subject_with(world, target, routing_key="k").deliver()
        channel: Any = target.client.channel()
        keys = [channel.basic_get(target.name)[0].routing_key for _ in range(2)]
        channel.close()
        assert keys == ["Totals", "k"]
