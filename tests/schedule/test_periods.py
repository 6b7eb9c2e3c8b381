"""When WHEN clauses are due, in UTC and across changes of the clock."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq_engine.core.errors import AnalysisError
from cq_engine.grammar.clauses import Cron, EveryInterval, OnCommit, OnDemand, OnDml, StartWithPeriod, When
from cq_engine.schedule.periods import PeriodTrigger, first_due, trigger_for

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def next_moments(when: When, after: str, count: int, zone: ZoneInfo | timezone = UTC) -> list[str]:
    trigger = trigger_for(when, at(after), zone)
    assert trigger is not None
    found, moment = [], at(after)
    for _ in range(count):
        following = trigger.get_next_fire_time(moment, moment)
        assert following is not None
        moment = following
        found.append(moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("SECOND", ["2024-01-31 12:00:02", "2024-01-31 12:00:04"]),
        ("MINUTE", ["2024-01-31 12:02:00", "2024-01-31 12:04:00"]),
        ("HOUR", ["2024-01-31 14:00:00", "2024-01-31 16:00:00"]),
        ("DAY", ["2024-02-02 12:00:00", "2024-02-04 12:00:00"]),
        ("WEEK", ["2024-02-14 12:00:00", "2024-02-28 12:00:00"]),
        ("MONTH", ["2024-03-31 12:00:00", "2024-05-31 12:00:00"]),
    ],
)
def test_every_interval_counts_from_its_creation(unit: str, expected: list[str]) -> None:
    assert next_moments(EveryInterval(2, unit), "2024-01-31 12:00:00", 2) == expected


def test_months_without_a_31st_use_their_last_day_and_do_not_drift() -> None:
    moments = next_moments(EveryInterval(1, "MONTH"), "2024-01-31 00:00:00", 3)
    assert [moment[:10] for moment in moments] == ["2024-02-29", "2024-03-31", "2024-04-30"]


def test_start_with_period_is_aligned_to_its_start() -> None:
    when = StartWithPeriod("2024-01-01 06:00:00", 6, "HOUR")
    assert next_moments(when, "2024-03-05 13:37:00", 2) == ["2024-03-05 18:00:00", "2024-03-06 00:00:00"]
    assert next_moments(when, "2023-06-01 00:00:00", 1) == ["2024-01-01 06:00:00"]


@pytest.mark.parametrize("start", ["2024-01-01T06:00:00Z", "2024-01-01 07:00:00+01:00", "2024-01-01 06:00"])
def test_a_start_may_name_its_zone(start: str) -> None:
    assert next_moments(StartWithPeriod(start, 1, "DAY"), "2023-12-01 00:00:00", 1) == ["2024-01-01 06:00:00"]


def test_a_start_without_a_zone_is_in_the_schedulers() -> None:
    when = StartWithPeriod("2024-01-01 06:00:00", 1, "DAY")
    assert next_moments(when, "2023-12-01 00:00:00", 1, BERLIN) == ["2024-01-01 05:00:00"]


def test_days_keep_the_time_of_day_and_hours_keep_their_length_when_the_clock_changes() -> None:
    daily = StartWithPeriod("2024-03-30 12:00:00", 1, "DAY")
    assert next_moments(daily, "2024-03-30 00:00:00", 2, BERLIN) == [
        "2024-03-30 11:00:00",
        "2024-03-31 10:00:00",
    ]
    hourly = StartWithPeriod("2024-03-30 12:00:00", 24, "HOUR")
    assert next_moments(hourly, "2024-03-30 00:00:00", 2, BERLIN)[1] == "2024-03-31 11:00:00"


@given(
    st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1)),  # noqa: DTZ001 - hypothesis wants naive bounds
    st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1)),  # noqa: DTZ001
    st.integers(1, 400),
    st.sampled_from(["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH"]),
    st.sampled_from([UTC, BERLIN, ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe")]),
)
def test_the_next_moment_is_the_first_of_the_grid_after_now(
    anchor: datetime, now: datetime, count: int, unit: str, zone: ZoneInfo
) -> None:
    trigger = PeriodTrigger(anchor.replace(tzinfo=UTC), count, unit, first=0, zone=zone)
    moment = now.replace(tzinfo=UTC)
    due = trigger.get_next_fire_time(None, moment)
    assert due is not None
    assert due >= moment
    again = trigger.get_next_fire_time(due, due)
    assert again is not None
    assert again > due
    longest = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 604800, "MONTH": 31 * 86400}
    widest = timedelta(seconds=longest[unit] * count) + timedelta(hours=2)
    assert again - due <= widest
    if due - moment > timedelta(0) and moment >= anchor.replace(tzinfo=UTC):
        assert due - moment <= widest


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/15 * * * *", ["2024-01-01 00:15:00", "2024-01-01 00:30:00"]),  # 2024-01-01 is a Monday
        ("0 6 * * 0", ["2024-01-07 06:00:00", "2024-01-14 06:00:00"]),
        ("0 6 * * 7", ["2024-01-07 06:00:00", "2024-01-14 06:00:00"]),
        ("0 6 * * 1-5", ["2024-01-01 06:00:00", "2024-01-02 06:00:00"]),
        ("0 6 * * fri-sun", ["2024-01-05 06:00:00", "2024-01-06 06:00:00"]),
        ("0 6 * * 5-7", ["2024-01-05 06:00:00", "2024-01-06 06:00:00"]),
        ("0 6 * * */3", ["2024-01-03 06:00:00", "2024-01-06 06:00:00"]),
        ("0 6 * * MON,Thu", ["2024-01-01 06:00:00", "2024-01-04 06:00:00"]),
        ("30 4 1 * 5", ["2024-01-01 04:30:00", "2024-01-05 04:30:00"]),  # either day, as cron has it
        ("30 4 31 JAN *", ["2024-01-31 04:30:00", "2025-01-31 04:30:00"]),
    ],
)
def test_cron_follows_crons_own_rules(expression: str, expected: list[str]) -> None:
    assert next_moments(Cron(expression), "2024-01-01 00:00:00", 2) == expected


def test_cron_is_in_the_schedulers_zone() -> None:
    assert next_moments(Cron("0 6 * * *"), "2024-07-01 00:00:00", 1, BERLIN) == ["2024-07-01 04:00:00"]


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "61 * * * *", "* * * * 8", "* * * * fri-mon", "a * * * *", "* * * * 1-5/x", "@daily"],
)
def test_a_wrong_cron_expression_is_an_error(expression: str) -> None:
    with pytest.raises(AnalysisError, match="is not a cron expression") as raised:
        trigger_for(Cron(expression), at("2024-01-01"), UTC)
    assert "five fields" in raised.value.hint


@pytest.mark.parametrize(
    "when",
    [EveryInterval(0, "DAY"), EveryInterval(1, "FORTNIGHT"), StartWithPeriod("soon", 1, "DAY")],
)
def test_a_wrong_period_is_an_error(when: When) -> None:
    with pytest.raises(AnalysisError):
        trigger_for(when, at("2024-01-01"), UTC)


def test_a_period_past_the_end_of_time_never_comes() -> None:
    for unit in ("HOUR", "DAY", "MONTH"):
        trigger = trigger_for(EveryInterval(90_000_000, unit), at("2024-01-01"), UTC)
        assert trigger is not None
        assert trigger.get_next_fire_time(None, at("2024-01-01")) is None


@pytest.mark.parametrize("when", [OnCommit(), OnDemand(), OnDml(("INSERT",), ("t",))])
def test_no_clock_moves_the_others(when: When) -> None:
    assert trigger_for(when, at("2024-01-01"), UTC) is None


def test_what_a_restart_owes_is_due_at_once_and_otherwise_in_time() -> None:
    now, when = at("2024-01-10 12:30:00"), StartWithPeriod("2024-01-01 00:00:00", 1, "HOUR")
    trigger = trigger_for(when, now, UTC)
    assert trigger is not None
    assert first_due(trigger, None, now) == at("2024-01-10 13:00:00")
    assert first_due(trigger, at("2024-01-10 12:10:00"), now) == at("2024-01-10 13:00:00")
    assert first_due(trigger, at("2024-01-10 11:59:59"), now) == now
    assert first_due(trigger, at("2024-01-02 00:00:00"), now) == now
