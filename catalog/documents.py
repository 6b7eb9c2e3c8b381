"""Definitions as JSON documents, there and back: a record is stored as its fields by name, and read by their types.

Documents outlive the code. A field that is not in a document has its default, so that fields can be added; one that is
called differently now is stored under the name that it had first (`_STORED`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from cq_engine.catalog.groups import query_options
from cq_engine.catalog.model import ContinuousQuery, ForeignKey
from cq_engine.core.errors import CatalogError
from cq_engine.grammar.clauses import Cron, EveryInterval, OnCommit, OnDemand, OnDml, StartWithPeriod, When

__all__ = ["from_text", "to_text"]

_Value = TypeVar("_Value")
_Reader = Callable[[Any], Any]

FOREVER = 2**63 - 1
_SCHEDULES: Mapping[str, type] = {
    "commit": OnCommit,
    "demand": OnDemand,
    "every": EveryInterval,
    "start": StartWithPeriod,
    "cron": Cron,
    "dml": OnDml,
}
_KINDS: Mapping[type, str] = {schedule: kind for kind, schedule in _SCHEDULES.items()}
_STORED: Mapping[tuple[type, str], str] = {(ContinuousQuery, "group"): "template"}
"""By record and field the name that the field has in documents: groups were called templates first."""
_ABSENT: Mapping[type, Mapping[str, object]] = {
    ForeignKey: {"since": FOREVER}  # of a warehouse from before it was noted: nothing rests on it
}
"""By record what fields have that are not in a document, other than their defaults."""
_AS_OF_TODAY: Mapping[type, Mapping[str, _Reader]] = {ContinuousQuery: {"options": query_options}}
"""By record how the values of old documents become those of today."""


def to_text(value: object) -> str:
    """A record of `catalog.model`, or a tuple of such, as JSON text."""
    return json.dumps(value, default=_document, ensure_ascii=False, separators=(",", ":"))


def from_text(kind: type[_Value], text: str) -> _Value:
    """The `kind` that `to_text` has made the text of. Raises CatalogError for a schedule that is not known."""
    hint: Any = kind
    found: _Value = _reader(hint)(json.loads(text))
    return found


def _document(record: object) -> dict[str, object]:
    kind: Any = type(record)
    shown = {stored: getattr(record, name) for name, stored in _stored_names(kind)}
    return {"kind": _KINDS[kind], **shown} if kind in _KINDS else shown


@cache
def _stored_names(kind: Any) -> list[tuple[str, str]]:
    """The fields of a record, each with its name in documents."""
    return [(field.name, _STORED.get((kind, field.name), field.name)) for field in fields(kind)]


@cache
def _reader(kind: Any) -> _Reader:
    """What makes a value of a type out of a document."""
    arguments = get_args(kind)
    if kind == When:
        return _read_schedule
    if is_dataclass(kind):
        return _record_reader(kind)
    if get_origin(kind) is UnionType:
        (some,) = (_reader(each) for each in arguments if each is not NoneType)
        return lambda found: None if found is None else some(found)
    if get_origin(kind) is Mapping:
        value = _reader(arguments[1])
        return lambda found: {name: value(each) for name, each in found.items()}
    if get_origin(kind) is tuple and arguments[1:] == (...,):
        element = _reader(arguments[0])
        return tuple if element is _as_it_is else lambda found: tuple(map(element, found))
    if get_origin(kind) is tuple:
        readers = [_reader(each) for each in arguments]
        return lambda found: tuple(read(each) for read, each in zip(readers, found))
    return _as_it_is


def _record_reader(kind: Any) -> _Reader:
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    readers |= _AS_OF_TODAY.get(kind, {})
    places = [(name, stored, readers[name]) for name, stored in _stored_names(kind)]
    absent = _ABSENT.get(kind, {})

    def read_record(found: Mapping[str, Any]) -> Any:
        there = {name: read(found[stored]) for name, stored, read in places if stored in found}
        return kind(**{**absent, **there})

    return read_record


def _read_schedule(found: Mapping[str, Any]) -> When:
    schedule = _SCHEDULES.get(found["kind"])
    if schedule is None:
        raise CatalogError(f"the catalog holds an unknown schedule {found['kind']!r}")
    read: When = _reader(schedule)(found)
    return read


def _as_it_is(found: Any) -> Any:
    return found
