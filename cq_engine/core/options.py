"""All options: those of the engine (`conf` of `connect`, `--conf` of the command, SET), and those that tables and
continuous queries have in WITH (...). Spark's, `spark.*`, are not among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from cq_engine.core.errors import AnalysisError, did_you_mean

__all__ = [
    "COPY_PATHS",
    "JOIN",
    "LOOK_UP_CACHE",
    "MAINTENANCE",
    "MEMORY",
    "OPTIONS",
    "ORDER",
    "RESTRICTED",
    "RETENTION",
    "SHED",
    "STORAGE",
    "Option",
    "check_conf",
    "check_option",
    "check_set",
    "is_manual",
    "look_up_cache",
    "option_names",
    "option_value",
    "parse_memory",
    "parse_paths",
    "parse_retention",
    "parse_shed",
    "parse_size",
]

MAINTENANCE = "maintenance"
LOOK_UP_CACHE = "look_up_cache"
RESTRICTED = "restricted"
COPY_PATHS = "copy_paths"
RETENTION = "retention"
JOIN = "join"
MEMORY = "memory"
ORDER = "order"
SHED = "shed"

STORAGE = "storage."
"""What options of the object store begin with. They are given when the warehouse is opened, and checked there."""

_SPARK = "spark."
_URL = re.compile(r"[A-Za-z][\w+.-]*://.")
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)b?\s*", re.IGNORECASE)
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_LEAST_MEMORY = 64 * 2**10
_LENGTH = re.compile(r"\s*(\d+)\s*(minute|hour|day|week)s?\s*", re.IGNORECASE)
_SECONDS = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


@dataclass(frozen=True)
class Option:
    """An option of the engine, of tables or of queries. `check` raises AnalysisError for a value that it does not have."""

    default: str
    owners: tuple[str, ...]
    check: Callable[[str], object]
    by_set: bool = True
    """SET may change it."""


def parse_retention(text: str) -> timedelta | None:
    """A length of time such as '7 days' or '36 hours'; None for 'forever'. Raises AnalysisError."""
    if text.strip().lower() == "forever":
        return None
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise AnalysisError(
            f"{RETENTION} = '{text}' is no length of time",
            hint="write a number of minutes, hours, days or weeks, as in '7 days', or 'forever'",
        )
    try:
        return timedelta(seconds=int(found[1]) * _SECONDS[found[2].lower()])
    except OverflowError:
        return None


def parse_size(text: str) -> int:
    """Bytes: a number of MB or GB, such as '500 MB'; 0 for 'off'. Raises AnalysisError."""
    if text.lower() == "off":
        return 0
    found = _SIZE.fullmatch(text)
    if found is None:
        raise AnalysisError(
            f"{LOOK_UP_CACHE} = '{text}' is no size",
            hint="write a number of MB or GB, as in '500 MB', or 'off'",
        )
    return int(found[1]) * _BYTES[found[2].lower()]


def parse_memory(text: str) -> int:
    """The budget of a mesh join in bytes, such as '64 MB'. Raises AnalysisError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise AnalysisError(
            f"{MEMORY} = '{text}' is no size", hint="write a number of KB, MB or GB, as in '64 MB'"
        )
    size = int(found[1]) * _BYTES[found[2].lower()]
    if size < _LEAST_MEMORY:
        raise AnalysisError(
            f"{MEMORY} = '{text}' is too little for a mesh join",
            hint=f"it needs {_LEAST_MEMORY // 2**10} KB at least: a part of a page of the table, and keys that meet it",
        )
    return size


def parse_shed(text: str) -> int | None:
    """How many change rows may wait for the readers of a query before rows are left out; None for 'off'. Raises AnalysisError."""
    if text.strip().lower() == "off":
        return None
    if not re.fullmatch(r"\s*[1-9]\d*\s*", text):
        raise AnalysisError(
            f"{SHED} = '{text}' is no number of rows",
            hint="write how many change rows may wait for the slowest reader, as in '100000', or 'off'",
        )
    return int(text)


def parse_paths(text: str) -> tuple[str, ...]:
    """Absolute directories and URLs, separated by commas. Raises AnalysisError."""
    paths = tuple(path.strip() for path in text.split(",") if path.strip())
    for path in paths:
        if not path.startswith("/") and not _URL.match(path):
            raise AnalysisError(
                f"{COPY_PATHS} has {path}, which is no absolute path",
                hint="write directories or URLs, separated by commas, as in '/srv/loads, s3a://bucket/in'",
            )
    return paths


def _one_of(name: str, *values: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value.lower() not in values:
            shown = " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))
            raise AnalysisError(f"option {name} = {value.lower()} is unknown", hint=f"it is {shown}")

    return check


_ENGINE, _TABLE, _QUERY = "engine", "table", "query"
OPTIONS: Mapping[str, Option] = {
    MAINTENANCE: Option("background", (_ENGINE,), _one_of(MAINTENANCE, "background", "manual")),
    LOOK_UP_CACHE: Option("2 GB", (_ENGINE,), parse_size),
    RESTRICTED: Option("off", (_ENGINE,), _one_of(RESTRICTED, "on", "off"), by_set=False),
    COPY_PATHS: Option("", (_ENGINE,), parse_paths, by_set=False),
    RETENTION: Option("7 days", (_ENGINE, _TABLE, _QUERY), parse_retention),
    "refresh": Option("auto", (_QUERY,), _one_of("refresh", "auto", "incremental", "full")),
    "form": Option(
        "auto", (_QUERY,), _one_of("form", "auto", "general", "fk_pk", "fk_pk_units", "recompute")
    ),
    "complete": Option("auto", (_QUERY,), _one_of("complete", "auto", "lookup")),
    "pre_image": Option("auto", (_QUERY,), _one_of("pre_image", "auto", "undo", "sql")),
    JOIN: Option("look_up", (_QUERY,), _one_of(JOIN, "look_up", "mesh", "auto")),
    MEMORY: Option("64 MB", (_QUERY,), parse_memory),
    ORDER: Option("arrival", (_QUERY,), _one_of(ORDER, "arrival")),
    SHED: Option("off", (_QUERY,), parse_shed),
    "query_group": Option("auto", (_QUERY,), _one_of("query_group", "auto", "on", "off")),
}
"""By name, in lower case."""


def option_names(owner: str) -> tuple[str, ...]:
    """The options of 'engine', 'table' or 'query'."""
    return tuple(name for name, option in OPTIONS.items() if owner in option.owners)


def option_value(name: str, options: Mapping[str, str]) -> str:
    """What `options`, by names in lower case, say of an option, or its default. Raises AnalysisError."""
    value = options.get(name, OPTIONS[name].default)
    OPTIONS[name].check(value)
    return value


def check_option(name: str, value: str) -> None:
    """Raises AnalysisError for a name that is no option of the engine, and for a value that the option does not have.
    Spark's options pass."""
    names = option_names(_ENGINE)
    if name.startswith((_SPARK, STORAGE)):
        return
    if name.lower() not in names:
        listed = f"options are {', '.join(sorted(names))}, and those of Spark and of object stores, which begin with {_SPARK} and {STORAGE}"
        raise AnalysisError(f"there is no option {name}", hint=did_you_mean(name.lower(), names, listed))
    OPTIONS[name.lower()].check(value)


def check_conf(conf: Mapping[str, object]) -> dict[str, str]:
    """The `conf` of `connect`: engine options by names in lower case, and Spark's. Raises AnalysisError."""
    checked: dict[str, str] = {}
    for name, value in conf.items():
        if not isinstance(value, str) and not name.startswith(_SPARK):
            shown = "of a type" if name.startswith(STORAGE) else repr(value)
            raise AnalysisError(
                f"option {name} is {shown}, which is no text", hint="write its value as a string"
            )
        check_option(name, str(value))
        checked[name if name.startswith(_SPARK) else name.lower()] = str(value)
    return checked


def check_set(name: str, value: str) -> None:
    """Raises AnalysisError where SET may not give the option `name` this value."""
    check_option(name, value)
    if name.lower().startswith(STORAGE):
        raise AnalysisError(
            f"{name} cannot be SET",
            detail="how the store is reached is known when the warehouse is opened",
            hint="give it to connect(..., conf={...}) or cq --conf, or in the environment",
        )
    if name.lower() in OPTIONS and not OPTIONS[name.lower()].by_set:
        raise AnalysisError(
            f"{name} cannot be SET",
            detail="what statements may do is not for statements to say",
            hint=f'it is given when the warehouse is opened: connect(..., conf={{"{name.lower()}": ...}}), cq --conf',
        )


def is_manual(conf: Mapping[str, str]) -> bool:
    """`maintenance`: 'background', which is the default, or 'manual'. Raises AnalysisError."""
    return option_value(MAINTENANCE, conf).lower() == "manual"


def look_up_cache(conf: Mapping[str, str]) -> int:
    """`look_up_cache` in bytes, by default 2 GB; 0 for 'off'. Raises AnalysisError."""
    return parse_size(option_value(LOOK_UP_CACHE, conf))
