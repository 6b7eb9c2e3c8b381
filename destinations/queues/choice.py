"""Which messages a consumer is given: a function of where its group stands and of what comes next in the logs.

*Order.* Messages of one key (the same query and result key) are given in the order of the log. While a consumer has one that
is not finished, no other consumer is given one of this key. Where one is given again, those of its key behind it that the
consumer has are taken back, and come again after it.
"""

from __future__ import annotations

import heapq
import secrets
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cq_engine.catalog.queues import Given, Place, Position, Standing
from cq_engine.destinations.queues.logs import Window

__all__ = ["Choice", "Terms", "choose"]

_Key = tuple[str, int]


@dataclass(frozen=True)
class Terms:
    """How many messages `consumer` wants at the time `now`, and what the queue says; times in microseconds."""

    consumer: str
    count: int
    now: int
    visibility: int
    max_attempts: int
    room: int
    """So many messages that are not finished a group may have."""


@dataclass
class Choice:
    """What is to be given, and what is to be written for it."""

    given: list[Given] = field(default_factory=list)
    """In the order in which they are given."""
    rows: dict[tuple[str, Place], pa.Table] = field(default_factory=dict)
    """Of those that are new: their rows in the log."""
    taken_back: list[Given] = field(default_factory=list)
    passed: list[Given] = field(default_factory=list)
    """Messages before one that is given, which have to wait for their key."""
    lost: list[Given] = field(default_factory=list)
    """What the log does not keep any more."""
    positions: dict[str, Position] = field(default_factory=dict)
    exhausted: list[Given] = field(default_factory=list)
    """For the dead letters; their keys wait until they are there."""
    blocked: bool = False
    """Whether something waits for another consumer."""

    @property
    def changes(self) -> bool:
        return bool(self.given or self.lost or self.positions)


def choose(
    standing: Standing, windows: Mapping[str, Window], floors: Mapping[str, int], terms: Terms
) -> Choice:
    """The messages for one consumer.

    Args:
        standing: of the consumer's group.
        windows: by query, what comes in its log after the group's position there.
        floors: by query, the version up to which its log is not kept.
        terms: who wants how many.
    """
    choice = Choice()
    kept: list[Given] = []
    for each in standing.given:
        (choice.lost if each.version <= floors.get(each.query, 0) else kept).append(each)
    busy = {
        (each.query, each.key) for each in kept if each.due > terms.now and each.consumer != terms.consumer
    }
    ids = {query: window.query.id for query, window in windows.items()}
    kept.sort(key=lambda each: (each.version, ids.get(each.query, 0), each.sequence))
    _again(kept, busy, choice, terms)
    room = terms.room - len(kept)
    waiting: list[Given] = []
    behind: dict[str, Place] = {}
    for window, index in _in_order(standing, windows):
        if len(choice.given) >= terms.count or room <= len(waiting):
            break
        query = window.query.name.lower()
        new = Given(query, *window.places[index], window.keys[index])
        if (query, new.key) in busy:
            waiting.append(new)
            continue
        room -= 1
        _give(choice, new, terms)
        choice.rows[query, new.place] = window.wide.slice(index, 1)
        behind[query] = window.behind(index)
    else:  # all of the windows was looked at
        behind |= {query: window.upto for query, window in windows.items() if window.is_over}
    for each in waiting:
        if each.query in behind and each.place < behind[each.query]:
            choice.passed.append(each)
    choice.blocked = bool(waiting) or bool(busy & {(g.query, g.key) for g in kept if g.due <= terms.now})
    for query, place in behind.items():
        known = standing.positions.get(query) or Position(query, 0, 0)
        choice.positions[query] = replace(known, version=place[0], sequence=place[1])
    return choice


def _again(kept: list[Given], busy: set[_Key], choice: Choice, terms: Terms) -> None:
    """Gives what is due of `kept`, in order, and takes back what the consumer has behind it. Keys of dead letters to be become busy."""
    opened: set[_Key] = set()
    for each in kept:
        key, due = (each.query, each.key), each.due <= terms.now
        if due and each.attempt >= terms.max_attempts:
            choice.exhausted.append(each)
            busy.add(key)
        elif key not in busy and (due or key in opened):
            back = each if due else taken_back(each, terms.now)
            if len(choice.given) < terms.count:
                opened.add(key)
                _give(choice, back, terms)
            elif not due:
                choice.taken_back.append(back)


def taken_back(each: Given, now: int) -> Given:
    """A message that somebody has and that is to come again: as if it had not been given."""
    return replace(each, due=now, attempt=each.attempt - 1, consumer="", receipt=0)


def _give(choice: Choice, each: Given, terms: Terms) -> None:
    due, receipt = terms.now + terms.visibility, secrets.randbits(62) + 1
    choice.given.append(
        replace(each, due=due, attempt=each.attempt + 1, consumer=terms.consumer, receipt=receipt)
    )


def _in_order(standing: Standing, windows: Mapping[str, Window]) -> Iterator[tuple[Window, int]]:
    """What is new, in the order of versions, queries and sequences: that of the messages' ids."""

    def part(query: str, window: Window) -> Iterator[tuple[int, int, int, str]]:
        position = standing.positions.get(query)
        first = 0 if position is None else bisect_right(window.places, position.place)
        places, number = window.places, window.query.id
        return ((places[n][0], number, n, query) for n in range(first, len(places)))

    for _, _, index, query in heapq.merge(*(part(query, window) for query, window in windows.items())):
        yield windows[query], index
