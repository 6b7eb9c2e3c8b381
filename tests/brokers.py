"""Brokers of their own for tests, where the machine has them: each on a free port, with its files in a temporary directory."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["RABBITMQ", "Server", "free_port", "kafka", "missing", "nats", "rabbitmq", "redis"]

RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


@dataclass
class Server:
    """A server that can be killed and started again with what it has on disk."""

    scheme: str
    port: int
    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ask: Callable[[Server], None] | None = None
    """Fails until the server serves: one that takes connections may still be reading what it has on disk."""
    process: subprocess.Popen[bytes] | None = None
    user: str | None = None
    """The account that it runs as, where that is not the tests'."""
    directory: Path | None = None
    """Where it runs, where that is not where the tests do."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self, seconds: float = 30) -> None:
        """Starts it, and waits until it serves."""
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
            user=self.user,
            cwd=self.directory,
            start_new_session=True,
        )
        end = time.monotonic() + seconds
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    pass
                if self.ask is not None:
                    self.ask(self)
                return
            except Exception as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"{self.command[0]} does not serve after {seconds} s") from error
            time.sleep(0.05)

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGSTOP)  # it starts no other ones meanwhile
            children = _children(self.process.pid)  # those of PostgreSQL have groups of their own
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=30)
            self.process = None
            while any(_is_alive(pid) for pid in children):
                time.sleep(0.01)


def _children(parent: int) -> list[int]:
    """The processes that it has started and that are there."""
    pids = [int(directory.name) for directory in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _status(pid)[1:2] == [str(parent)]]


def _is_alive(pid: int) -> bool:
    return _status(pid)[:1] not in ([], ["Z"])


def _status(pid: int) -> list[str]:
    """A process's state, parent, and more; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def missing(server: str, client: str) -> str:
    """Why a broker cannot be tested; empty where it can."""
    if shutil.which(server) is None and not Path(server).exists():
        return f"no {server} on this machine"
    if importlib.util.find_spec(client) is None:
        return f"{client}, the client library, is not installed"
    return ""


@contextmanager
def _running(make: Callable[[Path, int], Server], seconds: float = 30) -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="cq-broker-"))
    server = make(directory, free_port())
    try:
        server.start(seconds)
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


def redis() -> contextmanager[Server]:  # type: ignore[valid-type]
    """Redis, which has on disk what it has confirmed."""

    def make(directory: Path, port: int) -> Server:
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
        command = ["redis-server", *settings, "--appendonly", "yes", "--appendfsync", "always"]
        return Server("redis", port, command, ask=_ask_redis)

    return _running(make)


def _ask_redis(server: Server) -> None:
    from redis import Redis

    with Redis(port=server.port) as client:
        client.ping()


def nats() -> contextmanager[Server]:  # type: ignore[valid-type]
    """NATS with JetStream."""

    def make(directory: Path, port: int) -> Server:
        command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)]
        return Server("nats", port, command, ask=_ask_nats)

    return _running(make)


def _ask_nats(server: Server) -> None:
    async def ask() -> None:
        import nats

        client = await nats.connect(server.url, allow_reconnect=False)
        try:
            await client.jetstream(timeout=5).account_info()
        finally:
            await client.close()

    asyncio.run(ask())


@contextmanager
def rabbitmq() -> Iterator[Server]:
    """RabbitMQ, with a port mapper (epmd) of its own."""
    mapper_port = str(free_port())
    mapper = subprocess.Popen(["epmd", "-port", mapper_port, "-address", "127.0.0.1"], start_new_session=True)

    def make(directory: Path, port: int) -> Server:
        calm = "+sbwt none +sbwtdcpu none +sbwtdio none +S 1:1"
        environment = {
            "HOME": str(directory), "ERL_EPMD_PORT": mapper_port, "RABBITMQ_NODENAME": f"cq{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()), "RABBITMQ_MNESIA_BASE": str(directory),
            "RABBITMQ_LOG_BASE": str(directory), "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull, "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": calm,
        }  # fmt: skip
        return Server("amqp", port, [RABBITMQ], environment, ask=_ask_rabbitmq)

    try:
        with _running(make, 120) as server:
            yield server
    finally:
        mapper.kill()
        mapper.wait(timeout=30)


def _ask_rabbitmq(server: Server) -> None:
    import pika

    with pika.BlockingConnection(pika.URLParameters(server.url)) as client:
        client.channel()


@contextmanager
def kafka() -> Iterator[Server]:
    """The mock cluster of librdkafka, in this process. It makes topics that are asked for; it cannot be killed."""
    import confluent_kafka

    owner = confluent_kafka.Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0}
    )
    (broker,) = owner.list_topics(timeout=30).brokers.values()
    yield Server("kafka", broker.port, [])


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
