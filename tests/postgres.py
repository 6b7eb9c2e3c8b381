"""A PostgreSQL server of its own for tests, where the machine has one."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.brokers import free_port

if TYPE_CHECKING:
    import psycopg

__all__ = ["Server", "connected", "cut", "fresh", "missing", "running", "server"]


def missing() -> str:
    """Why there can be none; empty where there can."""
    if _binaries() is None:
        return "no PostgreSQL server binaries (initdb, postgres) on this machine"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg, the PostgreSQL driver, is not installed"
    return ""


class Server:
    """A server with its data in a directory, which outlive its processes."""

    def __init__(self, directory: Path, **more: str) -> None:
        binaries, self.account, self.directory = _binaries(), _account(), directory
        assert binaries is not None
        if self.account is not None:
            shutil.chown(directory, self.account)
        data, self.port = directory / "data", free_port()
        make = [binaries / "initdb", "--no-sync", "-A", "trust", "-U", "cq", "-E", "UTF8", "-D", data]
        assert self._run(make).wait() == 0, "initdb has failed"
        settings = {
            "listen_addresses": "127.0.0.1", "fsync": "off", "unix_socket_directories": str(directory),
            "wal_level": "logical", "max_replication_slots": "20", "track_commit_timestamp": "on", **more,
        }  # fmt: skip
        self._command = [
            binaries / "postgres",
            *("-D", data, "-p", str(self.port)),
            *itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in settings.items()),
        ]

    @property
    def url(self) -> str:
        """Where it is, without a database."""
        return f"postgresql://cq@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, also after it was killed, and waits until it answers; TimeoutError after 30 s."""
        self._process = self._run(self._command)
        _wait_for(self.port, self._again)

    def _again(self) -> None:
        """Where it has ended: processes of the one before may not have been gone."""
        if self._process.poll() is not None:
            self._process = self._run(self._command)

    def kill(self) -> None:
        """Ends all of its processes, which have no time to write anything."""
        first = self._process.pid
        os.kill(first, signal.SIGSTOP)  # it starts no other ones meanwhile
        for pid in (*_children(first), first):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Ends it in order, without waiting for its connections to end; what has not ended after 30 s is killed."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()

    def _run(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self.account,
            cwd=self.directory,
            start_new_session=True,
        )


@contextmanager
def running(**more: str) -> Iterator[Server]:
    """Starts a server, with more settings, and ends it."""
    directory = Path(tempfile.mkdtemp(prefix="cq-postgres-"))
    try:
        server = Server(directory, **more)
        try:
            server.start()
            yield server
        finally:
            server.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def server(**more: str) -> Iterator[str]:
    """The same, for those who need its URL alone."""
    with running(**more) as made:
        yield made.url


def fresh(url: str) -> str:
    """Makes an empty database on the server and gives its URL."""
    import psycopg

    name = f"cq_{time.time_ns()}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{url}/{name}"


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    """A connection to a database that commits each statement, as some have to."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def cut(url: str) -> None:
    """Ends all connections to a database."""
    import psycopg

    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else []
    for pattern in ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin"):
        places += sorted(Path("/").glob(pattern), reverse=True)
    return next((p for p in places if (p / "initdb").exists() and (p / "postgres").exists()), None)


def _account() -> str | None:
    """The server refuses to run as root: then the account that lends itself."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody", "daemon") if name in known)


def _children(parent: int) -> list[int]:
    """The processes that it has started and that are there, each of which has a group of its own."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


def _wait_for(port: int, again: Callable[[], None]) -> None:
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(f"postgresql://cq@127.0.0.1:{port}/postgres", connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            again()
            time.sleep(0.1)
    raise TimeoutError("PostgreSQL did not start within 30 s")
