"""Commit versions and their timestamps, in memory: two arrays of 64-bit integers, searched by bisection."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta, timezone

from cq_engine.core.errors import StorageError, TransactionError

__all__ = ["CommitIndex", "from_micros", "to_micros"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970; a naive datetime is taken as UTC.

    >>> to_micros(datetime(1970, 1, 1, 0, 0, 1))
    1000000
    """
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


class CommitIndex:
    """The commits in version order. Timestamps do not decrease."""

    def __init__(self) -> None:
        self._versions = array("q")
        self._micros = array("q")

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def newest_version(self) -> int:
        return self._versions[-1] if self._versions else 0

    @property
    def newest_timestamp(self) -> datetime | None:
        return from_micros(self._micros[-1]) if self._micros else None

    def check_next(self, version: int, micros: int) -> None:
        """Raises TransactionError where (version, micros) cannot follow the newest commit."""
        if version <= self.newest_version:
            raise TransactionError(
                f"commit version {version} does not follow {self.newest_version}",
                detail="commit versions strictly increase",
            )
        if self._micros and micros < self._micros[-1]:
            raise TransactionError(
                f"commit time {from_micros(micros).isoformat()} lies before that of the newest commit,"
                f" {from_micros(self._micros[-1]).isoformat()}",
                detail="commit times never decrease",
                hint="to replay history give the engine a clock that starts there",
            )

    def add(self, version: int, micros: int) -> None:
        self._versions.append(version)
        self._micros.append(micros)

    def outside(self, below: int, spans: Iterable[tuple[int, int]]) -> list[int]:
        """The commits below a version that lie in none of the spans (both ends inclusive), without the first commit."""
        found: list[int] = []
        kept, at, high = sorted(spans), 0, 0
        for version in self._versions[1 : bisect_left(self._versions, below)]:
            while at < len(kept) and kept[at][0] <= version:
                high, at = max(high, kept[at][1]), at + 1
            if version > high:
                found.append(version)
        return found

    def without(self, versions: Collection[int]) -> CommitIndex:
        """The other commits."""
        gone, left = frozenset(versions), CommitIndex()
        for version, micros in zip(self._versions, self._micros):
            if version not in gone:
                left.add(version, micros)
        return left

    def timestamp(self, version: int) -> datetime:
        """Raises StorageError where there is no such commit."""
        place = bisect_left(self._versions, version)
        if place == len(self._versions) or self._versions[place] != version:
            raise StorageError(
                f"there is no commit version {version}", detail=f"the newest is {self.newest_version}"
            )
        return from_micros(self._micros[place])

    def timestamps(self, low: int, high: int) -> dict[int, datetime]:
        """The commits with low <= version <= high."""
        first, end = bisect_left(self._versions, low), bisect_right(self._versions, high)
        return {self._versions[i]: from_micros(self._micros[i]) for i in range(first, end)}

    def version_at(self, moment: datetime) -> int:
        """The newest commit at or before `moment`; StorageError where that lies before the first."""
        place = bisect_right(self._micros, to_micros(moment))
        if place == 0:
            first = (
                f"the first commit was at {from_micros(self._micros[0]).isoformat()}" if self._micros else ""
            )
            raise StorageError(
                f"there was no commit at {moment.isoformat()} yet",
                detail=first or "there is no commit at all",
            )
        return self._versions[place - 1]
