"""Sources that are files: the option that says where they are."""

from __future__ import annotations

from cq_engine.catalog.model import DeclaredSource
from cq_engine.core.errors import SourceUnavailableError
from cq_engine.core.variables import expand
from cq_engine.destinations.options import Option

__all__ = ["as_declared", "below", "path_of", "path_option"]


def path_option(hint: str) -> Option:
    """The option `path`, which has to be said."""
    return Option(None, _not_empty, hint)


def path_of(declared: DeclaredSource) -> str:
    """The path of a source, with what its variables stand for. Raises SourceUnavailableError."""
    reader = "the process that reads the source, whenever it does"
    return expand(dict(declared.options)["path"], SourceUnavailableError, reader)


def below(path: str, relation: str | None) -> str:
    """What `relation` names below a path; the path itself where there is none."""
    return path if relation is None else f"{path.rstrip('/')}/{relation}"


def as_declared(declared: DeclaredSource, text: str) -> str:
    """A text about a source, with its path as it was declared: what variables stand for is not shown."""
    return text.replace(path_of(declared), dict(declared.options)["path"])


def _not_empty(value: str) -> str:
    if not value.strip():
        raise ValueError
    return value
