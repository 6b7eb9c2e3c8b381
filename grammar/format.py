"""Statement to canonical text; `parse` gives the statement back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import singledispatch

from cq_engine.grammar import format_source, statements
from cq_engine.grammar.clauses import (
    ColumnSpec,
    DestinationRef,
    ForeignKeySpec,
    PrimaryKeySpec,
    RemoteRelation,
    StartFrom,
)
from cq_engine.grammar.format_parts import columns, drop, format_when, kind_name, options
from cq_engine.grammar.names import quote_name, string_literal

__all__ = ["format_statement", "format_when"]

_EVENTS = {"I": "INSERT", "D": "DELETE", "U": "UPDATE"}
_WRITTEN = ("TABLE", "CALLBACK", "QUEUE", "TRIGGER", "WEBHOOK")
"""Kinds that DESTINATION clauses say; that of a destination that was declared need not be."""
_PLAIN_VALUE = re.compile(r"[\w.+-]+")
_PLAIN_MESSAGE = re.compile(r"[a-z][0-9][a-z0-9]*")


@singledispatch
def format_statement(statement: statements.Statement) -> str:
    """The text of `statement`, without a semicolon; `parse` of it gives an equal statement."""
    raise TypeError(f"no format for {type(statement).__name__}")


# ---------------------------------------------------------------- continuous queries


@format_statement.register
def _create_query(statement: statements.CreateContinuousQuery) -> str:
    head = "CREATE OR REPLACE" if statement.or_replace else "CREATE"
    exists = "IF NOT EXISTS " if statement.if_not_exists else ""
    lines = [f"{head} CONTINUOUS QUERY {exists}{quote_name(statement.name)}"]
    if statement.primary_key is not None:
        lines.append(f"  PRIMARY KEY {columns(statement.primary_key)}")
    if statement.consistency is not None:
        lines.append(f"  CONSISTENCY {statement.consistency}")
    lines.append(f"  COMPUTE {statement.mode} {_delta(statement.markers)} {format_when(statement.when)}")
    if statement.destinations:
        lines.append(f"  DESTINATION {_destinations(statement.destinations)}")
    if statement.start != StartFrom():
        lines.append(f"  START FROM {_point(statement.start)}")
    if statement.options:
        lines.append(f"  WITH {options(statement.options)}")
    return "\n".join([*lines, "AS", statement.query])


@format_statement.register
def _alter_query(statement: statements.AlterContinuousQuery) -> str:
    text = f"ALTER CONTINUOUS QUERY {quote_name(statement.name)} {statement.action}"
    if statement.start is not None:
        text += f" FROM {_point(statement.start)}"
    if statement.markers is not None or statement.when is not None:
        text += " COMPUTE"
    if statement.markers is not None:
        text += f" {_delta(statement.markers)}"
    if statement.when is not None:
        text += f" {format_when(statement.when)}"
    if statement.destinations:
        text += f" DESTINATION {_destinations(statement.destinations)}"
    elif statement.destinations is not None:
        text += " NO DESTINATION"
    if statement.options:
        text += f" WITH {options(statement.options)}"
    return text if statement.query is None else f"{text}\n{statement.query}"


@format_statement.register
def _refresh_query(statement: statements.RefreshContinuousQuery) -> str:
    return f"REFRESH CONTINUOUS QUERY {quote_name(statement.name)}"


@format_statement.register
def _drop_query(statement: statements.DropContinuousQuery) -> str:
    return f"DROP CONTINUOUS QUERY {drop(statement)}"


@format_statement.register
def _follow(statement: statements.Follow) -> str:
    words = {"NOW": "", "SNAPSHOT": " SNAPSHOT"}.get(
        statement.start.point, f" FROM {_point(statement.start)}"
    )
    return f"FOLLOW {quote_name(statement.name)}{words}"


@format_statement.register
def _create_destination(statement: statements.CreateDestination) -> str:
    exists = "IF NOT EXISTS " if statement.if_not_exists else ""
    kind = kind_name(statement.type.lower())
    text = f"CREATE DESTINATION {exists}{quote_name(statement.name)} TYPE {kind}"
    if statement.script is not None:
        text += f" AS BEGIN\n{statement.script.text}\nEND"
        text += f" WHEN ({statement.script.condition})" if statement.script.condition else ""
        text += " FOR EACH ROW" if statement.script.each_row else ""
    return text if not statement.options else f"{text} WITH {options(statement.options)}"


@format_statement.register
def _alter_destination(statement: statements.AlterDestination) -> str:
    text = f"ALTER DESTINATION {quote_name(statement.name)} {statement.action}"
    if statement.action == "SET":
        return f"{text} WITH {options(statement.options)}"
    if statement.group is not None:
        return f"ALTER DESTINATION {quote_name(statement.name)} DROP{_group(statement.group)}"
    if statement.version is None:
        return text
    query = "" if statement.query is None else f" FOR {quote_name(statement.query)}"
    return f"{text}{query} {'TO' if statement.action == 'SKIP' else 'FROM'} VERSION {statement.version}"


@format_statement.register
def _drop_destination(statement: statements.DropDestination) -> str:
    return f"DROP DESTINATION {drop(statement)}"


@format_statement.register
def _dequeue(statement: statements.Dequeue) -> str:
    count = "" if statement.count == 1 else f" {statement.count}"
    wait = "" if statement.wait is None else f" WAIT {statement.wait[0]} {statement.wait[1]}"
    return f"DEQUEUE{count} FROM {quote_name(statement.queue)}{_group(statement.group)}{wait}"


@format_statement.register
def _ack(statement: statements.Ack) -> str:
    return f"ACK {quote_name(statement.queue)}{_group(statement.group)} UP TO {_message(statement.message)}"


@format_statement.register
def _reject(statement: statements.Reject) -> str:
    text = (
        f"REJECT {quote_name(statement.queue)}{_group(statement.group)} MESSAGE {_message(statement.message)}"
    )
    return f"{text} REQUEUE" if statement.requeue else text


# ---------------------------------------------------------------- sources and captures

for _format in format_source.FORMATS:
    format_statement.register(_format)


# ---------------------------------------------------------------- tables


@format_statement.register
def _create_table(statement: statements.CreateTable) -> str:
    exists = "IF NOT EXISTS " if statement.if_not_exists else ""
    text = f"CREATE TABLE {exists}{quote_name(statement.name)}"
    elements = [_column(column) for column in statement.columns]
    if statement.primary_key is not None:
        elements.append(_primary_key(statement.primary_key))
    elements += [_foreign_key(key) for key in statement.foreign_keys]
    if elements:
        text += " (\n  " + ",\n  ".join(elements) + "\n)"
    if statement.comment is not None:
        text += f"\nCOMMENT {string_literal(statement.comment)}"
    if statement.cluster_by:
        text += f"\nCLUSTER BY {columns(statement.cluster_by)}"
    if not statement.snapshot:
        text += "\nWITHOUT SNAPSHOT"
    if statement.options:
        text += f"\nWITH {options(statement.options)}"
    if statement.delta is not None:
        text += f"\nFROM DELTA {string_literal(statement.delta)}"
        return text if statement.when is None else f"{text} {format_when(statement.when)}"
    if statement.remote is not None:
        return f"{text}\n{_remote(statement.remote)}"
    return text if statement.query is None else f"{text}\nAS\n{statement.query}"


def _remote(remote: RemoteRelation) -> str:
    text = f"REMOTE FROM {quote_name(remote.source)} TABLE {string_literal(remote.relation)}"
    if not remote.log:
        return text
    return f"{text}\nUSING LOG" + (f" WITH {options(remote.options)}" if remote.options else "")


@format_statement.register
def _alter_table(statement: statements.AlterTable) -> str:
    text = f"ALTER TABLE {quote_name(statement.name)} "
    if statement.action == "ADD COLUMNS":
        return f"{text}ADD COLUMNS ({', '.join(map(_column, statement.columns))})"
    if statement.action == "ADD FOREIGN KEY" and statement.foreign_key is not None:
        return f"{text}ADD {_foreign_key(statement.foreign_key)}"
    if statement.action == "RENAME" and statement.new_name is not None:
        return f"{text}RENAME TO {quote_name(statement.new_name)}"
    return f"{text}CLUSTER BY {columns(statement.cluster_by)}"


@format_statement.register
def _drop_table(statement: statements.DropTable) -> str:
    return f"DROP TABLE {drop(statement)}"


@format_statement.register
def _compact_table(statement: statements.CompactTable) -> str:
    return f"COMPACT TABLE {quote_name(statement.name)}"


@format_statement.register
def _vacuum(statement: statements.Vacuum) -> str:
    name = "" if statement.name is None else f" {quote_name(statement.name)}"
    return f"VACUUM{name}" + (f" RETAIN {statement.retain}" if statement.retain else "")


@format_statement.register
def _check_constraints(statement: statements.CheckConstraints) -> str:
    return "CHECK CONSTRAINTS" + ("" if statement.table is None else f" ON {quote_name(statement.table)}")


@format_statement.register
def _create_function(statement: statements.CreateFunction) -> str:
    head = "CREATE OR REPLACE" if statement.or_replace else "CREATE"
    exists = "IF NOT EXISTS " if statement.if_not_exists else ""
    return f"{head} FUNCTION {exists}{quote_name(statement.name)}{statement.definition}"


@format_statement.register
def _drop_function(statement: statements.DropFunction) -> str:
    return f"DROP FUNCTION {'IF EXISTS ' if statement.if_exists else ''}{quote_name(statement.name)}"


# ---------------------------------------------------------------- data and transactions


@format_statement.register
def _dml(statement: statements.Dml) -> str:
    return statement.text


@format_statement.register
def _query(statement: statements.Query) -> str:
    return statement.text


@format_statement.register
def _copy_into(statement: statements.CopyInto) -> str:
    text = f"COPY INTO {quote_name(statement.table)}"
    if statement.columns:
        text += f" {columns(statement.columns)}"
    text += f" FROM {string_literal(statement.path)}"
    if statement.format is not None:
        text += f" FORMAT {quote_name(statement.format)}"
    return text if not statement.options else f"{text} OPTIONS {options(statement.options)}"


@format_statement.register
def _begin(_: statements.Begin) -> str:
    return "BEGIN"


@format_statement.register
def _commit(_: statements.Commit) -> str:
    return "COMMIT"


@format_statement.register
def _rollback(_: statements.Rollback) -> str:
    return "ROLLBACK"


# ---------------------------------------------------------------- looking and setting


@format_statement.register
def _show(statement: statements.Show) -> str:
    return f"SHOW {statement.what}" + ("" if statement.name is None else f" FOR {quote_name(statement.name)}")


@format_statement.register
def _describe(statement: statements.Describe) -> str:
    kind = "" if statement.kind is None else f"{statement.kind} "
    return f"DESCRIBE {kind}{quote_name(statement.name)}"


@format_statement.register
def _explain(statement: statements.Explain) -> str:
    if statement.name is not None:
        analyze = "ANALYZE " if statement.analyze else ""
        how = "" if statement.format == "TEXT" else f"(FORMAT {statement.format}) "
        return f"EXPLAIN {analyze}{how}CONTINUOUS QUERY {quote_name(statement.name)}"
    return f"EXPLAIN {statement.text}"


@format_statement.register
def _set_option(statement: statements.SetOption) -> str:
    name = ".".join(map(quote_name, statement.name.split(".")))
    plain = _PLAIN_VALUE.fullmatch(statement.value)
    return f"SET {name} = {statement.value if plain else string_literal(statement.value)}"


# ---------------------------------------------------------------- parts


def _delta(markers: Iterable[str]) -> str:
    words = [_EVENTS[marker] for marker in markers]
    return " ".join([*words, "DELTA"] if len(words) < len(_EVENTS) else ["DELTA"])


def _destinations(destinations: Iterable[DestinationRef]) -> str:
    return ", ".join((f"{d.kind} " if d.kind in _WRITTEN else "") + quote_name(d.name) for d in destinations)


def _point(start: StartFrom) -> str:
    return start.point if start.version is None else f"{start.point} {start.version}"


def _message(name: str) -> str:
    return name if _PLAIN_MESSAGE.fullmatch(name) else string_literal(name)


def _group(name: str | None) -> str:
    return "" if name is None else f" GROUP {string_literal(name)}"


def _column(column: ColumnSpec) -> str:
    text = f"{quote_name(column.name)} {column.type}"
    if not column.nullable:
        text += " NOT NULL"
    return text if column.comment is None else f"{text} COMMENT {string_literal(column.comment)}"


def _constraint(name: str | None) -> str:
    return "" if name is None else f"CONSTRAINT {quote_name(name)} "


def _primary_key(key: PrimaryKeySpec) -> str:
    text = f"{_constraint(key.name)}PRIMARY KEY {columns(key.columns)}"
    return text + ("" if key.enforced else " NOT ENFORCED") + (" RELY" if key.rely else "")


def _foreign_key(key: ForeignKeySpec) -> str:
    text = (
        f"{_constraint(key.name)}FOREIGN KEY {columns(key.columns)} REFERENCES {quote_name(key.references)}"
    )
    if key.ref_columns:
        text += f" {columns(key.ref_columns)}"
    return text + (" ENFORCED" if key.enforced else "") + (" RELY" if key.rely else "")
