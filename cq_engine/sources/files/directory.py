"""The files of a source: their names below its path, their sizes and times, and whether somebody still writes them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from cq_engine.catalog.model import DeclaredSource
from cq_engine.core.errors import SourceError, SourceUnavailableError
from cq_engine.destinations.options import seconds
from cq_engine.sources.files.options import value
from cq_engine.sources.paths import below, path_of

__all__ = ["Directory", "Found", "Stamp"]

Stamp = list[int]
"""Size in bytes and time of the last write in nanoseconds: what a file that was read is known again by."""


@dataclass(frozen=True)
class Found:
    """A file by its name below the directory."""

    name: str
    size: int
    written: int
    """Nanoseconds since 1970."""

    @property
    def stamp(self) -> Stamp:
        """What it is known again by."""
        return [self.size, self.written]


class Directory:
    """The source's path, or what `relation` names below it: a directory, with those below it, or one file."""

    def __init__(self, declared: DeclaredSource, relation: str | None) -> None:
        self.declared = declared
        path = below(path_of(declared), relation)
        self.path = below(dict(declared.options)["path"], relation)
        """As it was written: what variables stand for is not shown."""
        self._base = ""
        try:
            if "://" in path:
                self.system, self._root = pafs.FileSystem.from_uri(path)
            else:
                self.system = pafs.LocalFileSystem()
                self._root = str(Path(path).expanduser().absolute())
        except (
            pa.ArrowException,
            OSError,
            ValueError,
        ) as error:  # whose text may have what a variable stands for
            raise SourceError(
                f"source {declared.name} cannot be read at {self.path}",
                detail=type(error).__name__,
                hint="the option path is a path of this machine or a URL such as s3://bucket/directory",
            ) from None

    def check(self) -> None:
        """Raises SourceError where there is nothing to be read."""
        with self._errors(self.path):
            self._there()

    def files(self) -> list[Found]:
        """The files in the order in which they are read: by the time of the last write, or by name.

        Those whose names, or whose directories' names, begin with a dot or an underscore are none. Raises SourceError.
        """
        with self._errors(self.path):
            self._base = self._root
            there = self._there()
            if there.type == pafs.FileType.File:
                self._base = self._root.rpartition("/")[0]
                return [self._found(there)]
            listed = self.system.get_file_info(pafs.FileSelector(self._base, recursive=True))
        pattern = value(self.declared, "pattern")
        found = [self._found(each) for each in listed if each.type == pafs.FileType.File]
        kept = [each for each in found if _is_seen(each.name) and _matches(each.name, pattern)]
        if value(self.declared, "order").lower() == "name":
            return sorted(kept, key=lambda each: each.name)
        return sorted(kept, key=lambda each: (each.written, each.name))

    def is_settled(self, file: Found) -> bool:
        """Whether nobody has written to the file for as long as the source's option says, and it is not empty."""
        age = time.time() - file.written / 1e9
        return file.size > 0 and abs(age) >= seconds(value(self.declared, "settled"))

    def is_as_before(self, file: Found) -> bool:
        """Whether the file is still the one that was found."""
        with self._errors(file.name):
            there = self.system.get_file_info(self._path_to(file.name))
            return there.type == pafs.FileType.File and self._found(there) == file

    def rows(self, files: Sequence[Found]) -> int | None:
        """How many rows the files have; None where only reading them would tell."""
        if self.declared.type != "parquet":
            return None
        with self._errors(self.path):
            return sum(int(pq.read_metadata(self.file(each.name)).num_rows) for each in files)

    def stream(self, name: str) -> Any:
        """A file's bytes one after the other, decompressed where its name ends in .gz, .bz2, .zst or .lz4."""
        return self.system.open_input_stream(self._path_to(name), compression="detect")

    def file(self, name: str) -> Any:
        """A file's bytes at any place."""
        return self.system.open_input_file(self._path_to(name))

    def _there(self) -> pafs.FileInfo:
        there = self.system.get_file_info(self._root)
        if there.type == pafs.FileType.NotFound:
            raise SourceUnavailableError(
                f"source {self.declared.name} has no files at {self.path}",
                hint="the option path names a directory or a file, TABLE one below it",
            )
        return there

    def _path_to(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _found(self, info: pafs.FileInfo) -> Found:
        name = info.path[len(self._base.rstrip("/")) + 1 :]
        return Found(name, info.size, info.mtime_ns or 0)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise SourceUnavailableError(
                f"{name} of source {self.declared.name} cannot be read", detail=str(error)
            ) from error


def _is_seen(name: str) -> bool:
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name if "/" in pattern else name.rpartition("/")[2], pattern)
