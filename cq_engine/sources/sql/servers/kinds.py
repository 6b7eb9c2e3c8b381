"""Which server has which name: those that are known, and whatever else SQLAlchemy has a dialect for."""

from __future__ import annotations

from functools import lru_cache

from sqlglot.dialects.dialect import Dialects

from cq_engine.sources.sql.servers.mariadb import MariaDB
from cq_engine.sources.sql.servers.postgresql import PostgreSQL
from cq_engine.sources.sql.servers.server import Server
from cq_engine.sources.sql.servers.sqlite import SQLite

__all__ = ["server_of"]

_KNOWN = {made.name: made for made in (SQLite(), PostgreSQL(), MariaDB(), MariaDB("mysql"))}
_NAMES = {"mssql": "tsql"}
"""Where SQLGlot calls a dialect otherwise than SQLAlchemy."""


@lru_cache(maxsize=64)
def server_of(name: str) -> Server:
    """The server that SQLAlchemy's dialect of this name speaks to."""
    if name in _KNOWN:
        return _KNOWN[name]
    dialect = _NAMES.get(name, name)
    return Server(name, dialect if dialect in {each.value for each in Dialects} else "")
