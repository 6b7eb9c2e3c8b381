"""A MariaDB server of its own for tests, where the machine has one."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from tests.brokers import Server, free_port

__all__ = ["connect", "fresh", "missing", "server"]


def missing() -> str:
    """Why there can be none; empty where there can."""
    if _binary("mariadbd") is None or _binary("mariadb-install-db") is None:
        return "no MariaDB server binaries (mariadbd, mariadb-install-db) on this machine"
    if importlib.util.find_spec("pymysql") is None:
        return "pymysql, the driver of MariaDB, is not installed"
    return ""


@contextmanager
def server() -> Iterator[Server]:
    """A server that can be killed; a commit is on disk when it has been said, as far as the system is alive."""
    binary, install = _binary("mariadbd"), _binary("mariadb-install-db")
    assert binary is not None
    assert install is not None
    directory, port = Path(tempfile.mkdtemp(prefix="cq-mariadb-")), free_port()
    user = [f"--user={pwd.getpwuid(os.getuid()).pw_name}"]
    subprocess.run(
        [
            install, "--no-defaults", f"--datadir={directory}/data", *user,
            "--auth-root-authentication-method=normal", "--skip-test-db",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    settings = {
        "datadir": f"{directory}/data", "bind-address": "127.0.0.1", "port": port, "socket": f"{directory}/s",
        "pid-file": f"{directory}/pid", "innodb-buffer-pool-size": "64M", "innodb-log-file-size": "32M",
        "innodb-flush-log-at-trx-commit": 2, "performance-schema": "OFF", "skip-name-resolve": "ON",
    }  # fmt: skip
    command = [binary, "--no-defaults", *user, *(f"--{name}={value}" for name, value in settings.items())]
    made = Server("mariadb", port, command, ask=lambda ready: connect(_url(ready)).close())
    try:
        made.start(120)
        yield made
    finally:
        made.kill()
        shutil.rmtree(directory, ignore_errors=True)


def fresh(running: Server) -> str:
    """Makes an empty database on the server and gives its URL."""
    name = f"cq_{time.time_ns()}"
    with closing(connect(_url(running))) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    return f"{_url(running)}/{name}"


def connect(url: str) -> Any:
    """A connection of the driver that has answered."""
    import pymysql

    place = make_url(url)
    connection = pymysql.connect(
        host=place.host, port=place.port or 0, user=place.username, database=place.database, autocommit=True
    )
    connection.ping(reconnect=False)
    return connection


def _url(running: Server) -> str:
    return running.url.replace("://", "://root@")


def _binary(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/usr/local/sbin")
