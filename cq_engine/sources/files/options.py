"""The options of sources of the types csv, json and parquet."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

from cq_engine.catalog.model import DeclaredSource
from cq_engine.destinations.options import Option, one_of, seconds
from cq_engine.sources.paths import path_option

__all__ = ["OPTIONS", "value"]


def _not_empty(given: str) -> None:
    if not given:
        raise ValueError


def _character(given: str) -> None:
    if len(given.replace("\\t", "\t")) != 1 or not given.isascii():
        raise ValueError


def _one_or_none(given: str) -> None:
    if given:
        _character(given)


def _zone(given: str) -> None:
    try:
        ZoneInfo(given)
    except (KeyError, OSError) as error:
        raise ValueError from error


_FILES: Mapping[str, Option] = {
    "path": path_option("write the directory or URL of files, or one file, as in path = '/data/in'"),
    "pattern": Option("*", _not_empty, "write what the names look like, as in pattern = '*.csv'"),
    "settled": Option("2 seconds", seconds, "write a length of time, as in settled = '10 seconds'"),
    "order": one_of("time", "name"),
}
OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "csv": {
        **_FILES,
        "delimiter": Option(",", _character, "write one character, as in delimiter = ';', or '\\t'"),
        "header": one_of("true", "false"),
        "quote": Option('"', _one_or_none, "write one character, or '' where nothing is quoted"),
        "escape": Option("", _one_or_none, "write one character, as in escape = '\\'"),
        "null": Option("", str, "write the text that stands for NULL, as in null = 'NA'"),
        "time_zone": Option("UTC", _zone, "write the name of a time zone, as in time_zone = 'Europe/Berlin'"),
    },
    "json": _FILES,
    "parquet": _FILES,
}
"""By type."""


def value(declared: DeclaredSource, name: str) -> str:
    """The value of an option of the source; its default where it is not said."""
    return dict(declared.options).get(name, OPTIONS[declared.type][name].default or "")
