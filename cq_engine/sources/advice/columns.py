"""Which columns of a relation can be a timestamp that writes set, a delete flag, and a key.

A name is a hint and orders those whose type allows it; only a flag has to be called like one, as any other column of its type
would do: rows would be taken for deleted that are not.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from cq_engine.sources.sql.model import Relation, SourceColumn

__all__ = ["flag_of", "is_indexed", "key_of", "only_begins", "timestamps_of"]

_UPDATED = re.compile(
    r"(^|_)(last_?)?(updated?|modif(ied|ication|y)|changed?|upd|mod|touched|written|revis(ed|ion))(_|$|at$|on$)"
    r"|(^|_)row_?version$|^ts$|^mtime$|^lastmod$",
    re.IGNORECASE,
)
_OTHERWISE = re.compile(r"(^|_)(by|user|who|id|count|times|number|reason|type|flag|yn|name)$", re.IGNORECASE)
"""What is called after updates and says something else of them than when."""
_CREATED = re.compile(r"(^|_)(created?|creation|insert(ed)?|added|born|birth|entered)", re.IGNORECASE)
_MARKED = re.compile(
    r"^(is_?|was_?)?(soft_?)?(deleted|removed|gone|tombstone|erased)(_?(flag|ind|yn|marker))?$"
    r"|^(delete|del|deletion)_?(flag|ind|mark|marker|yn)$",
    re.IGNORECASE,
)
_WHEN = re.compile(
    r"^(deleted|removed|erased)(_?(at|on|time|date|ts))?$|^(deletion|removal)_?(time|date|ts)$", re.IGNORECASE
)
_TIMES = ("timestamp", "timestamp_ntz")
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "decimal")


def timestamps_of(relation: Relation, kept: Collection[str] = ()) -> list[SourceColumn]:
    """The columns that every write may set, those first of which that is likely: the ones that the server itself keeps, then
    those that are called so, then those that are indexed. Of other types than timestamps only what is called so counts."""
    ranked = []
    for place, column in enumerate(relation.columns):
        # What tells of deletions may be a flag; a key is not set by writes.
        if _MARKED.search(column.name) or _WHEN.search(column.name) or column.name in relation.key:
            continue
        hinted, kind = _is_hint(column.name), column.type.split("(")[0]
        is_late = kind in (*_NUMBERS, "date") or (kind == "string" and relation.server == "sqlite")
        if kind in _TIMES or (hinted and is_late):
            rank = (
                column.name not in kept,
                only_begins(column.name),
                not hinted,
                kind not in _TIMES,
                not is_indexed(relation, column.name),
            )
            ranked.append((rank, place, column))
    return [column for _, _, column in sorted(ranked, key=lambda each: each[:2])]


def only_begins(name: str) -> bool:
    """Whether the name says that only the first write of a row sets the column."""
    return bool(_CREATED.search(_words(name))) and not _UPDATED.search(_words(name))


def flag_of(relation: Relation) -> SourceColumn | None:
    """The column that marks rows as deleted: what is called so, and is a truth value, a number, a short text, or a time that
    is NULL in rows that are not."""
    for column in relation.columns:
        kind = column.type.split("(")[0]
        name = _words(column.name)
        if kind in ("boolean", *_NUMBERS, "string") and _MARKED.search(name):
            return column
        if kind in (*_TIMES, "date") and column.nullable and (_MARKED.search(name) or _WHEN.search(name)):
            return column
    return None


def key_of(relation: Relation) -> tuple[str, ...]:
    """The primary key, else the columns of a unique index without NULL; empty where there is neither."""
    if relation.key:
        return relation.key
    nullable = {column.name for column in relation.columns if column.nullable}
    unique = [index.columns for index in relation.indexes if index.unique and not nullable & {*index.columns}]
    return min(unique, key=len, default=())


def is_indexed(relation: Relation, name: str) -> bool:
    """Whether an index finds rows by the column."""
    return any(index.columns[:1] == (name,) for index in relation.indexes)


def _is_hint(name: str) -> bool:
    words = _words(name)
    return bool(_UPDATED.search(words)) and not _OTHERWISE.search(words)


def _words(name: str) -> str:
    """A name with underscores between its words.

    >>> _words("LastUpdatedAt"), _words("is_deleted")
    ('last_updated_at', 'is_deleted')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
