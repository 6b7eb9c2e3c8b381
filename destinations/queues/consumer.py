"""A consumer of a queue: it takes messages, and says what has become of them.

What it changes, it changes in one transaction of the catalog, which any process may write; what it reads of the logs, it
reads before and after that. It dies at no cost: what it has comes again when the visibility time-out has passed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pyarrow as pa
import sqlalchemy as sa

from cq_engine.catalog import queues
from cq_engine.catalog.groups import owner, owner_of
from cq_engine.catalog.model import ContinuousQuery
from cq_engine.catalog.queues import DEFAULT_GROUP, END, Given, Place, Standing
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, DestinationError
from cq_engine.destinations.dead_letters import bury
from cq_engine.destinations.envelope import deltas_of
from cq_engine.destinations.log import commit_times
from cq_engine.destinations.queues.choice import Choice, Terms, choose, taken_back
from cq_engine.destinations.queues.logs import Logs, Window, read_places
from cq_engine.destinations.queues.message import Message, MessageId, message_of, read_message_id
from cq_engine.destinations.queues.queue import Queue, queue_named

__all__ = ["Committed", "Consumer"]

Committed = Callable[[int, dict[str, frozenset[str]]], None]
"""Told of a commit: its version, and the tables that it changes, each with the kinds of change."""

_MICROS = 1_000_000
_REJECTED = "rejected"


class Consumer:
    """One consumer of a group, in any thread; `label` is what the group knows it by.

    Args:
        services: the engine's parts.
        logs: what the engine keeps of logs.
        queue: the name of the queue.
        group: the group's name; another one has other places in the logs.
        committed: told of commits that this makes (dead letters).
        label: by default one that nobody else has.

    Raises:
        CatalogError: there is no such queue.
    """

    def __init__(
        self,
        services: Services,
        logs: Logs,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        committed: Committed,
        label: str = "",
    ) -> None:
        self.services = services
        self.group = group
        self.label = label or secrets.token_hex(8)
        self._logs = logs
        self._committed = committed
        self._queue = queue_named(services.catalog.state, queue)
        self.requeued: set[tuple[str, int]] = set()
        """Keys of messages that were requeued: what the consumer has of them behind those is given again, too."""
        self._news = threading.Event()
        self._pause = 0.0
        self._closed = False
        services.catalog.watchers.add(self._tell)

    @property
    def visibility(self) -> float:
        """For how many seconds what it is given is its own."""
        return self._queue.visibility

    def close(self) -> None:
        """Ends waiting, in any thread. What it has been given stays with it until it is finished or due."""
        self._closed = True
        self.services.catalog.watchers.remove(self._tell)
        self._news.set()

    def _tell(self, moved: Collection[str] | None) -> None:
        if moved is None or any(owner_of(query) in moved for query in self._queue.queries):
            self._news.set()

    # ------------------------------------------------------------ taking

    def receive(self, count: int = 1, seconds: float | None = 0.0) -> list[Message]:
        """Messages, at most `count`; where there are none it waits for some, for so many seconds, or as long as it takes.

        Raises CatalogError where the queue is gone.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while not self._closed:
            self._news.clear()
            found = self.take(count)
            left = self._pause if end is None else min(self._pause, end - time.monotonic())
            if found or left <= 0:
                return found
            self._news.wait(left)
        return []

    def take(self, count: int = 1) -> list[Message]:
        """Messages that are there now, at most `count`."""
        found: list[Message] = []
        with self.services.read_holds.reading():
            while len(found) < count:
                some = self._take(count - len(found))
                if not some:
                    break
                found += some
        return found

    def _take(self, count: int) -> list[Message]:
        catalog = self.services.catalog
        while True:
            queue = self._look()
            self._pause = self.services.limits.queue_look_seconds
            if queue.paused:
                return []
            with catalog.reading() as connection:
                standing = queues.read(connection, queue.cursor, self.group)
                now = catalog.database_time(connection)
            windows = self._windows(queue, standing)
            choice = self._choose(queue, standing, windows, count, now)
            if choice.exhausted:
                self._give_up(queue, choice.exhausted)
                continue
            if not choice.changes:
                due = [each.due for each in standing.given if each.due > now]
                soonest = (min(due) - now) / _MICROS if due else self._pause
                near = self.services.limits.follow_seconds if choice.blocked else self._pause
                self._pause = max(0.001, min(soonest, near))
                return []
            stored = self._store(queue, windows, count)
            if stored is not None and (stored.given or not stored.changes):
                return self._messages(queue, stored)

    def _look(self) -> Queue:
        self._queue = queue_named(self.services.catalog.state, self._queue.name)
        return self._queue

    def _windows(self, queue: Queue, standing: Standing) -> dict[str, Window]:
        return {
            query.name.lower(): self._logs.after(
                f"{queue.cursor}:{self.group}", query, self._place(queue, standing, query)
            )
            for query in queue.queries
        }

    def _place(self, queue: Queue, standing: Standing, query: ContinuousQuery) -> Place:
        """Up to where the group has been given a query's messages; it is no place that the log does not keep any more."""
        catalog = self.services.catalog
        known = standing.positions.get(query.name.lower())
        cursor = catalog.cursor(query.name, queue.cursor)
        place = known.place if known is not None else (0 if cursor is None else cursor.version, END)
        return max(place, (catalog.floor(query.result.id), END))

    def _choose(
        self, queue: Queue, standing: Standing, windows: dict[str, Window], count: int, now: int
    ) -> Choice:
        limits, floor = self.services.limits, self.services.catalog.floor
        terms = Terms(
            self.label, count, now, int(queue.visibility * _MICROS), queue.max_attempts, limits.queue_given
        )
        floors = {query.name.lower(): floor(query.result.id) for query in queue.queries}
        return choose(standing, windows, floors, terms)

    def _store(self, queue: Queue, windows: dict[str, Window], count: int) -> Choice | None:
        """Chooses again, while nobody else can, and makes that durable; None where what was read is of no use any more."""
        catalog = self.services.catalog
        with catalog.aside() as connection:
            if self._look() != queue:
                return None
            standing = queues.read(connection, queue.cursor, self.group)
            for query in queue.queries:
                window = windows[query.name.lower()]
                place = self._place(queue, standing, query)
                if not window.after <= place <= window.upto or window.query.result.id != query.result.id:
                    return None
            now = catalog.database_time(connection)
            choice = self._choose(queue, standing, windows, count, now)
            if choice.exhausted or not choice.changes:
                return None
            put = [*choice.given, *choice.taken_back, *choice.passed]
            positions = choice.positions.values()
            queues.write(connection, queue.cursor, self.group, positions=positions, put=put, gone=choice.lost)
        return choice

    def _messages(self, queue: Queue, choice: Choice) -> list[Message]:
        """What was chosen, in order, as messages; what the log does not keep any more is left out."""
        found: dict[tuple[str, Place], Message] = {}
        for query in queue.queries:
            name = query.name.lower()
            mine = {each.place: each for each in choice.given if each.query == name}
            again = [place for place in mine if (name, place) not in choice.rows]
            rows = {place: choice.rows[name, place] for place in mine if (name, place) in choice.rows}
            parts = [*read_places(self.services, query, again).values(), *rows.values()]
            if parts:
                wide = pa.concat_tables(parts)
                versions = wide.column("version").to_pylist()
                times = commit_times(self.services, min(versions), max(versions))
                for delta in deltas_of(query, wide, times):
                    given = mine[delta.commit_version, delta.sequence]
                    made = message_of(query, delta, given, self.finish, self.reject)
                    found[name, given.place] = made
        return [found[each.query, each.place] for each in choice.given if (each.query, each.place) in found]

    # ------------------------------------------------------------ what has become of them

    def finish(self, given: Given, upto: bool) -> bool:
        """A message is done, with `upto` everything that the consumer has before it, too. False where it was given again
        since, or is finished already."""
        if not upto:
            return self.finish_all([given]) == 1
        with self.services.catalog.aside() as connection:
            known = self._same(connection, given)
            if known:
                held = queues.find(connection, self._queue.cursor, self.group, consumer=self.label)
                queues.finish(connection, self._queue.cursor, self.group, self._upto(held, known[0]))
        self._tell_others()
        return bool(known)

    def finish_all(self, some: Sequence[Given]) -> int:
        """Messages are done; how many of them, as of `finish`."""
        if not some:
            return 0
        with self.services.catalog.aside() as connection:
            known = [each for given in some for each in self._same(connection, given)]
            queues.finish(connection, self._queue.cursor, self.group, known)
        self._tell_others()
        return len(known)

    def reject(self, given: Given, requeue: bool) -> bool:
        """A message goes to the dead letters, or comes again at once, and what the same consumer has of its key behind it
        after it. False as of `finish`."""
        if not requeue:
            return self._bury(self._look(), [given], _REJECTED)
        with self.services.catalog.aside() as connection:
            known = self._same(connection, given)
            if known:
                self._take_back(connection, known[0])
                self.requeued.add((given.query, given.key))
        self._tell_others()
        return bool(known)

    def give_back(self, some: Sequence[Given]) -> None:
        """Messages that nobody has looked at come again at once, as if they had not been given."""
        if not some:
            return
        with self.services.catalog.aside() as connection:
            now = self.services.catalog.database_time(connection)
            back = [taken_back(each, now) for given in some for each in self._same(connection, given)]
            queues.write(connection, self._queue.cursor, self.group, put=back)
        self._tell_others()

    def finish_upto(self, text: str) -> int:
        """ACK UP TO: what the consumer that has the message has, up to that one; how many. AnalysisError for an id of no
        message that was given."""
        wanted, query = self._read_id(text)
        with self.services.catalog.aside() as connection:
            queue = self._look()
            one = self._find(connection, query, wanted)
            label = one[0].consumer if one else self.label
            held = queues.find(connection, queue.cursor, self.group, consumer=label) if label else one
            done = self._upto(held, Given(query.name.lower(), wanted[0], wanted[2], 0))
            if not one and not done:
                self._check_given(connection, query, wanted, text)
            queues.finish(connection, queue.cursor, self.group, done)
        self._tell_others()
        return len(done)

    def reject_one(self, text: str, requeue: bool) -> None:
        """REJECT. AnalysisError for an id of no message that somebody has."""
        wanted, query = self._read_id(text)
        with self.services.catalog.reading() as connection:
            one = [each for each in self._find(connection, query, wanted) if each.receipt]
            if not one:
                self._check_given(connection, query, wanted, text)
        if not one or not self.reject(one[0], requeue):
            raise DestinationError(
                f"message {text} is not in flight in group {self.group}",
                detail="it is finished already, or waits to be given again",
            )

    # ------------------------------------------------------------ inside

    def _upto(self, held: Sequence[Given], last: Given) -> list[Given]:
        """Those up to a message, in the order of ids."""
        ids = {query.name.lower(): query.id for query in self._queue.queries}

        def place(each: Given) -> MessageId:
            return each.version, ids.get(each.query, 0), each.sequence

        return [each for each in held if place(each) <= place(last)]

    def _same(self, connection: sa.Connection, given: Given) -> list[Given]:
        """The message, where it has not been given or finished since."""
        where = {"query": given.query, "version": given.version, "sequence": given.sequence}
        return queues.find(connection, self._queue.cursor, self.group, **where, receipt=given.receipt)

    def _take_back(self, connection: sa.Connection, given: Given) -> None:
        now = self.services.catalog.database_time(connection)
        same = queues.find(connection, self._queue.cursor, self.group, query=given.query, key=given.key)
        later = [taken_back(g, now) for g in same if g.place > given.place and g.receipt]
        back = replace(given, due=now, consumer="", receipt=0)
        queues.write(connection, self._queue.cursor, self.group, put=[back, *later])

    def _read_id(self, text: str) -> tuple[MessageId, ContinuousQuery]:
        found = read_message_id(text)
        queries = {query.id: query for query in self._look().queries}
        if found is None or found[1] not in queries:
            raise AnalysisError(
                f"{text} is no message of queue {self._queue.name}",
                hint="write a message_id that DEQUEUE gave, such as d1234a7b15",
            )
        return found, queries[found[1]]

    def _find(self, connection: sa.Connection, query: ContinuousQuery, wanted: MessageId) -> list[Given]:
        where = {"query": query.name.lower(), "version": wanted[0], "sequence": wanted[2]}
        return queues.find(connection, self._queue.cursor, self.group, **where)

    def _check_given(
        self, connection: sa.Connection, query: ContinuousQuery, wanted: MessageId, text: str
    ) -> None:
        known = queues.read(connection, self._queue.cursor, self.group).positions.get(query.name.lower())
        if known is None or known.place < (wanted[0], wanted[2]):
            raise AnalysisError(
                f"message {text} was not given to group {self.group} of queue {self._queue.name}",
                hint="DEQUEUE gives it; GROUP says for which group",
            )

    def _give_up(self, queue: Queue, exhausted: Sequence[Given]) -> None:
        said = f"given {{}} times, and not acknowledged within {queue.visibility:g} seconds"
        for start in range(0, len(exhausted), 100):
            self._bury(queue, exhausted[start : start + 100], said)

    def _bury(self, queue: Queue, some: Sequence[Given], reason: str) -> bool:
        """Gives messages to the dead letters that are as they are known. False where one is not."""
        queries = {query.name.lower(): query for query in queue.queries}
        rows = {
            name: read_places(self.services, query, [each.place for each in some if each.query == name])
            for name, query in queries.items()
        }
        messages = [
            (queries[each.query], rows[each.query][each.place], each.attempt, reason.format(each.attempt))
            for each in some
            if each.place in rows.get(each.query, ())
        ]

        def forget(connection: sa.Connection) -> bool:
            there = [known for each in some for known in self._same(connection, each)]
            if len(there) < len(some):
                return False
            queues.finish(connection, queue.cursor, self.group, there, dead=True)
            return True

        if not messages:
            with self.services.catalog.aside() as connection:
                return forget(connection)
        done = bury(self.services, queue.name, messages, forget)
        if done is not None:
            self._committed(done[0], {done[1]: frozenset({"INSERT"})})
            self._tell_others()
        return done is not None

    def _tell_others(self) -> None:
        """Wakes consumers of this process that wait for what is free now."""
        state = self.services.catalog.state
        self.services.catalog.watchers.tell({owner(state, query.name) for query in self._queue.queries})
