"""What a warehouse asks of the place where its files lie.

    Store
    ├── LocalStore     a directory that all processes see (catalog/storage/local.py)
    └── ObjectStore    a prefix of a bucket (catalog/storage/objects.py)

A store lists, opens, writes, stats and deletes files; the catalog, and nothing in the store, says which of them count. So
it needs no locks, no renames and no listing that is up to date: a file is written once under a name that is given once, is
whole and durable before the catalog names it, and is never changed.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

__all__ = ["Found", "Store"]

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Found:
    """A file of the store: its path, its size in bytes, and when it was written, in milliseconds since 1970 (UTC)."""

    path: str
    size: int
    modified: int


class Store(ABC):
    """The files of one warehouse. Paths are relative to it, with `/` between their parts. Safe to use from several threads.

    What the system refuses is an OSError; a file that is not there is a FileNotFoundError.
    """

    is_local: ClassVar[bool]
    """Whether it is a directory of the file system, which Spark reads and writes as it is."""
    threads: int = 1
    """How many threads may well ask it at the same time: most of the time they wait for answers."""

    def __init__(self, location: str) -> None:
        self.location = location
        """The warehouse's absolute directory or its URL, without secrets and without a `/` at the end."""

    def ask(self, work: Callable[[], _R], undo: Callable[[], object] | None = None) -> _R:  # noqa: ARG002 - of other stores
        """What `work`, which asks the store, gives. Where the store is behind a network, the main thread's Ctrl-C does not wait for its
        answer; what comes to its end after that is undone."""
        return work()

    def together(self, work: Callable[[_T], _R], items: Iterable[_T]) -> builtins.list[_R]:
        """What `work`, which asks the store, gives for each of the items, in their order; several at a time, where that is worth it.
        Raises what the first of them raises that fails."""
        known = builtins.list(items)
        return self.ask(lambda: self._together(work, known))

    def _together(self, work: Callable[[_T], _R], items: Sequence[_T]) -> builtins.list[_R]:
        if self.threads == 1 or len(items) < 2:
            return [work(item) for item in items]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.threads, "cq-store") as threads:
            return builtins.list(threads.map(work, items))

    # ------------------------------------------------------------ names

    def uri(self, path: str) -> str:
        """The absolute path or URL of a file or directory."""
        return f"{self.location}/{path}"

    @abstractmethod
    def path(self, path: str) -> str:
        """What a file is called in `filesystem`."""

    @property
    def filesystem(self) -> pafs.FileSystem | None:
        """What Arrow's datasets read files with; None: their paths are enough."""
        return None

    @property
    def delta_options(self) -> dict[str, str] | None:
        """The `storage_options` that Delta Lake's library reaches `uri` with; None where it needs none."""
        return None

    @abstractmethod
    def file(self, path: str) -> Path | None:
        """The file where it is one of the file system; else None."""

    # ------------------------------------------------------------ the warehouse

    @abstractmethod
    def is_there(self) -> bool:
        """Whether there is a warehouse, as far as the store tells."""

    @abstractmethod
    def make(self, directories: Iterable[str]) -> None:
        """Makes what is not there of the warehouse and of these directories in it, for this account alone."""

    # ------------------------------------------------------------ files

    @abstractmethod
    def list(self, directory: str) -> list[Found]:
        """Every file below a directory, in the order of the paths; none where there is no such directory."""

    @abstractmethod
    def stat(self, path: str) -> Found:
        """One file."""

    @abstractmethod
    def has(self, path: str) -> bool:
        """Whether there is such a file, or a directory with something in it."""

    @abstractmethod
    def having(self, paths: Sequence[str]) -> builtins.list[str]:
        """Those of which `has` says so, in their order."""

    @abstractmethod
    def source(self, path: str) -> str | pa.NativeFile:
        """A file to read from, in any order, as `pyarrow.parquet` takes it."""

    @abstractmethod
    def writing(self, path: str) -> AbstractContextManager[IO[bytes] | pa.NativeFile]:
        """A block that writes a file; it may be seen before it is whole, and has to be made durable after the block."""

    @abstractmethod
    def replacing(self, path: str) -> AbstractContextManager[IO[bytes] | pa.NativeFile]:
        """A block that writes a file, in the place of one that is there; it is seen when it is whole, or not at all."""

    @abstractmethod
    def make_durable(self, path: str) -> None:
        """When it returns, a power cut cannot take the file, or the directories above it."""

    @abstractmethod
    def delete(self, path: str, *, parents: int = 0) -> None:
        """Removes a file if it is there, with up to so many directories above it where they are empty then."""

    @abstractmethod
    def delete_directory(self, directory: str) -> None:
        """Removes a directory with all that is in it, if it is there."""
