"""Counts the bytes that a server sends to its clients."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import sqlalchemy as sa

CHUNK = 1 << 16


class Counter(Protocol):
    """A number that processes share."""

    value: int


@contextmanager
def counted(url: str) -> Iterator[tuple[str, Counter]]:
    """The URL of a process that passes on whatever goes to and from the server of `url`, and how many bytes have come from
    there."""
    where = sa.engine.make_url(url)
    listening = socket.create_server(("127.0.0.1", 0))
    count = multiprocessing.Value("q", 0)
    passing = multiprocessing.get_context("fork").Process(
        target=_serve, args=(listening, (where.host or "127.0.0.1", where.port or 5432), count), daemon=True
    )
    passing.start()
    try:
        through = where.set(host="127.0.0.1", port=listening.getsockname()[1])
        yield through.render_as_string(hide_password=False), count
    finally:
        passing.terminate()
        passing.join()
        listening.close()


def _serve(listening: socket.socket, server: tuple[str, int], count: Any) -> None:
    while True:
        client, _ = listening.accept()
        other = socket.create_connection(server)
        threading.Thread(target=_pass, args=(client, other, None), daemon=True).start()
        threading.Thread(target=_pass, args=(other, client, count), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, count: Any) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            if count is not None:
                with count.get_lock():
                    count.value += len(data)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
