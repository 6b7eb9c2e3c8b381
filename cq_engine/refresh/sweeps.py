"""What sweeps over remote tables have cost, refresh by refresh.

The capture that sweeps for a query counts from its creation on (`all`), and its position has what it had counted by which of its
commits (`marks`), as far as the query has not got there. What a refresh over commits took is the difference between two of these. What
was counted without a commit goes with the next one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cq_engine.catalog.model import CaptureStatus, ContinuousQuery
from cq_engine.catalog.sources import sweep_of
from cq_engine.catalog.store import Catalog

__all__ = ["WORDS", "Mark", "in_words", "marks_after", "swept"]

Figures = Mapping[str, float]
Mark = Sequence[Any]
"""A commit's version, and what had been counted by then."""

WORDS = {
    "messages": "questions sent",
    "keys_sent": "keys shipped there",
    "rows_received": "rows shipped here",
    "compensations": "answers compensated",
    "rows_compensated": "rows compensated",
    "absorbed": "transactions absorbed",
    "forced": "sweeps forced to end",
    "waits": "answers ahead of the log",
    "asked_again": "questions sent again",
    "seconds_asking": "seconds asking",
    "seconds_waiting": "seconds waiting for the log",
}
"""By figure what it is called for a person."""


def in_words(found: Figures) -> dict[str, float]:
    """The figures under the names that a person reads, in their order."""
    return {words: found[name] for name, words in WORDS.items() if name in found}


def marks_after(status: CaptureStatus, position: int) -> list[Mark]:
    """What had been counted by each of the capture's commits: those after a query's position, and the one before."""
    known = json.loads(status.position).get("figures", {}) if status.position else {}
    marks: list[Mark] = list(known.get("marks", ()))
    if status.version and (not marks or marks[-1][0] < status.version):
        marks.append([status.version, known.get("all", {})])
    passed = sum(1 for version, _ in marks if version <= position)
    return marks[max(0, passed - 1) :]


def swept(catalog: Catalog, query: ContinuousQuery, after: int, upto: int) -> str:
    """What the commits after a version, up to another one, have cost at the sources; empty where that is nothing."""
    capture = sweep_of(catalog.state, query)
    if capture is None:
        return ""
    marks = marks_after(catalog.capture_status(capture.name), after)
    begin, end = _by(marks, after), _by(marks, upto)
    cost = {name: round(value - begin.get(name, 0), 4) for name, value in end.items()}
    return ", ".join(f"{value:g} {words}" for words, value in in_words(cost).items() if value > 0)


def _by(marks: Sequence[Mark], version: int) -> Figures:
    found: list[Figures] = [counted for at, counted in marks if at <= version]
    return found[-1] if found else {}
