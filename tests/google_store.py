"""A Google Cloud Storage of its own for tests: the emulator's JSON API, by which Arrow asks, and beside it of the XML API what Delta Lake's library asks."""

from __future__ import annotations

import email.utils
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any
from xml.sax.saxutils import escape

from tests.brokers import free_port
from tests.serving import serving

__all__ = ["missing", "server", "url"]

BUCKET = "lake"


def missing() -> str:
    """Why there can be none; empty where there can."""
    found = importlib.util.find_spec("gcp_storage_emulator")
    return "" if found else "gcp-storage-emulator is not installed"


def url(place: str) -> str:
    """Of a warehouse at a place in the server's bucket."""
    return f"gs://{BUCKET}/{place}"


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """Starts a server that has a bucket, and ends it; the options of a warehouse there, without `storage.` in front."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with serving([sys.executable, "-m", "tests.google_store", str(port)], address):
        yield {"endpoint_url": address, "anonymous": "true"}


# ---------------------------------------------------------------- the process


def _serve(port: int) -> None:
    from gcp_storage_emulator import server as emulator
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    def known(request: Any, storage: Any) -> dict[str, Any]:
        found: dict[str, Any] = storage.get_file_obj(
            request.params["bucket_name"], request.params["object_id"]
        )
        return found

    def tell(response: Any, found: dict[str, Any]) -> None:
        response["ETag"] = f'"{found["generation"]}"'
        response["x-goog-generation"] = found["generation"]
        response["Last-Modified"] = email.utils.format_datetime(_moment(found), usegmt=True)

    def get(request: Any, response: Any, storage: Any) -> None:
        objects.download(request, response, storage)
        if response.status != HTTPStatus.NOT_FOUND:
            tell(response, known(request, storage))

    def put(request: Any, response: Any, storage: Any) -> None:
        """With a condition, by which Delta Lake commits: that there is no such object."""
        body = request.data or b""
        try:
            known(request, storage)
            there = True
        except NotFound:
            there = False
        if there and request.get_header("x-goog-if-generation-match") == "0":
            response.status = HTTPStatus.PRECONDITION_FAILED
            return
        request._data = body
        objects.xml_upload(request, response, storage)
        if response.status != HTTPStatus.NOT_FOUND:
            tell(response, known(request, storage))

    def listed(request: Any, response: Any, storage: Any) -> None:
        prefix, delimiter, start = (
            request.query.get(name, [""])[0] for name in ("prefix", "delimiter", "start-after")
        )
        found, prefixes = storage.get_file_list(
            request.params["bucket_name"], prefix or None, delimiter or None
        )
        contents = "".join(
            f"<Contents><Key>{escape(each['name'])}</Key><Size>{each['size']}</Size><ETag>{each['generation']}</ETag>"
            f"<LastModified>{each['updated']}</LastModified></Contents>"
            for each in found
            if each["name"] > start
        )
        commons = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes
        )
        response["Content-Type"] = "application/xml"
        response.write_file(f"<ListBucketResult>{contents}{commons}</ListBucketResult>".encode(), None)

    class Handler(emulator.RequestHandler):  # type: ignore[misc]
        def do_HEAD(self) -> None:  # noqa: N802 - the name that the server calls
            self.wfile = _HeadersOnly(self.wfile)
            emulator.Router(self).handle(emulator.GET)

    thing = r"^/(?P<bucket_name>[-.\w]+)/(?P<object_id>.*[^/]+)$"
    emulator.HANDLERS = (
        *(each for each in emulator.HANDLERS if each[0] != thing),
        (thing, {emulator.GET: get, emulator.PUT: put, emulator.DELETE: objects.delete}),
        (r"^/(?P<bucket_name>[-.\w]+)/?$", {emulator.GET: listed}),
    )
    emulator.RequestHandler = Handler
    emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET).run()


def _moment(found: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(found["updated"].replace("Z", "+00:00"))


class _HeadersOnly:
    """A connection that takes the first write, which is the headers."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._written = False

    def write(self, content: bytes) -> int:
        if not self._written:
            self._target.write(content)
            self._written = True
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
