"""What a query's deltas must add up to, recomputed from the tables after every commit."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from cq_engine.api.engine import Engine

Row = tuple[Any, ...]


def image(engine: Engine, text: str, version: int) -> Counter[Row]:
    """The rows of a query over the table `t`, and `d`, after commit `version`."""
    at = re.sub(r"\b([td]) \1\b", rf"\1 VERSION AS OF {version} AS \1", text)
    assert at != text
    return Counter(tuple(row) for row in engine.execute(at).fetchall())


def check_law(engine: Engine, name: str, text: str, since: int, upto: int | None = None) -> int:
    """The deltas, added to the result at `since` commit by commit, give the result at every commit; how many there
    were. The tables stand in `text` with an alias of their own name: FROM t t."""
    result = image(engine, text, since)
    deltas = list(engine.deltas(name, after_version=since))
    for version in range(since + 1, (upto or engine.describe(name).position) + 1):
        for delta in (d for d in deltas if d.commit_version == version):
            if delta.old is not None:
                old = tuple(delta.old)
                assert result[old] > 0, f"{old} leaves at {version} and was not there"
                result[old] -= 1
            if delta.new is not None:
                result[tuple(delta.new)] += 1
        assert +result == image(engine, text, version), f"{name} at version {version}"
    return len(deltas)
