"""The declaration of a database as a source: its type, its options, and the URL that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from cq_engine.catalog.model import DeclaredSource
from cq_engine.catalog.urls import Address, parse, without_secrets
from cq_engine.core.errors import CatalogError, Location, SourceError, SourceUnavailableError, did_you_mean
from cq_engine.core.variables import VARIABLE, expand
from cq_engine.destinations.options import seconds

__all__ = ["TYPES", "Options", "address_of", "check_declaration", "options_of"]

TYPES = ("sqlite", "postgresql", "mariadb", "sql")
"""Types of sources that are asked in SQL; `sql` is whatever SQLAlchemy has a dialect for."""

_READER = "the process that asks the source, whenever it connects"
_NAMES = ("url", "time_zone", "timeout", "connect_timeout")
_FORMS = {
    "sqlite": "url = 'sqlite:////path/to/shop.db'",
    "postgresql": "url = 'postgresql://user:${PASSWORD}@host/database'",
    "mariadb": "url = 'mariadb://user:${PASSWORD}@host/database'",
    "sql": "url = 'dialect+driver://user:${PASSWORD}@host/database'",
}


@dataclass(frozen=True)
class Options:
    """What the options of a declaration say, but for the URL."""

    time_zone: ZoneInfo
    """Of the source's timestamps without a zone."""
    timeout: float | None
    """Seconds that a statement may take; None for as long as it takes."""
    connect_timeout: float
    """Seconds that a server may take to answer."""


def options_of(declared: DeclaredSource) -> Options:
    """The options of a declaration. Raises SourceError for a value that an option cannot have."""
    said = dict(declared.options)
    zone = said.get("time_zone", "UTC")
    try:
        found = ZoneInfo(zone)
    except (ValueError, OSError, KeyError):
        raise SourceError(
            f"source {declared.name} has time_zone = '{zone}', which is no time zone",
            hint="write a name such as time_zone = 'Europe/Vienna'",
        ) from None
    timeout = _seconds(declared.name, "timeout", said["timeout"]) if "timeout" in said else None
    return Options(
        found, timeout, _seconds(declared.name, "connect_timeout", said.get("connect_timeout", "5 seconds"))
    )


def _seconds(source: str, option: str, value: str) -> float:
    try:
        found = seconds(value)
    except ValueError:
        found = 0.0
    if not found:
        raise SourceError(
            f"source {source} has {option} = '{value}', which is no length of time",
            hint=f"write a number and a unit, as in {option} = '30 seconds'",
        )
    return found


def check_declaration(
    declared: DeclaredSource, place: Callable[[str], Location | None] = lambda _: None
) -> None:
    """What is to be checked of a declaration without asking the database; `place` says where an option stands.

    Raises SourceError for a type or an option that is not known, for no URL or none of the type, and for a secret in it.
    """
    if declared.type not in TYPES:
        raise SourceError(
            f"{declared.type} is no database that is asked in SQL", hint=did_you_mean(declared.type, TYPES)
        )
    said = dict(declared.options)
    for option in said:
        if option not in _NAMES:
            raise SourceError(
                f"sources of type {declared.type} have no option {option}",
                hint=did_you_mean(option, _NAMES, f"they have {', '.join(_NAMES)}"),
                location=place(option),
            )
    options_of(declared)
    url = said.get("url", "")
    if not url.strip():
        raise SourceError(f"source {declared.name} has no url", hint=f"write {_FORMS[declared.type]}")
    if "${" in url and "://" not in url:
        return
    if any(_parse(declared, VARIABLE.sub("", url)).secrets.values()):
        raise SourceError(
            "the url has a password in it",
            detail="a declaration is stored, and shown to whoever asks",
            hint="write url = '${NAME}', or ${NAME} in the password's place, and set the environment variable NAME",
            location=place("url"),
        )


def address_of(declared: DeclaredSource) -> Address:
    """The URL that a declaration stands for now, and its secrets beside it. Raises SourceError."""
    url = dict(declared.options).get("url", "")
    return _parse(declared, expand(url, SourceUnavailableError, _READER))


def _parse(declared: DeclaredSource, text: str) -> Address:
    if declared.type == "sql":
        return _any(text)
    try:
        address = parse(text, "a source", mariadb=True)
    except CatalogError as error:
        raise SourceError(error.message, detail=error.detail, hint=error.hint) from None
    if address.url.get_backend_name() != declared.type:
        raise SourceError(
            f"source {declared.name} is of type {declared.type}, and its url is of {address.url.get_backend_name()}",
            hint=f"write {_FORMS[declared.type]}",
        )
    return address


def _any(text: str) -> Address:
    """The address of whatever SQLAlchemy knows; where it is one of the databases that we know, that of its type."""
    try:
        url: URL = make_url(text)
    except (ArgumentError, ValueError):
        raise SourceError(
            f"{without_secrets(text)} is not the URL of a database", hint=f"write {_FORMS['sql']}"
        ) from None
    try:
        return parse(text, "a source", mariadb=True)
    except CatalogError as error:
        if url.get_backend_name() in TYPES:
            raise SourceError(error.message, detail=error.detail, hint=error.hint) from None
    secrets = {
        name: value
        for name, value in url.query.items()
        if isinstance(value, str) and without_secrets(f"{name}={value}") != f"{name}={value}"
    }
    address = url.difference_update_query(secrets)
    if url.password is not None:
        secrets["password"] = str(url.password)
    return Address(address._replace(password=None), secrets)
