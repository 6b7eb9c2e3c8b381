"""The engine's options: `conf` of `connect`, `--conf` of the command, SET. Those of Spark, `spark.*`, are not among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from cq_engine.core.errors import AnalysisError
from cq_engine.maintenance.retention import KEPT, parse_retention
from cq_engine.maintenance.retention import OPTION as RETENTION

__all__ = ["LOOK_UP_CACHE", "MAINTENANCE", "check_option", "is_manual", "look_up_cache"]

MAINTENANCE = "maintenance"
LOOK_UP_CACHE = "look_up_cache"
_CACHE = "2 GB"
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)b?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def check_option(name: str, value: str) -> None:
    """Raises AnalysisError for a value that the option `name` does not have. Unknown names are nobody's."""
    known = _OPTIONS.get(name.lower())
    if known is not None:
        known({name.lower(): value})


def is_manual(conf: Mapping[str, str]) -> bool:
    """`maintenance`: 'background', which is the default, or 'manual'. Raises AnalysisError."""
    value = conf.get(MAINTENANCE, "background")
    if value.lower() not in ("background", "manual"):
        raise AnalysisError(f"{MAINTENANCE} = '{value}' is not known", hint="write 'background' or 'manual'")
    return value.lower() == "manual"


def look_up_cache(conf: Mapping[str, str]) -> int:
    """`look_up_cache` in bytes, by default 2 GB; 0 for 'off'. Raises AnalysisError."""
    value = conf.get(LOOK_UP_CACHE, _CACHE)
    found = _SIZE.fullmatch(value)
    if value.lower() == "off":
        return 0
    if found is None:
        raise AnalysisError(
            f"{LOOK_UP_CACHE} = '{value}' is no size",
            hint="write a number of MB or GB, as in '500 MB', or 'off'",
        )
    return int(found[1]) * _UNITS[found[2].lower()]


_OPTIONS: dict[str, Callable[[Mapping[str, str]], object]] = {
    MAINTENANCE: is_manual,
    LOOK_UP_CACHE: look_up_cache,
    RETENTION: lambda conf: parse_retention(conf.get(RETENTION, KEPT)),
}
