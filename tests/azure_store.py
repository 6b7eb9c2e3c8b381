"""An Azure Blob Storage of its own for tests: Azurite, where it is installed (`npm install -g azurite`), behind a proxy.

Azurite lists all blobs below a prefix where it is asked for those from a name on (`startFrom`, of newer versions of the service), which Delta Lake's library
relies on: the proxy takes the others out.
"""

from __future__ import annotations

import http.client
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cq_engine.catalog.storage.azure import AzureAccess
from cq_engine.core.limits import Limits
from tests.brokers import free_port
from tests.serving import serving

__all__ = ["missing", "server", "url"]

COMMAND = "azurite-blob"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its key, which its documentation gives."""
CONTAINER = "lake"


def missing() -> str:
    """Why there can be none; empty where there can."""
    return "" if shutil.which(COMMAND) else "azurite is not installed"


def url(place: str) -> str:
    """Of a warehouse at a place in the server's container."""
    return f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/{place}"


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """Starts a server that has a container, and ends it; the options of a warehouse there, without `storage.` in front."""
    behind, port = free_port(), free_port()
    proxy = [sys.executable, "-m", "tests.azure_store", str(port), str(behind)]
    with tempfile.TemporaryDirectory(prefix="cq-azurite-") as directory, ExitStack() as running:
        azurite = [
            COMMAND, "--blobPort", str(behind), "--location", directory,
            "--silent", "--loose", "--skipApiVersionCheck", "--disableTelemetry",
        ]  # fmt: skip
        running.enter_context(serving(azurite, f"http://127.0.0.1:{behind}/"))
        # A process, since Delta Lake's library holds the interpreter while it waits.
        running.enter_context(serving(proxy, f"http://127.0.0.1:{port}/"))
        access = {"endpoint_url": f"http://127.0.0.1:{port}", "account_key": KEY}
        replace(AzureAccess.of(access, Limits(), {}), account=ACCOUNT).filesystem().create_dir(CONTAINER)
        yield access


def _serve(port: int, target: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            there = http.client.HTTPConnection("127.0.0.1", target, timeout=60)
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                there.putheader(name, value)
            there.endheaders(body)
            answer = there.getresponse()
            content = _from(answer.read(), parse_qs(urlsplit(self.path).query).get("startFrom", [""])[0])
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "keep-alive"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            if answer.status != http.HTTPStatus.NO_CONTENT:
                self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            there.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815 - the names that the server calls

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def _from(content: bytes, first: str) -> bytes:
    """A listing without the names before the first one."""
    if not first:
        return content

    def kept(blob: re.Match[bytes]) -> bytes:
        return blob[0] if blob[1].decode() >= first else b""

    return re.sub(rb"<Blob><Name>(.*?)</Name>.*?</Blob>", kept, content, flags=re.DOTALL)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
