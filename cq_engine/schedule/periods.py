"""When a periodic continuous query is due: WHEN clauses as APScheduler triggers, and what a restart owes.

Pure: every function takes the moment it asks about, so that an injected clock decides. Moments are aware datetimes.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable
from datetime import MAXYEAR, datetime, timedelta, timezone, tzinfo
from typing import Any, Protocol

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from cq_engine.core.errors import AnalysisError
from cq_engine.grammar.clauses import Cron, EveryInterval, StartWithPeriod, When

__all__ = ["PeriodTrigger", "Trigger", "first_due", "trigger_for"]

_FIXED = {"SECOND": timedelta(seconds=1), "MINUTE": timedelta(minutes=1), "HOUR": timedelta(hours=1)}
_CALENDAR = {"DAY": timedelta(days=1), "WEEK": timedelta(weeks=1), "MONTH": timedelta(days=31)}
"""At most this long, up to a change of the clock: enough to guess where to look for the next moment."""

_CRON_FIELDS = 5
_CRON_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Trigger(Protocol):
    """What APScheduler asks of a trigger."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """The first moment not before `now`, or after `previous_fire_time` where that is given; None: never again."""


class PeriodTrigger(BaseTrigger):  # type: ignore[misc] # APScheduler has no types
    """Fires at anchor + k · count units, for k = first, first + 1, …

    Seconds, minutes and hours are durations. Days, weeks and months keep the time of day in `zone` across changes of
    the clock; the 31st of a month without one is its last day.
    """

    def __init__(self, anchor: datetime, count: int, unit: str, *, first: int, zone: tzinfo) -> None:
        if count < 1:
            raise AnalysisError(f"a period of {count} {unit} is not possible", hint="use at least 1")
        if unit not in _FIXED and unit not in _CALENDAR:
            raise AnalysisError(
                f"{unit} is no unit of a period", hint=f"use one of {', '.join([*_FIXED, *_CALENDAR])}"
            )
        self._anchor = anchor.astimezone(zone)
        self._count = count
        self._unit = unit
        self._first = first
        self._zone = zone

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """The first moment at or after `now`; after a firing, the first after it and after `now`."""
        try:
            if previous_fire_time is None:
                return self._search(lambda moment: moment >= now, now)
            after = max(previous_fire_time, now)
            return self._search(lambda moment: moment > after, after)
        except OverflowError:  # past the year 9999
            return None

    def _search(self, wanted: Callable[[datetime], bool], near: datetime) -> datetime:
        longest = (_FIXED.get(self._unit) or _CALENDAR[self._unit]) * self._count
        step = max(self._first, (near - self._anchor) // longest - 1)
        while not wanted(self._moment(step)):
            step += 1
        return self._moment(step)

    def _moment(self, step: int) -> datetime:
        units = step * self._count
        if self._unit in _FIXED:
            return self._anchor.astimezone(timezone.utc) + units * _FIXED[self._unit]
        wall = self._anchor.replace(tzinfo=None)
        moved = _add_months(wall, units) if self._unit == "MONTH" else wall + units * _CALENDAR[self._unit]
        return moved.replace(tzinfo=self._zone).astimezone(timezone.utc)


def trigger_for(when: When, created: datetime, zone: tzinfo) -> Trigger | None:
    """The trigger of a WHEN clause, or None where no clock moves the query.

    Args:
        when: the clause.
        created: where EVERY INTERVAL starts to count: the last run, or the moment the schedule was made.
        zone: the time zone of CRON, of a START without one, and of days, weeks and months.

    Raises:
        AnalysisError: the period, timestamp or cron expression is not valid.
    """
    if isinstance(when, EveryInterval):
        return PeriodTrigger(created, when.count, when.unit, first=1, zone=zone)
    if isinstance(when, StartWithPeriod):
        start = _parse_start(when.start, zone)
        return PeriodTrigger(start, when.count, when.unit, first=0, zone=zone)
    if isinstance(when, Cron):
        return _cron_trigger(when.expression, zone)
    return None


def first_due(trigger: Trigger, last_run: datetime | None, now: datetime) -> datetime | None:
    """When a query is first due: at once where a moment since `last_run` was missed, however many there were."""
    if last_run is None:
        return trigger.get_next_fire_time(None, now)
    due = trigger.get_next_fire_time(last_run, last_run)
    return None if due is None else max(due, now)


def _add_months(wall: datetime, months: int) -> datetime:
    year, month = divmod(wall.year * 12 + wall.month - 1 + months, 12)
    if year > MAXYEAR:
        raise OverflowError
    return wall.replace(
        year=year, month=month + 1, day=min(wall.day, calendar.monthrange(year, month + 1)[1])
    )


def _read(text: str) -> datetime | None:
    """ISO 8601, or month-day-year as in the paper's own examples (slide 17)."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    for pattern in ("%m-%d-%Y", "%m-%d-%Y %H:%M:%S"):
        try:
            return datetime.strptime(text, pattern)  # noqa: DTZ007 - the zone is the caller's
        except ValueError:
            continue
    return None


def _parse_start(text: str, zone: tzinfo) -> datetime:
    iso = text.strip()
    if iso[-1:] in {"Z", "z"}:  # Python 3.10 does not read it
        iso = f"{iso[:-1]}+00:00"
    start = _read(iso)
    if start is None:
        raise AnalysisError(
            f"START {text!r} is not a timestamp",
            hint="write it like '2013-01-01 06:00:00', with or without a zone",
        )
    return start.replace(tzinfo=zone) if start.tzinfo is None else start


def _cron_trigger(expression: str, zone: tzinfo) -> Trigger:
    """A trigger with cron's own rules, where APScheduler's differ.

    In cron 0 and 7 are Sunday (APScheduler counts from Monday), and where both the day of the month and the day of
    the week are restricted, either may match (APScheduler wants both).
    """
    fields = expression.split()
    if len(fields) != _CRON_FIELDS:
        raise _cron_error(expression, f"it has {len(fields)} fields")
    minute, hour, day, month, weekday = fields
    common: dict[str, Any] = {"minute": minute, "hour": hour, "month": month.lower(), "timezone": zone}
    try:
        weekday = _weekdays(weekday)
        if day.startswith("*") or weekday == "*":
            return _as_trigger(CronTrigger(day=day, day_of_week=weekday, **common))
        either = (CronTrigger(day=day, **common), CronTrigger(day_of_week=weekday, **common))
    except (ValueError, TypeError) as error:
        raise _cron_error(expression, str(error)) from error
    return _as_trigger(OrTrigger(list(either)))


def _weekdays(field: str) -> str:
    """Cron's day-of-week field as a list of names, or `*`.

    Raises:
        ValueError: it is not such a field.
    """
    days: set[str] = set()
    for item in field.lower().split(","):
        span, _, step = item.partition("/")
        if span == "*":
            if not step:
                return "*"
            low, high = 0, 6
        else:
            low_text, _, high_text = span.partition("-")
            low = _weekday(low_text)
            high = _weekday(high_text) if high_text else low
            high = 7 if high == 0 and low > 0 else high
        if low > high:
            raise ValueError(f"the days {item!r} are in the wrong order")
        days.update(_CRON_DAYS[low : high + 1 : int(step or 1)])
    return ",".join(sorted(days))


def _weekday(text: str) -> int:
    number = _CRON_DAYS.index(text) if text in _CRON_DAYS else int(text)
    if not 0 <= number < len(_CRON_DAYS):
        raise ValueError(f"there is no day {text}")
    return number


def _as_trigger(trigger: Any) -> Trigger:
    found: Trigger = trigger
    return found


def _cron_error(expression: str, detail: str) -> AnalysisError:
    return AnalysisError(
        f"CRON {expression!r} is not a cron expression",
        detail=detail,
        hint="five fields: minute, hour, day of month, month, day of week, like '*/15 6-22 * * mon-fri'",
    )
