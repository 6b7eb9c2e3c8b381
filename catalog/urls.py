"""URLs of databases: which there are, and how one is shown without its secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from cq_engine.core.errors import CatalogError

__all__ = ["Address", "parse", "without_secrets"]

_DRIVERS = {
    "sqlite": ("sqlite", "sqlite+pysqlite"),
    "postgresql": ("postgresql+psycopg", "postgresql+psycopg2"),
}
_FORMS = "write sqlite:////path/to/catalog.db or postgresql://user@host/database"
_MARIADB = "mariadb+pymysql"
_HUSH = r"[\w.\-]*(?:pass|pwd|secret|token|credential|api_?key)[\w.\-]*"
_HIDDEN = "***"


@dataclass(frozen=True)
class Address:
    """A URL without secrets, which may be shown, and the secrets, which go to the driver past it."""

    url: URL
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Keyword arguments of the driver's connect."""

    @property
    def shown(self) -> str:
        """The URL as a person may see it: with *** for what is secret."""
        names = set(self.secrets)
        hidden = self.url
        if self.url.username and "password" in names:
            hidden = hidden.set(password=_HIDDEN)
            names.remove("password")
        hidden = hidden.set(query={**self.url.query, **dict.fromkeys(sorted(names), _HIDDEN)})
        return hidden.render_as_string(hide_password=True).replace(quote(_HIDDEN, safe=""), _HIDDEN)

    def clean(self, text: str) -> str:
        """`text`, such as a driver's message, without the secrets in any spelling."""
        spelled = {
            each for value in self.secrets.values() for each in (value, quote(value), quote_plus(value))
        }
        for secret in sorted(spelled - {""}, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)
        return without_secrets(text)


def parse(text: str, what: str = "a catalog", *, mariadb: bool = False) -> Address:
    """The address that a SQLAlchemy URL names; `postgresql://` and `postgres://` mean psycopg 3, `mariadb://` PyMySQL.

    Raises CatalogError where it is none, or of a database that `what` cannot be in; in MariaDB it can be with `mariadb`.
    """
    forms = _FORMS if not mariadb else _FORMS.replace(" or ", ", mariadb://user@host/database or ")
    names = "neither SQLite nor PostgreSQL" if not mariadb else "neither SQLite, MariaDB nor PostgreSQL"
    drivers = {**_DRIVERS, "mariadb": (_MARIADB,)} if mariadb else _DRIVERS
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise CatalogError(
            f"{without_secrets(text)} is not the URL of a database",
            hint=f"{forms}; in user names and passwords, write : / @ as %3A %2F %40",
        ) from None
    if url.get_backend_name() != "sqlite" and ("@" in str(url.host) or {*":@"} & {*str(url.database)}):
        raise CatalogError(  # these may be parts of a password
            f"a URL of {url.get_backend_name()} has : or @ where none can be",
            hint="in user names and passwords, write : / @ as %3A %2F %40",
        )
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "mariadb":
        url = url.set(drivername=_MARIADB)
    secret = {name: value for name, value in url.query.items() if re.fullmatch(_HUSH, name, re.IGNORECASE)}
    secrets = {name: value if isinstance(value, str) else value[-1] for name, value in secret.items()}
    if url.password is not None:
        secrets["password"] = str(url.password)
    address = Address(url.difference_update_query(secret)._replace(password=None), secrets)
    if url.drivername not in drivers.get(url.get_backend_name(), ()):
        raise CatalogError(
            f"{what} cannot be in {url.drivername}",
            detail=f"{address.shown} is {names}",
            hint=forms,
        )
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise CatalogError(f"{address.shown} names no file", hint=forms)
    return address


def without_secrets(text: str) -> str:
    """`text` with *** for what looks like a secret of a URL in it.

    >>> without_secrets("postgresql://me:pa:ss@db/x?sslpassword=abc&a=1")
    'postgresql://me:***@db/x?sslpassword=***&a=1'
    """
    text = re.sub(r"(://[^:/@\s]*):[^\s?]*@", rf"\1:{_HIDDEN}@", text)
    return re.sub(rf"\b({_HUSH})(\s*=\s*)[^&\s;'\"]+", rf"\1\2{_HIDDEN}", text, flags=re.IGNORECASE)
