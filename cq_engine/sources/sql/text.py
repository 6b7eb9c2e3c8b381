"""A statement's text while it is made: names are quoted, values become parameters, and SQL of the source stays as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlglot import Dialect, exp
from sqlglot.expressions import Expr

from cq_engine.core.errors import SourceError
from cq_engine.sources.sql.model import Relation, SourceColumn, Statement
from cq_engine.sources.sql.relation import VIEW
from cq_engine.sources.sql.selection import Selection

__all__ = ["Key", "Text", "as_it_is"]

Key = Sequence[Any]
"""Values of a key's columns, as the source has given them."""

_MARK = re.compile("\0(\\d+)\0")


class Text:
    """Makes one statement for a selection."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.relation: Relation = selection.relation
        self.server = selection.server
        self._values: list[Any] = []

    # ------------------------------------------------------------ parts

    def column(self, column: SourceColumn) -> str:
        """The column of the relation, so that nothing else in the statement can be meant."""
        of = VIEW if self.relation.query is not None else self.relation.name
        return f"{self.server.quoted(of)}.{self.server.quoted(column.name)}"

    def columns(self, columns: Sequence[SourceColumn]) -> list[tuple[SourceColumn, str]]:
        """Columns with their SQL."""
        return [(column, self.column(column)) for column in columns]

    def read(self, column: SourceColumn, name: str) -> Expr:
        """The values of a column as they are selected, under a name."""
        return self.named(self.server.read(column, self.column(column)), name)

    def named(self, sql: str, name: str) -> Expr:
        """SQL in a SELECT list, under a name."""
        return exp.alias_(as_it_is(sql), name, quoted=True)

    def value(self, column: SourceColumn, value: Any) -> str:
        """A parameter that is compared with a column."""
        self._values.append(value)
        return self.server.typed(column, f"\0{len(self._values) - 1}\0")

    def captured(self) -> list[Expr]:
        """The captured columns, under the names of the table's columns."""
        return [self.read(self.relation.column(c.name), c.target) for c in self.selection.columns]

    def restriction(self) -> list[str]:
        """The capture's WHERE; a line of its own ends what is a comment at its end."""
        where = self.selection.where
        return [] if where is None else [f"({where}\n)"]

    def between(self, low: Key | None, high: Key | None) -> list[str]:
        """Conditions: the key comes after `low`, and is at most `high`."""
        columns, made = self.columns(self.key_columns()), []
        if low is not None:
            made.append(self.server.after(columns, self._row(low)))
        if high is not None:
            made.append(self.server.up_to(columns, self._row(high)))
        return made

    def among(self, columns: Sequence[SourceColumn], rows: Sequence[Key]) -> str:
        """A condition: the columns have the values of one of the rows."""
        if not rows:
            return "1 = 0"
        marks = [[self.value(column, value) for column, value in zip(columns, row)] for row in rows]
        return self.server.keys_in(self.columns(columns), marks)

    def among_values(self, column: SourceColumn, values: Sequence[Any]) -> str:
        """A condition: the column has one of the values, which are one parameter where the server takes a list."""
        listed = self.server.unnested(column, f"\0{len(self._values)}\0")
        if not listed:
            return self.among([column], [[value] for value in values])
        self._values.append(list(values))
        return f"{self.column(column)} IN ({listed})"

    def _row(self, values: Key) -> list[str]:
        return [self.value(column, value) for column, value in zip(self.key_columns(), values)]

    def key_columns(self) -> tuple[SourceColumn, ...]:
        """The columns of the key. Raises SourceError where there is none."""
        if not self.selection.key_columns:
            raise SourceError(
                f"{self.relation.shown} has no primary key",
                hint="declare the PRIMARY KEY of the table that the capture fills",
            )
        return self.selection.key_columns

    # ------------------------------------------------------------ statements

    def rows(self) -> exp.Select:
        """The rows of the selection as a query: the captured columns as they are, under the names of the relation."""
        wanted = [self.named(self.column(column), column.name) for column in self.selection.captured]
        query = exp.select(*wanted).from_(self._from())
        return query.where(*(as_it_is(condition) for condition in self.restriction()))

    def select(
        self,
        wanted: Sequence[Expr],
        where: Sequence[str] = (),
        order: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> Statement:
        """SELECT the expressions FROM the relation; `order` is that of the key."""
        query = exp.select(*wanted).from_(self._from())
        if where:
            query = query.where(as_it_is(" AND ".join(where)))
        if order:
            first = Dialect.get_or_raise(self.relation.dialect).NULL_ORDERING == "nulls_are_small"
            query = query.order_by(
                *(
                    exp.Ordered(this=as_it_is(sql), nulls_first=first)  # as the dialect has it: no words
                    for _, sql in self.columns(self.key_columns())
                )
            )
        if limit is not None:
            query = query.limit(limit)
        if offset:
            query = query.offset(offset)
        return self._finished(query.sql(dialect=self.relation.dialect), [e.alias for e in wanted])

    def delete(self, where: Sequence[str]) -> Statement:
        """DELETE rows of the relation. Raises SourceError for a query, which has none of its own."""
        if self.relation.query is not None:
            raise SourceError(
                "rows of a query cannot be deleted", hint="name the table whose rows are marked"
            )
        return self._finished(f"DELETE FROM {self._table()} WHERE {' AND '.join(where)}", [])

    def source(self, where: Sequence[str]) -> str:
        """FROM the relation WHERE the conditions hold, for a part of a statement."""
        return f"FROM {self._from().name}" + (f" WHERE {' AND '.join(where)}" if where else "")

    def each(self, parts: Sequence[str], names: Sequence[str]) -> Statement:
        """What several parts of a statement select, each one row of the values `names`, after its place among them."""
        selects = (f"SELECT {place} AS part, {part}" for place, part in enumerate(parts))
        return self._finished(" UNION ALL ".join(selects), ["part", *names])

    def _from(self) -> Expr:
        if self.relation.query is not None:
            return as_it_is(f"({self.relation.query}\n) AS {self.server.quoted(VIEW)}")
        return as_it_is(self._table())

    def _table(self) -> str:
        relation = self.relation
        names = [relation.schema, relation.name] if relation.schema else [relation.name]
        return ".".join(self.server.quoted(name) for name in names)

    def _finished(self, sql: str, names: Sequence[str]) -> Statement:
        mark = self.server.mark
        text = sql if mark == "?" else sql.replace("%", "%%")
        order = [int(found) for found in _MARK.findall(text)]
        places = {name: n for n, name in enumerate(names)}
        targets = [self.selection.names[n] for n in self.selection.key_places]
        return Statement(
            _MARK.sub(mark, text),
            tuple(self._values[n] for n in order),
            tuple(names),
            self.relation.shown,
            tuple(places[target] for target in targets if target in places),
        )


def as_it_is(sql: str) -> Expr:
    """SQL that SQLGlot does not look into."""
    return exp.Var(this=sql)
