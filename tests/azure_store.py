"""An Azure Blob Storage of its own for tests: Azurite, where it is installed (`npm install -g azurite`), behind a proxy.

Azurite lists all blobs below a prefix where it is asked for those from a name on (`startFrom`, of newer versions of the service), which Delta Lake's library
relies on: the proxy takes the others out.
"""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow.fs as pafs

from tests.brokers import free_port

__all__ = ["ACCOUNT", "CONTAINER", "missing", "server"]

ROOT = Path(__file__).parents[1]
COMMAND = "azurite-blob"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its key, which its documentation gives."""
CONTAINER = "lake"


def missing() -> str:
    """Why there can be none; empty where there can."""
    return "" if shutil.which(COMMAND) else "azurite is not installed"


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """Starts a server that has a container, and ends it; the options of a warehouse there, without `storage.` in front."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cq-azurite-") as directory:
        process = subprocess.Popen(
            [
                COMMAND, "--blobPort", str(port), "--location", directory,
                "--silent", "--loose", "--skipApiVersionCheck", "--disableTelemetry",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait(f"http://127.0.0.1:{port}/", process)
            with _proxy(port) as address:
                place = {f"{service}_storage_authority": address for service in ("blob", "dfs")}
                schemes = {f"{service}_storage_scheme": "http" for service in ("blob", "dfs")}
                pafs.AzureFileSystem(ACCOUNT, account_key=KEY, **place, **schemes).create_dir(CONTAINER)
                yield {"endpoint_url": f"http://{address}", "account_key": KEY}
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def _proxy(target: int) -> Iterator[str]:
    """What stands before Azurite at that port; where it listens. A process, since Delta Lake's library holds the interpreter while it waits."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.azure_store", str(port), str(target)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(f"http://127.0.0.1:{port}/", process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


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


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except urllib.error.HTTPError:
            return  # it answers
        except (urllib.error.URLError, ConnectionError):
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
