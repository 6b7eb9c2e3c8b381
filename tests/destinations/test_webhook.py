"""Webhooks, against servers that accept, refuse, ask to wait, stall, lie and answer twice."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.errors import AnalysisError, DestinationError
from cq_engine.core.retry import Retry
from cq_engine.destinations import Callbacks, Delivered, Destination, resolve
from cq_engine.destinations.contract import DestinationContract, Line, Subject, World
from cq_engine.destinations.dead_letters import give_up
from cq_engine.destinations.kinds import check_declared
from cq_engine.destinations.webhook import _retry_after, signature
from cq_engine.grammar.clauses import DestinationRef
from tests.limits import limit

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Server:
    """An HTTP server; `plan` has the status and headers of the answers to come, after which all is well."""

    url: str = ""
    plan: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes, int]] = field(default_factory=list)

    def accepted(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body, status in self.requests if status < 300]


@pytest.fixture
def server() -> Iterator[Server]:
    known = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers = known.plan.pop(0) if known.plan else (204, {})
            known.requests.append((dict(self.headers), body, status))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        known.url = f"http://127.0.0.1:{http.server_address[1]}/hook?x=1"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield known
        http.shutdown()
        thread.join()


@pytest.fixture
def raw() -> Iterator[Callable[[Callable[[socket.socket, int], None]], str]]:
    """raw(answer): the URL of a server that hands each connection, and its number, to `answer`."""
    stopped = threading.Event()
    threads: list[threading.Thread] = []

    def start(answer: Callable[[socket.socket, int], None]) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.settimeout(0.05)

        def serve() -> None:
            number = 0
            with listening:
                while not stopped.is_set():
                    try:
                        connection, _ = listening.accept()
                    except TimeoutError:
                        continue
                    with connection:
                        number += 1
                        connection.recv(100_000)
                        with suppress(OSError):
                            answer(connection, number)

        thread = threading.Thread(target=serve)
        thread.start()
        threads.append(thread)
        return f"http://127.0.0.1:{listening.getsockname()[1]}/"

    yield start
    stopped.set()
    for thread in threads:
        thread.join()


def hook(world: Any, url: str, **options: str) -> Destination:
    declared = DeclaredDestination("hook", "WEBHOOK", tuple({"url": url, **options}.items()), token="t1")
    known = {"hook": declared}
    check_declared(declared)
    reference = DestinationRef("hook")
    return resolve(
        world.services, world.query, reference, Callbacks(), declared=known, retry=Retry(attempts=1)
    )


class HookSubject(Subject):
    """A webhook under the contract suite: what its server has accepted is what it has received."""

    def __init__(self, world: World, server: Server) -> None:
        super().__init__(world)
        self.server = server

    @property
    def destination(self) -> Destination:
        return hook(self.world, self.server.url)

    def deliver(self, upto: int | None = None) -> Delivered | None:
        try:
            return super().deliver(upto)
        finally:
            taken = [headers for headers, _, status in self.server.requests if status < 300]
            self.keys = [headers["Idempotency-Key"] for headers in taken]  # type: ignore[misc]
            self.batches = [self._lines(content) for content in self.server.accepted()]

    @staticmethod
    def _lines(content: dict[str, Any]) -> list[Line]:
        markers = {"c": "I", "u": "U", "d": "D"}
        return [
            (content["commit_version"], markers[d["op"]], (d["after"] or d["before"])["id"])
            for d in content["deltas"]
        ]

    def received(self) -> list[Line]:
        return [line for content in self.server.accepted() for line in self._lines(content)]

    def break_down(self) -> None:
        self.server.plan = [(503, {})] * 99

    def repair(self) -> None:
        self.server.plan = []


class TestContract(DestinationContract):
    @pytest.fixture
    def subject(self, world: World, server: Server) -> HookSubject:
        limit(world, batch_deltas=2)
        return HookSubject(world, server)


def failure(destination: Destination, upto: int) -> DestinationError:
    with pytest.raises(DestinationError) as raised:
        destination.deliver(upto)
    return raised.value


def test_what_is_sent(world: Any, make: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    row = make["row"]
    monkeypatch.setenv("CQ_SECRET", "s3cret")
    monkeypatch.setenv("CQ_TOKEN", "abc")
    version = world.refresh(
        ("I", row(1, 'ü"')), ("U", row(2, amount="1.00"), row(2, amount="2.00")), ("D", row(3))
    )
    headers = '{"Authorization": "Bearer ${CQ_TOKEN}", "X-Team": "shop"}'
    hook(world, server.url, secret="${CQ_SECRET}", headers=headers).deliver(version)
    ((sent, body, _),) = server.requests
    assert json.loads(body) == {
        "query": "Totals", "destination": "hook", "commit_version": version,
        "commit_time": world.catalog.timestamp(version).isoformat(), "sequence": 3, "last": True,
        "deltas": [
            {"op": "c", "key": {"ID": 1}, "before": None, "after": {"id": 1, "name": 'ü"', "amount": "1.50"}, "sequence": 1},
            {"op": "u", "key": {"ID": 2}, "before": {"id": 2, "name": "n2", "amount": "1.00"},
             "after": {"id": 2, "name": "n2", "amount": "2.00"}, "sequence": 2},
            {"op": "d", "key": {"ID": 3}, "before": {"id": 3, "name": "n3", "amount": "1.50"}, "after": None, "sequence": 3},
        ],
    }  # fmt: skip
    assert (sent["Authorization"], sent["X-Team"], sent["Content-Type"]) == (
        "Bearer abc",
        "shop",
        "application/json",
    )
    assert sent["Idempotency-Key"] == f"t1/10/{version}/3"
    signed = sent["CQ-Timestamp"].encode() + b"." + body
    assert sent["CQ-Signature"] == "v1=" + hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
    assert abs(int(sent["CQ-Timestamp"]) - time.time()) < 60
    assert signature("other", sent["CQ-Timestamp"], body) != sent["CQ-Signature"]


def test_account_of_the_url(world: Any, make: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_PASSWORD", "p%40w")
    url = server.url.replace("http://", "http://me:${CQ_PASSWORD}@")
    hook(world, url).deliver(world.refresh(("I", make["row"](1))))
    assert server.requests[0][0]["Authorization"] == "Basic " + base64.b64encode(b"me:p@w").decode()


def test_in_order_and_again_with_the_same_key(world: Any, make: Any, server: Server) -> None:
    row = make["row"]
    versions = [world.refresh(("I", row(n))) for n in range(4)]
    server.plan = [(204, {}), (500, {}), (302, {"Location": "http://127.0.0.1:9/"}), (200, {})]
    destination = hook(world, server.url)
    assert "127.0.0.1" in failure(destination, versions[-1]).message
    assert destination.cursor.version == versions[0]
    assert "answered 302" in failure(destination, versions[-1]).message
    assert destination.cursor.failures == 2
    destination.deliver(versions[-1])
    assert [each["commit_version"] for each in server.accepted()] == versions
    keys = [headers["Idempotency-Key"] for headers, _, _ in server.requests]
    assert keys[1] == keys[2] == keys[3]
    assert len(set(keys)) == 4
    bodies = [body for _, body, _ in server.requests]
    assert bodies[1] == bodies[2] == bodies[3]


def test_batches(world: Any, make: Any, server: Server) -> None:
    row = make["row"]
    version = world.refresh(*(("I", row(n)) for n in range(5)))
    limit(world, batch_deltas=2)
    hook(world, server.url).deliver(version)
    assert [(len(each["deltas"]), each["last"]) for each in server.accepted()] == [
        (2, False),
        (2, False),
        (1, True),
    ]
    server.requests.clear()
    version = world.refresh(*(("I", row(n)) for n in range(3)))
    server.plan = [(200, {}), (500, {})]
    destination = hook(world, server.url, batch="row")
    failure(destination, version)
    assert (destination.cursor.version, destination.cursor.sequence) == (version, 1)
    destination.deliver(version)
    assert [each["deltas"][0]["after"]["id"] for each in server.accepted()] == [0, 1, 2]


def test_a_crash_after_the_answer_sends_again(
    world: Any, make: Any, server: Server, crash_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = world.refresh(("I", make["row"](1)))
    crash_at("deliver.before_cursor")
    with pytest.raises(make["Crash"]):
        hook(world, server.url).deliver(version)
    monkeypatch.undo()
    hook(world, server.url).deliver(version)
    first, second = server.requests
    assert (first[0]["Idempotency-Key"], first[1]) == (second[0]["Idempotency-Key"], second[1])


def test_retry_after(world: Any, make: Any, server: Server) -> None:
    version = world.refresh(("I", make["row"](1)))
    server.plan = [(429, {"Retry-After": "7"}), (503, {"Retry-After": "soon"})]
    assert failure(hook(world, server.url), version).wait_seconds == 7
    assert failure(hook(world, server.url), version).wait_seconds == 0
    assert _retry_after("999999999") == 3600
    assert _retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert 3500 < _retry_after("Wed, 21 Oct 2099 07:28:00 GMT") <= 3600


def test_poison_goes_to_the_dead_letters(world: Any, make: Any, server: Server) -> None:
    from cq_engine.destinations import with_dead_letters

    version = world.refresh(*(("I", make["row"](n)) for n in range(3)))
    with world.catalog.write() as unit:
        unit.set_state(with_dead_letters(world.catalog.state, "hook", version))
    server.plan = [(204, {}), (400, {})]
    destination = hook(world, server.url, batch="row")
    failure(destination, version)
    list(give_up(destination, version))
    destination.deliver(version)
    assert [each["deltas"][0]["after"]["id"] for each in server.accepted()] == [0, 2]
    assert destination.cursor.dead == 1


def _trickle(connection: socket.socket, _: int) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _n in range(100):
        time.sleep(0.05)
        connection.sendall(b"X: y\r\n")


@pytest.mark.parametrize("answer", [lambda _, __: time.sleep(1), _trickle], ids=["silent", "trickling"])
def test_a_server_that_stalls(world: Any, make: Any, raw: Any, answer: Any) -> None:
    version = world.refresh(("I", make["row"](1)))
    begun = time.monotonic()
    error = failure(hook(world, raw(answer), timeout="300 milliseconds"), version)
    assert time.monotonic() - begun < 3
    assert "no whole answer within 0.3 s" in error.message


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
    ],
)
def test_a_server_that_lies(world: Any, make: Any, raw: Any, answer: bytes) -> None:
    version = world.refresh(("I", make["row"](1)))
    url = raw(lambda connection, number: connection.sendall(answer if number == 1 else OK))
    destination = hook(world, url, timeout="2 seconds")
    failure(destination, version)
    assert destination.cursor.version == 0
    destination.deliver(version)
    assert destination.cursor.version == version


def test_a_server_that_answers_twice(world: Any, make: Any, raw: Any) -> None:
    """The second answer is not taken for that of the next request, which is refused."""
    first, second = (world.refresh(("I", make["row"](n))) for n in range(2))
    refused = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
    destination = hook(world, raw(lambda c, number: c.sendall(OK + OK if number == 1 else refused)))
    assert "answered 500" in failure(destination, second).message
    assert destination.cursor.version == first


def test_nobody_answers(world: Any, make: Any) -> None:
    error = failure(
        hook(world, "http://127.0.0.1:9/path/with-a-secret"), world.refresh(("I", make["row"](1)))
    )
    assert "http://127.0.0.1:9" in error.message
    assert "secret" not in error.render()


@pytest.mark.parametrize("url", ["http://me:hush/42@127.0.0.1:9/", "http://me:hush]@127.0.0.1:9/"])
def test_no_error_shows_a_malformed_password(
    world: Any, make: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_HOOK", url)
    error = failure(hook(world, "${CQ_HOOK}"), world.refresh(("I", make["row"](1))))
    assert "has not its form" in error.message
    assert "hush" not in error.render()
    assert "hush" not in world.services.catalog.cursor(world.query.name, "webhook:hook").error


def test_time_runs_before_it_is_connected(
    world: Any, make: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is found late, and then a server that sends byte after byte."""

    def drip(connection: socket.socket, _: int) -> None:
        for byte in b"HTTP/1.1 200 OK" + b" " * 60:
            connection.send(bytes([byte]))
            time.sleep(0.05)
        connection.send(b"\r\nContent-Length: 0\r\n\r\n")

    connect = socket.create_connection

    def late(*arguments: Any, **named: Any) -> socket.socket:
        time.sleep(0.4)
        return connect(*arguments, **named)

    monkeypatch.setattr(socket, "create_connection", late)
    destination = hook(world, raw(drip), timeout="200 milliseconds")
    begun = time.monotonic()
    error = failure(destination, world.refresh(("I", make["row"](1))))
    assert "no whole answer" in error.message
    assert time.monotonic() - begun < 2.5


def test_no_error_shows_a_header(
    world: Any, make: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_TOKEN", "hush\n42")
    destination = hook(world, server.url, headers='{"X-Token": "${CQ_TOKEN}"}')
    error = failure(destination, world.refresh(("I", make["row"](1))))
    assert "character that HTTP does not allow" in error.message
    assert "hush" not in error.render()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs the option url"),
        ({"url": "shop.example/hook"}, "is not possible"),
        ({"url": "ftp://shop.example/hook"}, "is not possible"),
        ({"url": "https://me:hush@shop.example/"}, "has a password in it"),
        ({"url": "https://shop.example/?a=1&access_token=hush"}, "has access_token in it"),
        ({"url": "https://shop.example:x/"}, "is not possible"),
        ({"url": "${HOOK}", "headers": '{"Transfer-Encoding": "chunked"}'}, "is the engine's own"),
        ({"url": "${HOOK}", "secret": "hush"}, "is not possible"),
        ({"url": "${HOOK}", "headers": "Authorization: hush"}, "is not possible"),
        ({"url": "${HOOK}", "headers": '{"Authorization": "hush"}'}, "looks like a secret"),
        ({"url": "${HOOK}", "headers": '{"Idempotency-Key": "${X}"}'}, "is the engine's own"),
        ({"url": "${HOOK}", "timeout": "0 seconds"}, "is not possible"),
        ({"url": "${HOOK}", "batch": "refresh"}, "is not possible"),
    ],
)
def test_declarations(options: dict[str, str], said: str) -> None:
    with pytest.raises(AnalysisError, match=said):
        check_declared(DeclaredDestination("d", "WEBHOOK", tuple(options.items())))
