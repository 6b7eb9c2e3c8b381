"""The copy of a captured table at its source, and the statements that compare and change it: what all servers have of it.

There are three tables: the copy, with the pertinent columns of the pertinent rows; the differences that a tick has found
(`..._staged`); and one row (`..._state`) that says whose the copy is, of which tick, and of which tick the differences are.
Differences leave the source from where they were put, and go into the copy from there: what the copy gets is what was shipped.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from uuid import uuid4

from sqlglot import exp
from sqlglot.expressions import Expr

from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.installed import Installed
from cq_engine.sources.sql.model import DELETED, Relation, SourceColumn, Statement
from cq_engine.sources.sql.select import image
from cq_engine.sources.sql.selection import Selection
from cq_engine.sources.sql.text import Text, as_it_is

__all__ = ["CopyTable", "Marks"]

_KIND = "cq_kind"
"""Of a difference: I(nsert), U(pdate) or D(elete), with the row as it is now, and of a deletion as it was."""
_MARKS = ("cq_owner", "cq_stands", "cq_staged", "cq_before")
_BASE = "cq_base"
_COPY = "cq_copy"


@dataclass(frozen=True)
class Marks:
    """What the copy says of itself."""

    owner: str
    """Whose it is: what the capture has drawn when it was installed."""
    stands: str
    """The tick whose rows it has; empty before the first one."""
    staged: str
    """The tick whose differences are beside it; empty where there are none."""
    before: str
    """Whose it was before it was installed anew; empty where it was nobody's."""


class CopyTable(Installed):
    """The copy of one capture's relation; `same` and `differs` compare as exactly as the server can."""

    before: str = ""
    """Whose the copy was before, when it is installed."""
    ending: ClassVar[str] = ""
    """What ends CREATE TABLE."""
    locks: ClassVar[str] = " FOR UPDATE"
    """What ends a SELECT so that one transaction at a time goes on."""

    # ------------------------------------------------------------ what servers have of their own

    @abstractmethod
    def declared(self, column: SourceColumn, *, is_key: bool) -> str:
        """The type of a column of the copy, which takes every value of the column as it is."""

    @abstractmethod
    def same(self, column: SourceColumn, base: str, copy: str) -> str:
        """A condition: a column of the key has one value for the warehouse; an index serves where the server needs it."""

    @abstractmethod
    def differs(self, column: SourceColumn, base: str, copy: str) -> str:
        """A condition: two values are not the same, whatever their collation; NULL is one of them."""

    @abstractmethod
    def made(self, session: Session, name: str) -> str | None:
        """A text that is another one where a table was made anew; None where it is not there."""

    def relax(self, session: Session) -> None:
        """Makes a transaction ready in which rows go into the copy."""
        del session

    # ------------------------------------------------------------ at the source

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the copy, of the differences and of what it says of itself."""
        return self.name, f"{self.name}_staged", f"{self.name}_state"

    def create(self, session: Session, selection: Selection) -> list[str]:
        del session
        quoted, key = self.server.quoted, ", ".join(map(self.server.quoted, selection.key))
        copy, staged, state = map(self.qualified, self.names)
        declared = ", ".join(
            f"{quoted(column.name)} {self.said_of(column, selection)}" for column in selection.captured
        )
        marks = ", ".join(f"{name} VARCHAR(40) NOT NULL" for name in _MARKS)
        return [
            f"CREATE TABLE {copy} ({declared}, PRIMARY KEY ({key})){self.ending}",
            f"CREATE TABLE {staged} ({_KIND} VARCHAR(1) NOT NULL, {declared}, PRIMARY KEY ({key}, {_KIND})){self.ending}",
            f"CREATE TABLE {state} ({marks}){self.ending}",
            f"INSERT INTO {state} VALUES ('{uuid4().hex}', '', '', '{self.before}')",
        ]

    def drop(self) -> list[str]:
        return [f"DROP TABLE IF EXISTS {self.qualified(name)}" for name in self.names]

    def said_of(self, column: SourceColumn, selection: Selection) -> str:
        return self.declared(column, is_key=column.name in selection.key)

    def parts(self, session: Session, relation: Relation) -> dict[str, str]:
        del relation
        return self.there(session)

    def there(self, session: Session) -> dict[str, str]:
        """The tables that are there."""
        found = ((name, self.made(session, name)) for name in self.names)
        return {f"table {name}": text for name, text in found if text is not None}

    # ------------------------------------------------------------ its state

    def marks(self, session: Session, *, locked: bool = False) -> Marks | None:
        """What the copy says of itself; None where nobody has said it. With `locked`, until the transaction ends nobody else
        gets what is `locked`."""
        state = self.qualified(self.names[2])
        sql = f"SELECT {', '.join(_MARKS)} FROM {state}{self.locks if locked else ''}"
        found = session.rows(self.plain(sql))
        return Marks(*found[0]) if len(found) == 1 else None

    def fill(self, session: Session, selection: Selection) -> str:
        """Makes the copy's rows those of the relation; the tick that it stands for from then on."""
        text, tick = Text(selection), uuid4().hex
        copy, staged, _ = self.names
        self._run(session, exp.delete(self._named(copy)))
        self._run(session, exp.delete(self._named(staged)))
        self._run(session, self._insertion(copy, selection, text.rows()))
        self._say(session, stands=tick, staged="")
        return tick

    def stage(self, session: Session, selection: Selection) -> tuple[str, int]:
        """Puts the differences between relation and copy beside the copy, in one statement and so of one state of both; their
        tick, and how many there are."""
        tick = uuid4().hex
        found = self._insertion(self.names[1], selection, self._differences(selection), _KIND)
        count = self._run(session, found)
        if count:
            self._say(session, staged=tick)
        return tick, count

    def settle(self, session: Session, marks: Marks, selection: Selection, stands: str) -> bool:
        """Makes the copy that of the tick which is durable in the warehouse: either differences are put into it or, where they
        were not shipped, forgotten. False where it cannot be that of this tick."""
        if stands not in (marks.stands, marks.staged):
            return False
        copy, staged, _ = self.names
        if stands != marks.stands:
            self._run(session, exp.delete(self._named(copy)).where(self._is_staged(selection, copy)))
            came = exp.select(*self._of(selection, staged)).from_(self._named(staged))
            self._run(session, self._insertion(copy, selection, came.where(f"{_KIND} <> 'D'")))
        if marks.staged:
            self._run(session, exp.delete(self._named(staged)))
            self._say(session, stands=stands, staged="")
        return True

    # ------------------------------------------------------------ reading

    def all_rows(self, selection: Selection) -> Statement:
        """All rows of the copy."""
        return image(self._as(selection, self.name))

    def changed_rows(self, selection: Selection) -> Statement:
        """The differences: the captured columns, and `_cq_deleted`, true for rows that are gone."""
        text = Text(self._as(selection, self.names[1]))
        deleted = text.named(f"CASE WHEN {_KIND} = 'D' THEN 1 ELSE 0 END", DELETED)
        return text.select([*text.captured(), deleted])

    def old_rows(self, selection: Selection) -> Statement:
        """The rows of the copy that have changed or are gone, as they were."""
        text = Text(self._as(selection, self.name))
        condition = self._is_staged(selection, self.name).sql(dialect=self.server.dialect)
        return text.select(text.captured(), [condition])

    def _as(self, selection: Selection, name: str) -> Selection:
        """What is captured, from a table of ours."""
        return replace(
            selection, relation=replace(selection.relation, name=name, schema=self.schema), where=None
        )

    # ------------------------------------------------------------ SQL

    def _differences(self, selection: Selection) -> exp.Query:
        """Figure 1: what is in both and not the same, what the copy does not have, and what only the copy has."""
        base = Text(selection).rows().subquery(exp.to_identifier(_BASE, quoted=True))
        copy = exp.alias_(self._named(self.name), _COPY, table=True, quoted=True)
        columns = selection.captured
        same = self._same(selection, _BASE, _COPY)
        other = " OR ".join(f"({self.differs(c, *self._pair(c, _BASE, _COPY))})" for c in columns)
        theirs, ours = (self._of(selection, name) for name in (_BASE, _COPY))
        updated = exp.select(_literal("U"), *theirs).from_(base.copy()).join(copy.copy(), on=as_it_is(same))
        inserted = exp.select(_literal("I"), *theirs).from_(base.copy())
        deleted = exp.select(_literal("D"), *ours).from_(copy.copy())
        in_copy, in_base = (exp.select("1").from_(each.copy()).where(as_it_is(same)) for each in (copy, base))
        parts = [
            updated.where(as_it_is(f"({other})")),
            inserted.where(exp.Not(this=exp.Exists(this=in_copy))),
            deleted.where(exp.Not(this=exp.Exists(this=in_base))),
        ]
        return exp.union(*parts, distinct=False)

    def _is_staged(self, selection: Selection, copy: str) -> Expr:
        """A condition over a row of the copy: it has changed, or is gone."""
        staged = self.names[1]
        found = exp.select("1").from_(self._named(staged)).where(f"{_KIND} <> 'I'")
        return exp.Exists(this=found.where(as_it_is(self._same(selection, staged, copy))))

    def _same(self, selection: Selection, base: str, copy: str) -> str:
        return " AND ".join(self.same(c, *self._pair(c, base, copy)) for c in selection.key_columns)

    def _pair(self, column: SourceColumn, base: str, copy: str) -> Iterator[str]:
        return (f"{self.server.quoted(table)}.{self.server.quoted(column.name)}" for table in (base, copy))

    def _of(self, selection: Selection, table: str) -> list[Expr]:
        return [exp.column(column.name, table=table, quoted=True) for column in selection.captured]

    def _named(self, name: str) -> exp.Table:
        return exp.table_(name, db=self.schema, quoted=True)

    def _insertion(self, into: str, selection: Selection, rows: exp.Query, *first: str) -> Expr:
        names = [*first, *(column.name for column in selection.captured)]
        columns: Sequence[Any] = [exp.to_identifier(name, quoted=True) for name in names]
        return exp.insert(rows, self._named(into), columns=columns)

    def _say(self, session: Session, **marks: str) -> None:
        said = ", ".join(f"cq_{name} = '{value}'" for name, value in marks.items())
        self.run(session, [f"UPDATE {self.qualified(self.names[2])} SET {said}"])

    def _run(self, session: Session, statement: Expr) -> int:
        return session.change(self.plain(statement.sql(dialect=self.server.dialect)))


def _literal(kind: str) -> Expr:
    return exp.alias_(exp.Literal.string(kind), _KIND)
