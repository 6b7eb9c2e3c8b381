"""A record of a log, and what gives the records after those that were read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cq_engine.catalog.model import Capture
from cq_engine.core.errors import SourceError

__all__ = ["Record", "Records"]


@dataclass(frozen=True)
class Record:
    """A line of a file, or a message of a partition."""

    place: str
    """Which file or partition."""
    start: int
    end: int
    """Where the next one begins. Where that is `start`, there is no record: so far everything was read."""
    text: bytes | None
    """None: a tombstone."""
    key: bytes | None = None
    milliseconds: int | None = None
    """When it was written, since 1970."""

    @property
    def is_mark(self) -> bool:
        """Whether it only says how far the place was read."""
        return self.end == self.start


class Records(ABC):
    """A log in one or more places, each of which grows at its end alone."""

    @abstractmethod
    def check(self) -> None:
        """Raises SourceError where there is nothing to be read."""

    @abstractmethod
    def reached(self, position: Mapping[str, Any]) -> dict[str, int]:
        """By place how far it was read, as the position of a capture has it. Raises SourceError for another log's."""

    @abstractmethod
    def position(self, reached: Mapping[str, int]) -> dict[str, Any]:
        """The position of a capture that has read so far."""

    @abstractmethod
    def read(self, reached: Mapping[str, int]) -> Iterator[Record]:
        """The records after those, up to where the log ends now. Raises SourceError."""

    @abstractmethod
    def ends(self) -> dict[str, int]:
        """By place where it ends now. Raises SourceError."""

    @abstractmethod
    def shown(self, record: Record) -> str:
        """The name of the record's place."""

    @abstractmethod
    def refused(self, capture: Capture, record: Record, reason: str) -> SourceError:
        """The error for a record that cannot be read."""
