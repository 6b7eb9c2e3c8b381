"""What the types redis, nats, rabbitmq and kafka have in common: their options, errors without secrets, and how they are asked.

Each is a `Sink` that sends the messages of a batch and returns when the broker has confirmed all of them. After a failure
nothing more is sent, and the batch comes again whole: what was confirmed before comes twice, with the same `ce_id`.
"""

from __future__ import annotations

import importlib
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import pyarrow as pa

from cq_engine.core.errors import DestinationError, LeaseError
from cq_engine.destinations.base import Unreachable
from cq_engine.destinations.brokers.avro import Row
from cq_engine.destinations.brokers.messages import FORMATS, Message, key_names, messages
from cq_engine.destinations.envelope import DeltaBatch
from cq_engine.destinations.options import Option, one_of, seconds
from cq_engine.destinations.sink import Sink
from cq_engine.destinations.urls import account_of

__all__ = ["BrokerSink", "broker_options", "named"]


_HOST = re.compile(r"([^\s:\[\]]+|\[[^\]]+\])(:\d+)?")


def named(name: str, example: str, default: str | None = None) -> Option:
    """An option that is a name of the broker's; one that has to be said may not be empty."""

    def check(value: str) -> None:
        if (not value and default is None) or value != value.strip():
            raise ValueError

    return Option(default, check, f"write {name} = '{example}'")


def broker_options(*schemes: str, **more: Option) -> Mapping[str, Option]:
    """The options of every broker, with URLs of these schemes, and `more`."""

    def url(value: str) -> None:
        parts = urlsplit(value)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        if parts.scheme not in schemes or not all(map(_HOST.fullmatch, hosts)):
            raise ValueError
        if "@" in parts.path + parts.query + parts.fragment:  # what is before it may be a part of a password
            raise ValueError

    def timeout(value: str) -> None:
        if seconds(value) <= 0:
            raise ValueError

    return {
        "url": Option(
            None,
            url,
            f"write the broker's URL, as in url = '{schemes[0]}://host' or '${{URL}}'; in a password : / @ are %3A %2F %40",
        ),
        **more,
        "format": one_of(*FORMATS),
        "key": Option("", str, "write columns of the result, as in key = 'cid'"),
        "timeout": Option("10 seconds", timeout, "write a length of time, as in timeout = '5 seconds'"),
    }


class BrokerSink(Sink):
    """Sends each delta as a message. A subclass says how; what the client library raises is made an error here."""

    package: ClassVar[str]
    """The client library's module."""
    extra: ClassVar[str]

    _ready = False

    def __init__(self, name: str, options: Mapping[str, str]) -> None:
        super().__init__(name, options)
        self.timeout = seconds(options["timeout"])
        self.url = options["url"]

    @abstractmethod
    def connect(self) -> None:
        """Makes the connection."""

    @abstractmethod
    def verify(self) -> None:
        """Raises what says that the place that messages go to is not there, or not ours; it is connected."""

    @abstractmethod
    def send(self, made: Sequence[Message]) -> None:
        """Returns when all are confirmed."""

    @abstractmethod
    def disconnect(self) -> None:
        """Ends the connection, if there is one; not when it is called a second time."""

    @abstractmethod
    def is_away(self, error: Exception) -> bool:
        """Whether the broker did not answer, rather than refuse."""

    def check(self) -> None:
        """Raises DestinationError where the broker answers, and refuses."""
        try:
            with self._failing():
                self.connect()
                self.verify()
        except Unreachable:
            return
        finally:
            with suppress(Exception):
                self.disconnect()

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises DestinationError where the key names no column, or Avro lacks a type."""
        key_names(self.options["key"], columns)
        if self.options["format"].lower() == "avro":
            Row(columns)

    def open(self) -> None:
        self._ready = False  # `write` connects, and does so again after a failure

    def write(self, batch: DeltaBatch) -> None:
        options = self.options
        made = messages(batch, self.name, self.token, options["format"].lower(), options["key"])
        try:
            with self._failing():
                if not self._ready:
                    self.connect()
                    self._ready = True
                self.send(made)
        except BaseException:  # nothing may be on its way any more when the batch comes again
            self._ready = False
            with suppress(Exception):
                self.disconnect()
            raise

    def close(self) -> None:
        self.disconnect()

    def library(self, module: str = "") -> Any:
        """The client library, or one of its modules. Raises DestinationError where it is not installed."""
        try:
            return importlib.import_module(module or self.package)
        except ModuleNotFoundError as error:
            raise DestinationError(
                f"{error.name}, the client library for {self.extra}, is not installed",
                hint=f"pip install 'cq-engine[{self.extra}]'",
            ) from error

    @property
    def shown(self) -> str:
        """The broker, without what is secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (DestinationError, LeaseError):
            raise
        except Exception as error:  # noqa: BLE001 - each library has errors of its own
            kind = Unreachable if self.is_away(error) else DestinationError
            said = " ".join(str(error).split())
            raise kind(f"{self.shown}: {self._clean(f'{type(error).__name__}: {said}')}") from None

    def _clean(self, said: str) -> str:
        for secret in account_of(self.url):
            for each in filter(None, (quote(secret, safe=""), quote(secret), secret)):
                said = said.replace(each, "***")
        return said
