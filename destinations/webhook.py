"""A URL that every batch of deltas is sent to: POST, in order, at least once, signed.

The body is JSON (`body`). `Idempotency-Key` is the same whenever a batch comes again. With a secret, `CQ-Signature` is
`v1=` and the hexadecimal HMAC-SHA256, by the secret, of the time in `CQ-Timestamp`, a point, and the body.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import ClassVar
from urllib.parse import SplitResult, unquote, urlsplit

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, DestinationError
from cq_engine.destinations.callback import CallbackDestination
from cq_engine.destinations.envelope import DeltaBatch, json_bytes
from cq_engine.destinations.kind_parts import Kind, Place, Wanted
from cq_engine.destinations.options import COMMON, Option, one_of, seconds
from cq_engine.destinations.row_text import delta_texts, steps
from cq_engine.destinations.urls import HUSH, check_url
from cq_engine.destinations.variables import VARIABLE, expand

__all__ = [
    "OPTIONS",
    "WebhookDestination",
    "body",
    "signature",
]

_MOST = 65_536
"""So many bytes of an answer are read."""
_LONGEST = 3600.0
"""Seconds that a server can ask us to wait."""
_OWN = (
    "content-type",
    "content-length",
    "host",
    "connection",
    "transfer-encoding",
    "idempotency-key",
    "cq-timestamp",
    "cq-signature",
)


def _url(value: str) -> None:
    if not value.startswith("${"):
        _parts(VARIABLE.sub("1", value))


def _parts(url: str) -> SplitResult:
    """The parts of a URL of HTTP. Raises ValueError, without what may be a part of a password."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise ValueError


def _secret(value: str) -> None:
    if value and not VARIABLE.fullmatch(value):
        raise ValueError


def _headers(value: str) -> dict[str, str]:
    found = json.loads(value) if value else {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError
    return found


def _timeout(value: str) -> float:
    if seconds(value) <= 0:
        raise ValueError
    return seconds(value)


OPTIONS: Mapping[str, Option] = {
    "url": Option(
        None,
        _url,
        "write where batches are sent to, as in url = '${HOOK_URL}' or 'https://shop.example/hook'",
    ),
    "secret": Option("", _secret, "write secret = '${NAME}', and set the environment variable NAME"),
    "batch": one_of("transaction", "row"),
    "timeout": Option("10 seconds", _timeout, "write a length of time, as in timeout = '5 seconds'"),
    "headers": Option(
        "",
        _headers,
        """write a JSON object of strings, as in headers = '{"Authorization": "Bearer ${TOKEN}"}'""",
    ),
}


def _check(destination: DeclaredDestination, place: Place) -> None:
    """Raises AnalysisError where a declaration has a secret in it, or headers that are the engine's."""
    check_url(destination, place)
    given = dict(destination.options)
    for name, value in _headers(given.get("headers", "")).items():
        if name.lower() in _OWN:
            raise AnalysisError(f"header {name} is the engine's own", location=place("headers"))
        if HUSH.search(name) and not VARIABLE.search(value):
            raise AnalysisError(
                f"header {name} looks like a secret", detail="a declaration is stored, and shown to whoever asks",
                hint="write ${NAME} in its place, and set the environment variable NAME", location=place("headers"),
            )  # fmt: skip


def _reach(destination: DeclaredDestination, _: Services) -> None:
    """Raises DestinationError where a variable is not set. Nothing is sent."""
    for value in dict(destination.options).values():
        expand(value)


def _make(wanted: Wanted) -> WebhookDestination:
    """The destination; DestinationError where it was not declared."""
    if "url" not in dict(wanted.declared.options):
        name = wanted.reference.name
        raise DestinationError(
            f"there is no webhook {name}",
            hint=f"declare it first: CREATE DESTINATION {name} TYPE webhook WITH (url = '${{HOOK_URL}}')",
        )
    return WebhookDestination(wanted)


class WebhookDestination(CallbackDestination):
    """Sends each batch, and goes on when the answer is a 2xx, read to its end within the time-out.

    Every request has a connection of its own, so that no answer is taken for that of another request. Redirects are not
    followed: they would take the signature elsewhere.
    """

    kind: ClassVar[str] = "WEBHOOK"
    registered: ClassVar[bool] = False
    jitter: ClassVar[float] = 0.25

    def __init__(self, wanted: Wanted) -> None:
        self.options = {name: option.default or "" for name, option in OPTIONS.items()}
        self.options |= dict(wanted.declared.options)
        self.token = wanted.declared.token
        super().__init__(
            wanted.services, wanted.query, wanted.declared.name, self._send,
            retry=wanted.retry, stopped=wanted.stopped, batch=self.options["batch"].lower(),
        )  # fmt: skip

    def _send(self, batch: DeltaBatch) -> None:
        try:
            url = _parts(expand(self.options["url"]))
        except ValueError:
            raise DestinationError(
                f"the url of webhook {self.name} is none of http or https, or has not its form",
                hint="in user names and passwords, write : / @ as %3A %2F %40",
            ) from None
        content = body(self.name, batch)
        headers = {
            **{name: expand(value) for name, value in _headers(self.options["headers"]).items()},
            "Content-Type": "application/json",
            "Connection": "close",
            "Idempotency-Key": f"{self.token}/{self.query.id}/{batch.commit_version}/{batch.sequence}",
            "CQ-Timestamp": str(int(time.time())),
        }
        if self.options["secret"]:
            secret = expand(self.options["secret"])
            headers["CQ-Signature"] = signature(secret, headers["CQ-Timestamp"], content)
        if url.username is not None:
            account = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers.setdefault("Authorization", "Basic " + base64.b64encode(account.encode()).decode())
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        limit = _timeout(self.options["timeout"])
        connection = connect(url.hostname or "", url.port, timeout=limit)
        shown = f"{url.scheme}://{url.hostname}" + (f":{url.port}" if url.port else "")
        with _within(connection, limit, shown):
            connection.request("POST", path, content, headers)
            answer = connection.getresponse()
            said = answer.read(_MOST)
            if len(said) < _MOST and answer.length:  # it has said that more would come
                raise http.client.IncompleteRead(said)
        if not 200 <= answer.status < 300:
            text = " ".join(said[:200].decode("utf-8", "replace").split())
            error = DestinationError(f"{shown} answered {answer.status} {answer.reason}: {text}".rstrip(": "))
            error.wait_seconds = _retry_after(answer.getheader("Retry-After"))
            raise error


def signature(secret: str, timestamp: str, content: bytes) -> str:
    """What `CQ-Signature` has.

    >>> signature("s", "1700000000", b"{}")[:15]
    'v1=e9232c9945da'
    """
    return "v1=" + hmac.new(secret.encode(), timestamp.encode() + b"." + content, hashlib.sha256).hexdigest()


@contextmanager
def _within(connection: http.client.HTTPConnection, limit: float, shown: str) -> Iterator[None]:
    """The block may use the connection for so long, however slowly bytes come. Raises DestinationError without secrets."""
    late, done = threading.Event(), threading.Event()

    def end() -> None:
        if done.wait(limit):
            return
        late.set()
        while not done.wait(0.05):  # it may not be connected yet
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=end, daemon=True).start()
    try:
        yield
        failed = late.is_set()
    except (OSError, http.client.HTTPException) as error:
        why = (
            f"no whole answer within {limit:g} s"
            if late.is_set() or isinstance(error, TimeoutError)
            else repr(error)
        )
        raise DestinationError(f"{shown}: {why}") from None
    except ValueError:  # its text has the value of the header
        raise DestinationError(
            f"{shown}: a header or the path has a character that HTTP does not allow"
        ) from None
    finally:
        done.set()
        connection.close()
    if failed:
        raise DestinationError(f"{shown}: no whole answer within {limit:g} s")


def _retry_after(value: str | None) -> float:
    """Seconds, of either form of the header; 0 where it says nothing that can be read."""
    if value is None:
        return 0.0
    found = 0.0
    if re.fullmatch(r"\d{1,9}", value.strip()):
        found = float(value)
    else:
        with suppress(ValueError, TypeError):
            moment = parsedate_to_datetime(value)
            found = (
                moment.replace(tzinfo=moment.tzinfo or timezone.utc) - datetime.now(timezone.utc)
            ).total_seconds()
    return min(_LONGEST, max(0.0, found))


# ---------------------------------------------------------------- what is sent


def body(name: str, batch: DeltaBatch) -> bytes:
    """The batch as JSON: the commit, and a list of deltas with `op` (c, u or d), `key`, `before`, `after`, `sequence`."""
    commit = {
        "query": batch.query, "destination": name, "commit_version": batch.commit_version,
        "commit_time": batch.commit_time.isoformat(), "sequence": batch.sequence, "last": batch.last,
    }  # fmt: skip
    texts = delta_texts(batch.schema, batch.key_columns)
    deltas = ",".join([f"{{{text}}}" for step in steps(batch) for text in texts(step)])
    return f'{json_bytes(commit).decode()[:-1]},"deltas":[{deltas}]}}'.encode()


KIND = Kind(WebhookDestination, {**OPTIONS, **COMMON}, _make, _check, _reach)
