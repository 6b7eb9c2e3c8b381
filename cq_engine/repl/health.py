"""What `cq serve --health` answers over HTTP, for those who start and stop it: systemd, Kubernetes, load balancers.

| path | 200 where | else |
|---|---|---|
| `/health` | `cq serve` has looked at the catalog within the last 30 s | 503: it hangs, start it anew |
| `/ready` | it has looked at it once, and the same | 503: it is being opened, or hangs |

Both answer with the same JSON object: `ready`, `version` (the newest commit), `behind` (the largest number of versions that an
active query has not processed), `states` (how many queries are ACTIVE, PAUSED, FAILED) and `seconds` (since the last look).
No name and no row is in it. Whoever reaches the port can read it: there is no account.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cq_engine.catalog.overview import Overview
from cq_engine.core.errors import CQError

__all__ = ["Health", "answering"]

_PATIENCE = 30.0


class Health:
    """What was seen at the last look."""

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._looked: float | None = None
        self._facts: dict[str, object] = {}

    def note(self, overview: Overview) -> None:
        """The catalog was looked at now."""
        moving = [each for each in overview.status.values() if each.state == "ACTIVE"]
        self._facts = {
            "version": overview.newest,
            "behind": max((overview.newest - each.position for each in moving), default=0),
            "states": dict(sorted(Counter(each.state for each in overview.status.values()).items())),
        }
        self._looked = time.monotonic()

    def answer(self, path: str) -> tuple[int, dict[str, object]]:
        """The status and the body for a path."""
        if path not in ("/health", "/ready"):
            return 404, {"error": "there are /health and /ready"}
        looked = self._looked
        seconds = None if looked is None else round(time.monotonic() - looked, 1)
        ready = seconds is not None and seconds <= self._patience
        alive = ready or (seconds is None and path == "/health")
        return (200 if alive else 503), {"ready": ready, **self._facts, "seconds": seconds}


@contextmanager
def answering(address: str, health: Health) -> Iterator[int]:
    """A block during which a thread answers at `host:port`; gives the port. Raises CQError where it cannot listen there."""
    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]") or "no host", int(port)), _handler(health))
    except (OSError, ValueError, OverflowError) as error:
        raise CQError(
            f"nobody can be answered at {address}",
            detail=str(error),
            hint="--health takes HOST:PORT, such as 127.0.0.1:8080, of a port that is free",
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="cq-health", daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def _handler(health: Health) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            status, found = health.answer(self.path)
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    return Handler
