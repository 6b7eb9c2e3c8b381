"""How deeply a statement may be nested: whatever reads it goes down once for each level, and no stack is endless."""

from __future__ import annotations

import re

__all__ = ["MAX_LEVELS", "too_deep"]

MAX_LEVELS = 200
"""The most levels of brackets, CASE and nested types, and the most NOT, EXPLAIN and signs in a row."""

_LEVEL = re.compile(
    r"(?P<down>\(|(?<![\w.])CASE(?!\w)|(?<!\w)(?:ARRAY|MAP|STRUCT)\s*<)|(?P<up>\)|(?<![\w.])END(?!\w)|>)",
    re.I,
)
_PREFIXES = re.compile(rf"(?:(?:(?<!\w)(?:NOT|EXPLAIN)(?!\w)|[-+~!])\s*){{{MAX_LEVELS + 1}}}", re.I)


def too_deep(skeleton: str) -> int | None:
    """Where a statement without comments, strings and quoted names (see `scan`) is nested too deeply, if it is."""
    depth = types = 0
    for mark in _LEVEL.finditer(skeleton):
        text = mark.group()
        if mark.lastgroup == "down":
            depth += 1
            types += text[-1] == "<"
            if depth > MAX_LEVELS:
                return mark.start()
        elif text != ">":
            depth = max(0, depth - 1)
        elif types:
            types, depth = types - 1, max(0, depth - 1)
    run = _PREFIXES.search(skeleton)
    return None if run is None else run.start()
