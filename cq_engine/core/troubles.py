"""One thing's trouble does not stop the others: what failed is kept, and raised when all are done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cq_engine.core.errors import CQError, LeaseError, StorageError, said

__all__ = ["Troubles"]

_SHOWN = 5


class Troubles:
    """What failed, by name."""

    def __init__(self) -> None:
        self.found: dict[str, Exception] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """A block that concerns `name`; what it raises is kept. LeaseError concerns everything, and is raised."""
        try:
            yield
        except LeaseError:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised by `check`
            self.found.setdefault(name, error)

    def check(self, what: str) -> None:
        """Raises what was kept: a CQError as it is where it is the only one, else StorageError, which says that `what`
        failed and for which."""
        if not self.found:
            return
        first = next(iter(self.found.values()))
        if len(self.found) == 1 and isinstance(first, CQError):
            raise first
        names = list(self.found)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise StorageError(
            f"{what} failed for {', '.join(names[:_SHOWN])}{more}",
            detail="; ".join(f"{name}: {said(error)}" for name, error in list(self.found.items())[:_SHOWN]),
            hint="all others are done; nothing is lost, and it is tried again next time",
        ) from first
