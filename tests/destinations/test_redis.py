"""Destinations of type redis, against a server that the tests start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cq_engine.destinations.brokers.redis_streams import RedisSink
from cq_engine.destinations.contract import World
from cq_engine.destinations.contract.world import row
from tests import brokers
from tests.brokers import Server
from tests.destinations.broker_tests import BrokerTests, Place, Received


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    if problem := brokers.missing("redis-server", "redis"):
        pytest.skip(problem)
    with brokers.redis() as server:
        yield server


class TestRedis(BrokerTests):
    sink = RedisSink
    kind = "redis"
    place_option = "stream"

    def server(self, request: pytest.FixtureRequest) -> Server:
        found: Server = request.getfixturevalue("redis_server")
        return found

    def make(self, target: Place) -> None:
        import redis

        target.client = redis.Redis(port=target.server.port, decode_responses=True)

    def forget(self, target: Place) -> None:
        target.client.delete(target.name)
        target.client.close()

    def messages(self, target: Place) -> list[Received]:
        if target.client.type(target.name) == "string":
            return []
        found = []
        for _, entry in target.client.xrange(target.name):
            content, body = entry.pop("content_type"), entry.pop("body").encode()
            found.append(Received(entry.pop("key", None), body, entry, content))
        return found

    def break_down(self, target: Place) -> None:
        target.client.set(target.name, "no stream")

    def repair(self, target: Place) -> None:
        target.client.delete(target.name)

    def test_what_is_no_stream(self, world: World, target: Place) -> None:
        self.break_down(target)
        assert f"{target.name} is a string, and no stream" in self.refusal(target, world).message

    def test_a_wrong_password(self, world: World, target: Place) -> None:
        target.environment.setenv("CQ_BROKER", target.server.url.replace("//", "//me:hush42@"))
        error = self.refusal(target, world)
        assert "AuthenticationError" in error.message
        assert "hush42" not in error.render()

    def test_a_bounded_stream(self, world: World, target: Place) -> None:
        world.catalog.limits = type(world.catalog.limits)()
        world.refresh(*(("I", row(n)) for n in range(1000)))
        self.subject_with(world, target, maxlen="100").deliver()
        assert 100 <= len(self.messages(target)) <= 300
