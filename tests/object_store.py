"""An object store of its own for tests: moto's server in a process, with a proxy that delays, fails and throttles."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.brokers import free_port

__all__ = ["Faults", "ObjectStoreServer", "missing", "server"]

ROOT = Path(__file__).parents[1]
_CONTROL = "/_proxy"


def missing() -> str:
    """Why there can be none; empty where there can."""
    for name in ("moto", "flask", "flask_cors"):
        if importlib.util.find_spec(name) is None:
            return f"{name}, a part of moto's server, is not installed"
    return ""


@dataclass(frozen=True)
class Faults:
    """What the proxy does to requests: `delay` seconds before each, a share that `fail`s with status 500, half of them after
    they have had their effect, a share that is throttled with status 503, and a share whose connection is `cut` without an
    answer, half of them late, too: with 1, what those see who use a server that was killed."""

    delay: float = 0.0
    fail: float = 0.0
    throttle: float = 0.0
    cut: float = 0.0
    seed: int = 1


@dataclass(frozen=True)
class ObjectStoreServer:
    """A server that has the bucket `lake`."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        """The options of a warehouse there."""
        return {f"storage.{name}": value for name, value in self.access.items()}

    @property
    def access(self) -> dict[str, str]:
        """The same without `storage.` in front."""
        return {
            "access_key_id": "AKIATEST",
            "secret_access_key": "a secret of the tests",
            "region": "us-east-1",
            "endpoint_url": f"http://127.0.0.1:{self.port}",
        }

    def fault(self, faults: Faults) -> None:
        """From now on the proxy does this."""
        self._ask(asdict(faults))

    def counts(self) -> dict[str, int]:
        """How many requests there were, by method, and how many of them failed, were throttled or cut; from then on anew."""
        return dict(self._ask({}))

    def _ask(self, body: Mapping[str, object]) -> Any:
        data = json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{_CONTROL}"
        with urllib.request.urlopen(urllib.request.Request(url, data, method="POST"), timeout=10) as found:
            return json.loads(found.read())


@contextmanager
def server() -> Iterator[ObjectStoreServer]:
    """Starts a server, makes its bucket, and ends it."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.object_store", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
    )
    try:
        made = ObjectStoreServer(port)
        _make_bucket(made, process)
        yield made
    finally:
        process.terminate()
        process.wait(timeout=30)


def _make_bucket(made: ObjectStoreServer, process: subprocess.Popen[bytes]) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{made.port}/lake", method="PUT")
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except (urllib.error.URLError, ConnectionError):
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)


# ---------------------------------------------------------------- the process


class _Proxy:
    """What stands before moto's application."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._faults, self._chance = Faults(), random.Random(1)
        self._counts: dict[str, int] = {}
        self._guard = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _CONTROL:
            return self._control(environ, start)
        with self._guard:
            faults, lot, late = self._faults, self._chance.random(), self._chance.random() < 0.5
            self._count(environ["REQUEST_METHOD"])
        if faults.delay:
            time.sleep(faults.delay)
        if lot < faults.fail + faults.throttle + faults.cut:
            # The body is read from the connection once, whoever asks for it.
            length = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        if lot < faults.fail:
            with self._guard:
                self._count("failed")
            if late:
                list(self._application(environ, lambda *_: None))
            return _refuse(start, "500 Internal Server Error", "InternalError")
        if lot < faults.fail + faults.throttle:
            with self._guard:
                self._count("throttled")
            return _refuse(start, "503 Slow Down", "SlowDown")
        if lot < faults.fail + faults.throttle + faults.cut:
            with self._guard:
                self._count("cut")
            if late:
                list(self._application(environ, lambda *_: None))
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError("a fault of the tests")
        return self._application(environ, start)

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1

    def _control(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        with self._guard:
            if body:
                self._faults, self._chance = Faults(**body), random.Random(body["seed"])
                answer = {}
            else:
                answer, self._counts = self._counts, {}
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


def _refuse(start: Callable[..., Any], status: str, code: str) -> Iterable[bytes]:
    body = f"<Error><Code>{code}</Code><Message>a fault of the tests</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _serve(port: int) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

        def log(self, *_: Any) -> None:
            """Nothing."""

    application = _Proxy(DomainDispatcherApplication(create_backend_app))
    make_server("127.0.0.1", port, application, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
