"""What a capture wants of a relation: its pertinent columns, those that identify a row, and the restriction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import tokenize
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from cq_engine.catalog.model import Capture
from cq_engine.core.errors import SourceError
from cq_engine.grammar.clauses import CapturedColumn
from cq_engine.sources.sql.model import Relation, SourceColumn
from cq_engine.sources.sql.servers.kinds import server_of
from cq_engine.sources.sql.servers.server import Server

__all__ = ["Selection", "selection"]


@dataclass(frozen=True)
class Selection:
    """Columns of a relation under the names of the table's columns, for the rows for which `where` holds."""

    relation: Relation
    columns: tuple[CapturedColumn, ...]
    """With the names that the relation has."""
    key: tuple[str, ...]
    """The relation's columns that identify a row, in the order of the key; all are captured."""
    where: str | None = None
    """In the source's SQL, as it was written."""

    @property
    def server(self) -> Server:
        """Whose SQL asks for it."""
        return server_of(self.relation.server)

    @cached_property
    def key_columns(self) -> tuple[SourceColumn, ...]:
        """The columns that identify a row."""
        return tuple(self.relation.column(name) for name in self.key)

    @cached_property
    def captured(self) -> tuple[SourceColumn, ...]:
        """The columns of the relation that are captured, each of them once."""
        names = dict.fromkeys(column.name for column in self.columns)
        return tuple(self.relation.column(name) for name in names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the table's columns."""
        return tuple(column.target for column in self.columns)

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        """The places of the key's columns among the captured ones."""
        captured = [column.name for column in self.columns]
        return tuple(captured.index(name) for name in self.key)

    @property
    def is_ordered(self) -> bool:
        """True where the source puts keys in the order that they have in the warehouse."""
        return all(column.ordered for column in self.key_columns)


def selection(capture: Capture, relation: Relation, key: Sequence[str] = ()) -> Selection:
    """What `capture` wants of `relation`; `key` are the columns of its table that identify a row, by default those that the
    relation's primary key fills.

    Raises SourceError for a column that the relation does not have, for a key that is not captured, and for a restriction
    that is no condition.
    """
    found = [CapturedColumn(relation.column(column.name).name, column.target) for column in capture.columns]
    columns = tuple(found) or tuple(CapturedColumn(column.name, column.name) for column in relation.columns)
    by_target = {column.target.lower(): column.name for column in columns}
    captured = {column.name for column in columns}
    for name in key:
        if name.lower() not in by_target:
            raise SourceError(
                f"capture {capture.name} does not fill {name}, which identifies the rows of {capture.table}"
            )
    names = tuple(by_target[name.lower()] for name in key) or relation.key
    for name in names:
        if name not in captured:
            raise SourceError(
                f"capture {capture.name} does not read {name}, which identifies the rows of {relation.shown}",
                hint=f"list {name} among the columns of the capture",
            )
    if capture.where is not None:
        _check_condition(capture.where, relation.dialect)
    return Selection(relation, columns, names, capture.where)


def _check_condition(where: str, dialect: str) -> None:
    """A restriction stands between brackets as it was written: those in it must match, and it must be one statement."""
    depth = 0
    try:
        tokens = tokenize(where, dialect=dialect)
    except SqlglotError:
        tokens = []
    fine = bool(tokens) and "\0" not in where
    for token in tokens:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        fine = fine and depth >= 0 and token.token_type != TokenType.SEMICOLON
    if not fine or depth:
        raise SourceError(f"{where} is no condition", hint="write what follows WHERE in the source's SQL")
