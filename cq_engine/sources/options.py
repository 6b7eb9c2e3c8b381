"""The options in WITH (...) of captures, by their methods."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cq_engine.catalog.model import Capture
from cq_engine.destinations.options import Option, count, one_of, seconds

__all__ = ["METHODS", "keeps_copy", "option"]


def _slot(value: str) -> str:
    """The name of a replication slot, to which `cq_` may be added."""
    if not re.fullmatch(r"[a-z0-9_]{1,60}", value):
        raise ValueError(value)
    return value


_INITIAL: Mapping[str, Option] = {"initial": one_of("snapshot", "none")}
METHODS: Mapping[str, Mapping[str, Option]] = {
    "TIMESTAMP": {
        **_INITIAL,
        "overlap": Option("1 minute", seconds, "write a length of time, as in overlap = '5 minutes'"),
        "purge": one_of("false", "true"),
        "index": one_of("any", "covering"),
    },
    "CHECKSUM": {},
    "COPY": {"at": one_of("here", "source")},
    "RANGES": {"rows": Option("1000", count, "write how many rows a range has, as in RANGES (rows = 1000)")},
    "VIEW": {},
    "LOG": {
        **_INITIAL,
        "on_poison": one_of("stop", "dead_letter"),
        "install": one_of("false", "true"),
        "slot": Option(
            "", _slot, "write up to 60 lower-case letters, digits and underscores, as in slot = 'cq_orders'"
        ),
        "changed": one_of("error", "again", "ignore"),
    },
}
"""By method the options of a capture: of LOG those of all kinds of sources, of which each has some; of COPY that of databases."""


def option(capture: Capture, name: str) -> str:
    """The value of an option of the capture, in lower case; its default where it is not said."""
    known = METHODS[capture.method.kind][name]
    return dict(capture.options).get(name, known.default or "").lower()


def keeps_copy(capture: Capture) -> bool:
    """Whether the capture compares its source with a copy that is there."""
    return capture.method.kind == "COPY" and option(capture, "at") == "source"
