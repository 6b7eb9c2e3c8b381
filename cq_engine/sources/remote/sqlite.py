"""The log of a view in SQLite. REPLACE removes rows without firing triggers for them: a trigger before each write logs the rows
that it may remove (operation C), with the row that is to come.

These are gone where that row comes directly behind them in the log. It does not come where the write was ignored, or became an
update of another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cq_engine.core.errors import AnalysisError
from cq_engine.sources.remote.numbered import Entry, NumberedLog
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.installed import digest
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.triggers.log import Log
from cq_engine.sources.triggers.sqlite import SQLiteLog, unique_indexes

__all__ = ["SQLiteChannel"]

_MOMENT = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
_ENDINGS = ("insert", "update", "delete", "before_insert", "before_update")


class SQLiteChannel(NumberedLog):
    """The time of a change is that of its statement, to the millisecond."""

    rights = "the file must be one that this process may write"

    def single(self, schema: str | None) -> Log:
        return SQLiteLog(self.server, schema, self.name)

    def into(self) -> str:
        return self.server.quoted(self.name)

    def check(self, session: Session) -> list[str]:
        for each in self.selections:
            for unique in unique_indexes(self, session, each.relation):
                if unique.partial or any(name is None for name, _ in unique.columns):
                    raise AnalysisError(
                        f"{each.relation.shown} has a unique index over an expression, or over some rows",
                        detail="no trigger tells which rows REPLACE removes because of it",
                        hint="CREATE CAPTURE keeps a copy of it; join that",
                    )
        return super().check(session)

    def create(self, session: Session) -> list[str]:
        columns = [name for place in range(len(self.selections)) for name in self._images(place)]
        own = (
            "cq_number INTEGER PRIMARY KEY AUTOINCREMENT, cq_moment TEXT, cq_table INTEGER, cq_operation TEXT"
        )
        made = [f"CREATE TABLE {self.table()} ({own}, {', '.join(columns)})"]
        for place in range(len(self.selections)):
            made.append(self._trigger(place, "AFTER INSERT", "insert", self._entry(place, "I", None, "NEW")))
            made.append(self._trigger(place, "AFTER UPDATE", "update", self._entry(place, "U", "OLD", "NEW")))
            made.append(self._trigger(place, "AFTER DELETE", "delete", self._entry(place, "D", "OLD", None)))
            for event, ending in (("INSERT", "before_insert"), ("UPDATE", "before_update")):
                body = self._replaced(session, place, event)
                made += [self._trigger(place, f"BEFORE {event}", ending, body)] if body else []
        return made

    def _images(self, place: int) -> list[str]:
        return [*self.image(place, "old"), *self.image(place, "new")]

    def _entry(self, place: int, operation: str, old: str | None, new: str | None) -> str:
        return self.entry(place, operation, _MOMENT, old, new)

    def _trigger(self, place: int, event: str, ending: str, body: str) -> str:
        on = self.server.quoted(self.selections[place].relation.name)
        return f"CREATE TRIGGER {self.qualified(f'{self.name}_{place}_{ending}')} {event} ON {on} BEGIN {body}; END"

    def _replaced(self, session: Session, place: int, event: str) -> str:
        """Logs the rows that have what the new row has in columns that are unique."""
        each, quoted, cases = self.selections[place], self.server.quoted, []
        for unique in dict.fromkeys(unique_indexes(self, session, each.relation)):
            columns = [(quoted(name or ""), quoted(collation)) for name, collation in unique.columns]
            same = [f"{c} COLLATE {collation} = NEW.{c}" for c, collation in columns]
            if event == "UPDATE":
                same.append("(" + " OR ".join(f"NEW.{c} IS NOT OLD.{c}" for c, _ in columns) + ")")
            cases.append(f"({' AND '.join(same)})")
        if not cases:
            return ""
        table = quoted(each.relation.name)
        return f"{self._entry(place, 'C', table, 'NEW')} FROM {table} WHERE {' OR '.join(cases)}"

    def drop(self, session: Session) -> list[str]:
        del session
        names = [
            self.qualified(f"{self.name}_{p}_{end}") for p in range(len(self.selections)) for end in _ENDINGS
        ]
        return [*(f"DROP TRIGGER IF EXISTS {name}" for name in names), f"DROP TABLE IF EXISTS {self.table()}"]

    def parts(self, session: Session) -> dict[str, str]:
        names = [
            self.name,
            *(f"{self.name}_{p}_{end}" for p in range(len(self.selections)) for end in _ENDINGS),
        ]
        where = f"{self.server.quoted(self.schema or 'main')}.sqlite_master WHERE name IN ({', '.join('?' * len(names))})"
        found = session.rows(self.plain(f"SELECT type, name, tbl_name, sql FROM {where}", *names))
        return {f"{kind} {name}": digest([of, sql]) for kind, name, of, sql in sorted(found)}

    # ------------------------------------------------------------ reading

    def resolved(self, place: int, entries: Iterable[Entry]) -> Iterator[Entry]:
        relation = self.selections[place].relation
        keys = {n for n, column in enumerate(self.selections[place].columns) if column.name in relation.key}
        waiting: list[Entry] = []
        for entry in entries:
            number, moment, operation, old, new = entry
            if operation == "C":
                waiting.append(entry)
                continue
            gone: dict[tuple[object, ...], Entry] = {}
            for candidate in waiting if operation in "IU" else ():
                if _same(candidate[4], new, keys) and not (operation == "U" and candidate[3] == old):
                    gone[candidate[3]] = candidate
            waiting = []
            yield from ((at, when, "D", row, ()) for at, when, _, row, _ in gone.values())
            yield number, moment, operation, old, new

    def deletion(self, numbers: Sequence[int]) -> Statement:
        return self.plain(f"DELETE FROM {self.table()} WHERE cq_number IN ({', '.join(map(str, numbers))})")


def _same(before: tuple[object, ...], after: tuple[object, ...], keys: set[int]) -> bool:
    """Whether the row that was to come has come; a row number that SQLite gives is −1 before."""
    return all(a == b or (n in keys and a == -1) for n, (a, b) in enumerate(zip(before, after)))
