"""Sources as the sweeps see them: a channel of updates for each, and answers to questions.

What a source answers, and what its log has, is read in one transaction that reads one state of it. So an answer has seen exactly
the updates that have been found when it is there; positions are their numbers. A source is asked one thing after the other, several
sources are asked at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import CatalogState, Table
from cq_engine.catalog.sources import find_source
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.values import python_values
from cq_engine.grammar.clauses import CapturedColumn
from cq_engine.sources.remote.decoded import DecodedChannel, slot_name
from cq_engine.sources.remote.log import ChannelLog, Logged, Token, Transaction
from cq_engine.sources.remote.mariadb import MariaDBChannel
from cq_engine.sources.remote.place import INTEGERS, comparable, family
from cq_engine.sources.remote.postgresql import PostgreSQLChannel
from cq_engine.sources.remote.sqlite import SQLiteChannel
from cq_engine.sources.remote.view import RemoteView
from cq_engine.sources.sql.database import Database, Session
from cq_engine.sources.sql.installed import name_for
from cq_engine.sources.sql.model import SourceColumn, Statement
from cq_engine.sources.sql.relation import describe
from cq_engine.sources.sql.select import KEYS
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.sql.text import Text
from cq_engine.sources.sweep.model import Answer, Ask, Change, Row, Update

__all__ = ["Channel", "LogChannels", "opened"]

_LOGS: Mapping[str, type[ChannelLog]] = {
    "sqlite": SQLiteChannel,
    "postgresql": PostgreSQLChannel,
    "mariadb": MariaDBChannel,
    "mysql": MariaDBChannel,
}


@dataclass
class Channel:
    """One source of a view, opened: its log, and what of it has been found. Numbers of updates count from 1; number 0 is the
    state behind `tokens[0]`."""

    name: str
    database: Database
    log: ChannelLog
    tables: tuple[Table, ...]
    """Those of the log, in its order."""
    columns: tuple[tuple[Column, ...], ...]
    """Of each table those that are logged."""
    aliases: Mapping[str, tuple[int, tuple[int, ...]]]
    """By relation of the view the place of its table, and of its columns among those."""
    most: int
    """Changes that are taken at once."""
    updates: list[Update] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    """Of each number the token behind it."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def poll(self, session: Session) -> int:
        """Finds what the session sees of the log; the number of the newest update."""
        found, now = self.log.read(session, self.tokens[-1], self.most)
        for transaction in found:
            self.tokens.append(transaction.token)
            self.updates.append(self._update(session, transaction))
        self.tokens[-1] = now
        return len(self.updates)

    def look(self) -> int:
        """Finds what there is now."""
        with self.lock, self.database.connect() as session:
            self.log.hold(session)
            return self.poll(session)

    def check(
        self, was: Mapping[str, str], differ: Callable[[Mapping[str, str], Mapping[str, str]], object]
    ) -> None:
        """Has what is installed compared with what was; in the state behind the newest update."""
        with self.lock, self.database.connect() as session:
            self.log.hold(session)
            differ(was, self.log.state(session))

    def answers(self, asks: Sequence[Ask]) -> list[Answer]:
        """The answers to several questions in one state."""
        with self.lock, self.database.connect() as session:
            self.log.hold(session)
            seen = self.poll(session)
            return [Answer(self._rows(session, ask), seen) for ask in asks]

    def statement(self, alias: str, columns: Sequence[str], keys: Sequence[Row]) -> Statement:
        """What asks for rows of a relation by the values of columns."""
        place, wanted = self.aliases[alias]
        selection = self.log.selections[place]
        text = Text(selection)
        logged = self.columns[place]
        chosen = [text.read(selection.relation.column(logged[n].name), logged[n].name) for n in wanted]
        among = [selection.relation.column(name) for name in columns]
        if len(among) == 1:
            return text.select(chosen, [text.among_values(among[0], [key for (key,) in keys])])
        return text.select(chosen, [text.among(among, keys)])

    def check_keys(self, view: RemoteView) -> None:
        """Raises AnalysisError where the source may take less for equal than the warehouse does, or refuse a key."""
        for edge in view.view.edges:
            for alias, name in (edge.left, edge.right):
                if alias not in self.aliases:
                    continue
                place = self.aliases[alias][0]
                relation = self.log.selections[place].relation
                column = next(c for c in self.columns[place] if c.name == name)
                source = relation.column(name)
                if not comparable(relation, source, column):
                    raise AnalysisError(
                        f"{alias}.{name} cannot be asked for by its values: it is {source.declared or 'of no type'} at source {self.name}",
                        detail=f"here it is {column.type.upper()}; both sides have to compare values alike",
                        hint="join by whole numbers, text, decimals or dates (in SQLite whole numbers and text),"
                        " declared here as they are there",
                    )

    def fitting(self, alias: str, columns: Sequence[str], keys: Sequence[Row]) -> list[Row]:
        """The keys that the source can have."""
        relation = self.log.selections[self.aliases[alias][0]].relation
        sources = [relation.column(name) for name in columns]
        return [key for key in keys if all(_fits(source, value) for source, value in zip(sources, key))]

    def _rows(self, session: Session, ask: Ask) -> list[Row]:
        place, wanted = self.aliases[ask.relation]
        columns = [self.columns[place][n] for n in wanted]
        keys, found = self.fitting(ask.relation, ask.columns, ask.keys), list[Row]()
        for start in range(0, len(keys), KEYS):
            statement = self.statement(ask.relation, ask.columns, keys[start : start + KEYS])
            for batch in session.batches(statement, columns):
                found += _as_rows(batch)
        return found

    def _update(self, session: Session, transaction: Transaction) -> Update:
        images = self._images(session, transaction.changes)
        changes = [
            Change(alias, _picked(before, wanted), _picked(after, wanted))
            for change, before, after in zip(transaction.changes, images[::2], images[1::2])
            for alias, (place, wanted) in self.aliases.items()
            if place == change.table
        ]
        return Update(self.name, len(self.updates) + 1, tuple(changes), transaction.committed)

    def _images(self, session: Session, changes: Sequence[Logged]) -> list[Row | None]:
        """The rows before and after of all changes, in the types of the warehouse."""
        found: list[Row | None] = [None] * (2 * len(changes))
        for table, selection in enumerate(self.log.selections):
            places, values = [], []
            for n, change in enumerate(changes):
                for at, image in ((2 * n, change.before), (2 * n + 1, change.after)):
                    if change.table == table and image is not None:
                        places.append(at)
                        values.append(image)
            if not values:
                continue
            given = Statement("", (), selection.names, selection.relation.shown, selection.key_places)
            rows = _as_rows(session.to_batch(given, self.columns[table], values))
            for at, row in zip(places, rows):
                found[at] = row
        return found


class LogChannels:
    """All sources of a view (`sweep.Channels`)."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.channels = {channel.name: channel for channel in channels}

    def ask(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        by_source: dict[str, list[int]] = {}
        for place, ask in enumerate(asks):
            source = next(name for name, channel in self.channels.items() if ask.relation in channel.aliases)
            by_source.setdefault(source, []).append(place)
        found: dict[int, Answer] = {}
        with ThreadPoolExecutor(max(1, len(by_source))) as pool:
            answers = pool.map(
                lambda item: self.channels[item[0]].answers([asks[place] for place in item[1]]),
                by_source.items(),
            )
            for places, of_source in zip(by_source.values(), answers):
                found.update(zip(places, of_source))
        return [found[place] for place in range(len(asks))]

    def updates(self, source: str, after: int, upto: int | None) -> Sequence[Update]:
        channel = self.channels[source]
        if upto is None:
            channel.look()
        return channel.updates[after:]


def opened(state: CatalogState, view: RemoteView, capture: str, most: int, stack: ExitStack) -> list[Channel]:
    """The sources of a view, as long as the stack is open. Raises SourceError where a table or a column is not there any more."""
    return [_channel(state, view, capture, source, most, stack) for source in view.view.sources]


def _channel(
    state: CatalogState, view: RemoteView, capture: str, source: str, most: int, stack: ExitStack
) -> Channel:
    declared = find_source(state, source)
    database = stack.enter_context(Database.open(declared, keeps=True))
    aliases = [alias for alias in view.tables if view.view.by_name[alias].source == source]
    tables = tuple({view.tables[alias].name: view.tables[alias] for alias in aliases}.values())
    columns = []
    for table in tables:
        named = {
            c.name for alias in aliases if view.tables[alias].name == table.name for c in view.columns[alias]
        }
        columns.append(tuple(column for column in table.columns if column.name in named))
    selections = [_selection(database, table, logged) for table, logged in zip(tables, columns)]
    names = [table.name for table in tables]
    places = {
        alias: (
            (place := names.index(view.tables[alias].name)),
            tuple(columns[place].index(column) for column in view.columns[alias]),
        )
        for alias in aliases
    }
    number = view.view.sources.index(source) + 1  # two sources may be one database
    log = _log(database, tables, selections, capture if number == 1 else f"{capture}_at_{number}")
    return Channel(source, database, log, tables, tuple(columns), places, most)


def _log(
    database: Database, tables: Sequence[Table], selections: Sequence[Selection], name: str
) -> ChannelLog:
    """The log of the tables, which is called after `name`."""
    slots = {_slot(table): table.name for table in tables}
    if len(slots) > 1:
        one, other = list(slots.items())[:2]
        raise AnalysisError(
            f"{one[1]} and {other[1]} are of one source, and are followed by two logs",
            detail=f"what {database.name} answers is compared with one log, which has the changes of all tables in their order",
            hint="say the same behind USING LOG for both, or declare another source with this URL for one of them",
        )
    server, schema, (slot,) = database.server, selections[0].relation.schema, slots
    if slot:
        return DecodedChannel(server, schema, slot_name(slot, name), selections)
    return _LOGS[server.name](server, schema, name_for(name, "log"), selections)


def _slot(table: Table) -> str:
    assert table.remote is not None
    return dict(table.remote.options).get("slot", "").lower()


def _selection(database: Database, table: Table, columns: Sequence[Column]) -> Selection:
    assert table.remote is not None
    relation = describe(database, table.remote.relation)
    captured = tuple(CapturedColumn(relation.column(c.name).name, c.name) for c in columns)
    return Selection(
        relation, captured, tuple(relation.column(name).name for name in table.primary_key or ())
    )


def _fits(source: SourceColumn, value: Any) -> bool:
    """Whether the source's column can have a value; asking for another one may be an error there."""
    of = family(source.type)
    if of == "integer":
        return isinstance(value, int) and abs(value) < 2 ** INTEGERS[source.type]
    return not (of == "string" and isinstance(value, str) and "\0" in value)


def _picked(row: Row | None, places: Sequence[int]) -> Row | None:
    return None if row is None else tuple([row[place] for place in places])


def _as_rows(batch: pa.RecordBatch) -> list[Row]:
    columns = [python_values(column) for column in batch.columns]
    return list(zip(*columns)) if columns else [() for _ in range(len(batch))]
