"""A Delta Lake table outside of the warehouse as a destination (`destinations/targets/delta_table.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.context.services import Services
from cq_engine.core.errors import DestinationError
from cq_engine.destinations.kind_parts import Kind
from cq_engine.destinations.options import COMMON, Option, one_of
from cq_engine.destinations.targets.target import Target, TargetDestination, check_mode, local
from cq_engine.destinations.variables import expand

__all__ = ["KIND", "DeltaDestination"]


def _path(value: str) -> None:
    if not ("://" in value or value.startswith("${") or Path(value).is_absolute()):
        raise ValueError


_PATH = Option(None, _path, "write where the Delta table is or is to be, as in path = '/data/lake/orders'")


def _reach(destination: DeclaredDestination, services: Services) -> None:
    """Raises DestinationError where no Delta table can be at the path. What is not a local path is not looked at."""
    from cq_engine.destinations.targets.delta_table import is_table

    given = expand(dict(destination.options)["path"])
    path, store = local(given), services.catalog.store
    if path is None:
        if not store.is_local and f"{given.replace('s3a://', 's3://', 1)}/".startswith(f"{store.location}/"):
            raise _inside(given)
        return
    warehouse = Path(store.location).resolve() if store.is_local else None
    if warehouse is not None and (path.resolve() == warehouse or warehouse in path.resolve().parents):
        raise _inside(path)
    if path.exists() and not path.is_dir():
        raise DestinationError(f"path {path} is a file", hint="a Delta table is a directory")
    if path.is_dir() and not is_table(str(path)) and any(path.iterdir()):
        raise DestinationError(f"directory {path} is no Delta table and not empty", hint="choose another one")
    there = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise DestinationError(f"path {path} cannot be written", detail=f"no permission in {there}")


def _inside(path: str | Path) -> DestinationError:
    return DestinationError(
        f"path {path} lies in the warehouse",
        detail="what is in its directory is its own, and removed when nothing refers to it",
        hint="choose another place; the tables of the warehouse are Delta tables already",
    )


class DeltaDestination(TargetDestination):
    """Appends the deltas to a Delta table, or merges them into it."""

    kind: ClassVar[str] = "DELTA"

    @contextmanager
    def open(self) -> Iterator[Target]:
        from cq_engine.destinations.targets.delta_table import DeltaTarget, failing

        path = expand(self.options["path"])
        with failing(self.name):
            yield DeltaTarget(self, path)

    def check(self) -> None:
        from cq_engine.destinations.targets.delta_table import schema_of

        schema_of(self)
        super().check()


KIND = Kind(
    DeltaDestination,
    {"path": _PATH, "mode": one_of("history", "merge"), **COMMON},
    lambda wanted: DeltaDestination(wanted.services, wanted.query, wanted.declared, wanted.stopped),
    check_mode,
    _reach,
)
