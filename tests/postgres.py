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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.brokers import Server, free_port

if TYPE_CHECKING:
    import psycopg

__all__ = ["connected", "cut", "fresh", "missing", "running", "server", "url"]


def missing() -> str:
    """Why there can be none; empty where there can."""
    if _binaries() is None:
        return "no PostgreSQL server binaries (initdb, postgres) on this machine"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg, the PostgreSQL driver, is not installed"
    return ""


@contextmanager
def running(**more: str) -> Iterator[Server]:
    """Starts a server, with more settings, that can be killed, and ends it."""
    binaries, account = _binaries(), _account()
    assert binaries is not None
    directory, port = Path(tempfile.mkdtemp(prefix="cq-postgres-")), free_port()
    if account is not None:
        shutil.chown(directory, account)
    data = directory / "data"
    settings = {
        "listen_addresses": "127.0.0.1", "fsync": "off", "unix_socket_directories": str(directory),
        "wal_level": "logical", "max_replication_slots": "20", "track_commit_timestamp": "on", **more,
    }  # fmt: skip
    command = [
        str(binaries / "postgres"),
        *("-D", str(data), "-p", str(port)),
        *itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in settings.items()),
    ]
    made = Server("postgresql", port, command, ask=_ask, user=account, directory=directory)
    try:
        subprocess.run(
            [binaries / "initdb", "--no-sync", "-A", "trust", "-U", "cq", "-E", "UTF8", "-D", data],
            check=True,
            capture_output=True,
            user=account,
            cwd=directory,
        )
        made.start()
        yield made
    finally:
        if made.process is not None:
            made.process.send_signal(signal.SIGINT)  # fast: it does not wait for connections to end
            with suppress(subprocess.TimeoutExpired):
                made.process.wait(timeout=30)
        made.kill()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def server(**more: str) -> Iterator[str]:
    """The same; its URL without a database."""
    with running(**more) as made:
        yield url(made)


def url(server: Server) -> str:
    """Where it is, without a database."""
    return server.url.replace("://", "://cq@")


def fresh(server: str) -> str:
    """Makes an empty database on the server and gives its URL."""
    import psycopg

    name = f"cq_{time.time_ns()}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}"


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


def _ask(server: Server) -> None:
    import psycopg

    psycopg.connect(f"{url(server)}/postgres", connect_timeout=2).close()
