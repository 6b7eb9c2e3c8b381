"""URLs of servers in declarations, which are stored and shown: no secret may stand in one."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.errors import AnalysisError
from cq_engine.destinations.kind_parts import Place
from cq_engine.destinations.variables import VARIABLE

__all__ = ["HUSH", "account_of", "check_secrets", "check_url"]

HUSH = re.compile(r"authorization|cookie|token|secret|password|key", re.IGNORECASE)
"""Names of what looks like a secret."""


def check_url(destination: DeclaredDestination, place: Place, *, user: bool = False) -> None:
    """Raises AnalysisError where the option `url` has a secret in it; with `user`, a name without a password is one."""
    check_secrets(dict(destination.options)["url"], "url", place, user=user)


def check_secrets(given: str, option: str, place: Place, *, user: bool = False) -> None:
    """Raises AnalysisError where a URL that is the value of an option has a secret in it."""
    url = urlsplit(VARIABLE.sub("", given))
    named = [name for name, value in parse_qsl(url.query) if value and HUSH.search(name)]
    if url.password or named or (user and url.username):
        raise AnalysisError(
            f"the {option} has {'a password' if url.password else named[0] if named else 'a token'} in it",
            detail="a declaration is stored, and shown to whoever asks",
            hint="write ${NAME} in its place, and set the environment variable NAME",
            location=place(option),
        )


def account_of(url: str) -> tuple[str, str]:
    """User name and password of a URL, as they are meant; empty where there is none."""
    parts = urlsplit(url)
    return unquote(parts.username or ""), unquote(parts.password or "")
