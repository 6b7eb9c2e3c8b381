"""A warehouse in a directory of the file system."""

from __future__ import annotations

import builtins
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, ClassVar

from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core import private

__all__ = ["LocalStore", "make_durable"]


class LocalStore(Store):
    """Files of a directory, which lies on a disk that every process sees under the same path."""

    is_local: ClassVar[bool] = True

    def path(self, path: str) -> str:
        return f"{self.location}/{path}"

    def file(self, path: str) -> Path:
        return Path(self.location, path)

    def is_there(self) -> bool:
        return Path(self.location).is_dir()

    def make(self, directories: Iterable[str]) -> None:
        top = Path(self.location)
        for directory in (top, *(top / name for name in directories)):
            private.make_directory(directory)

    def list(self, directory: str) -> list[Found]:
        top = Path(self.location)
        paths = sorted(path for path in (top / directory).rglob("*") if path.is_file())
        return [_found(path, path.relative_to(top).as_posix()) for path in paths]

    def stat(self, path: str) -> Found:
        return _found(self.file(path), path)

    def has(self, path: str) -> bool:
        return self.file(path).exists()

    def having(self, paths: Sequence[str]) -> builtins.list[str]:
        return [path for path in paths if self.has(path)]

    def source(self, path: str) -> str:
        return self.path(path)

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        target = self.file(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as sink:
            yield sink

    @contextmanager
    def replacing(self, path: str) -> Iterator[IO[bytes]]:
        target = self.file(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with staged.open("wb") as sink:
                yield sink
            staged.replace(target)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise

    def make_durable(self, path: str) -> None:
        make_durable(self.file(path), Path(self.location))

    def delete(self, path: str, *, parents: int = 0) -> None:
        file = self.file(path)
        file.unlink(missing_ok=True)
        with suppress(OSError):
            for directory in list(file.parents)[:parents]:
                directory.rmdir()

    def delete_directory(self, directory: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self.file(directory))


def make_durable(path: Path, top: Path) -> None:
    """The catalog must never name a file that a power cut can empty, or a directory below `top` that it can take away."""
    directories = (each for each in path.parents if each.is_relative_to(top) and os.name != "nt")
    for each in (path, *directories):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _found(file: Path, path: str) -> Found:
    status = file.stat()
    return Found(path, status.st_size, int(status.st_mtime * 1000))
