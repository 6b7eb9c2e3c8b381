"""Destinations of type nats, against a server that the tests start: JetStream keeps the messages."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cq_engine.core.errors import AnalysisError
from cq_engine.destinations import check_declared
from cq_engine.destinations.brokers.nats_jetstream import NatsSink
from cq_engine.destinations.contract import World
from cq_engine.destinations.contract.world import row
from tests import brokers
from tests.brokers import Server, free_port
from tests.destinations.broker_tests import BrokerTests, Place, Received


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Server]:
    if problem := brokers.missing("nats-server", "nats"):
        pytest.skip(problem)
    with brokers.nats() as server:
        yield server


def ask(target: Place, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """What `work` gives with JetStream of a connection of its own."""

    async def run() -> Any:
        import nats

        client = await nats.connect(target.server.url, max_reconnect_attempts=3, reconnect_time_wait=0.1)
        try:
            return await work(client.jetstream(timeout=5))
        finally:
            await client.close()

    return asyncio.run(run())


class Nats(NatsSink):
    """Within the stream's window what comes again is dropped."""

    exactly_once = True


class TestNats(BrokerTests):
    sink = Nats
    kind = "nats"
    place_option = "subject"

    def server(self, request: pytest.FixtureRequest) -> Server:
        found: Server = request.getfixturevalue("nats_server")
        return found

    def make(self, target: Place) -> None:
        ask(
            target,
            lambda stream: stream.add_stream(name=target.name, subjects=[target.name]),
        )

    def forget(self, target: Place) -> None:
        ask(target, lambda stream: stream.delete_stream(target.name))

    def messages(self, target: Place) -> list[Received]:
        from nats.js.errors import NotFoundError

        async def read(stream: Any) -> list[Received]:
            try:
                count = (await stream.stream_info(target.name)).state.messages
            except NotFoundError:
                return []
            consumer = await stream.pull_subscribe(target.name, stream=target.name)
            found: list[Received] = []
            while len(found) < count:
                for each in await consumer.fetch(min(500, count - len(found)), timeout=5):
                    headers = dict(each.headers)
                    content = headers.pop("Content-Type")
                    assert headers.pop("Nats-Msg-Id") == headers["ce_id"]
                    found.append(Received(headers.get("ce_partitionkey"), each.data, headers, content))
                    await each.ack()
            return found

        got: list[Received] = ask(target, read)
        return got

    def break_down(self, target: Place) -> None:
        with suppress(Exception):
            self.forget(target)

    def repair(self, target: Place) -> None:
        self.make(target)

    def test_no_stream(self, world: World, target: Place) -> None:
        self.break_down(target)
        error = self.refusal(target, world)
        assert f"no stream of JetStream keeps subject {target.name}" in error.message

    def test_an_account(self, world: World, target: Place) -> None:
        with tempfile.TemporaryDirectory() as directory:
            server = Server("nats", free_port(), [])
            server.command = [
                *("nats-server", "-a", "127.0.0.1", "-p", str(server.port), "-js", "-sd", directory),
                *("--user", "me", "--pass", "hu/sh42"),
            ]
            server.start()
            try:
                for password, said in (("wr%2Fong", "uthorization"), ("hu%2Fsh42", "no stream of JetStream")):
                    target.environment.setenv("CQ_BROKER", server.url.replace("//", f"//me:{password}@"))
                    error = self.refusal(target, world)
                    assert said in error.message
                    assert "ong" not in error.render().replace("ongoing", "")
                    assert "sh42" not in error.render()
            finally:
                server.kill()

    def test_without_jetstream(self, world: World, target: Place, tmp_path: Path) -> None:
        server = Server("nats", free_port(), [])
        server.command = ["nats-server", "-a", "127.0.0.1", "-p", str(server.port)]
        server.start()
        try:
            target.environment.setenv("CQ_BROKER", server.url)
            assert "ServiceUnavailable" in self.refusal(target, world).message
        finally:
            server.kill()

    def test_a_token_is_a_secret(self, target: Place) -> None:
        with pytest.raises(AnalysisError, match="has a token in it"):
            check_declared(self.declared(target, url="nats://hush@host"))

    def test_a_message_that_the_stream_refuses(self, world: World, target: Place) -> None:
        """What has the same key and follows it is not sent before it."""
        ask(
            target,
            lambda stream: stream.update_stream(name=target.name, subjects=[target.name], max_msg_size=2000),
        )
        world.catalog.limits = type(world.catalog.limits)()
        world.refresh(("I", row(1, "x")), ("D", row(2, "x" * 3000)), ("I", row(3, "x")))
        subject = self.subject_with(world, target, key="amount")
        with pytest.raises(Exception, match="maximum"):
            subject.deliver()
        assert [json.loads(each.body)["sequence"] for each in self.messages(target)] == [1]
