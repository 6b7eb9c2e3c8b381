"""Time, injected: everything that asks for the time asks a Clock."""

from __future__ import annotations

from datetime import datetime, timezone

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock:
    """Gives the time as an aware UTC datetime. Subclass it to replay history or to test schedules."""

    def now(self) -> datetime:
        raise NotImplementedError


class SystemClock(Clock):
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)


class ManualClock(Clock):
    """A clock that stands still until it is told to move.

    >>> clock = ManualClock(datetime(2013, 1, 1, tzinfo=timezone.utc))
    >>> clock.set(datetime(2013, 1, 2, tzinfo=timezone.utc)); clock.now().day
    2
    """

    def __init__(self, start: datetime) -> None:
        self._now = _utc(start)

    def now(self) -> datetime:
        return self._now

    def set(self, moment: datetime) -> None:
        """Moves the clock to `moment`; a naive datetime is taken as UTC."""
        self._now = _utc(moment)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
