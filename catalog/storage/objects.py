"""A warehouse below a prefix of a bucket.

An object is there when it is whole, and durable then; nothing is ever renamed. Directories do not exist: Arrow shows a
prefix of names as one, and leaves an empty object in its place where the last name below it is deleted.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa

from cq_engine.catalog.storage.access import Access
from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core.apart import apart

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["ObjectStore"]

_R = TypeVar("_R")

_filesystems: dict[Access, pafs.FileSystem] = {}
_making = threading.Lock()


class ObjectStore(Store):
    """Files under `bucket/prefix`. It can be pickled, with its credentials, for tasks of executors."""

    is_local: ClassVar[bool] = False

    def __init__(self, location: str, top: str, access: Access) -> None:
        super().__init__(location)
        self.access = access
        self.threads = access.threads
        self._top = top
        """What Arrow calls the warehouse: `bucket/prefix`."""

    def ask(self, work: Callable[[], _R], undo: Callable[[], object] | None = None) -> _R:
        return apart(work, undo)

    # ------------------------------------------------------------ names

    def path(self, path: str) -> str:
        return f"{self._top}/{path}"

    @property
    def filesystem(self) -> pafs.FileSystem:
        """One for all stores of this process that are reached in the same way: it has the connections."""
        with _making:
            if self.access not in _filesystems:
                _filesystems[self.access] = self.access.filesystem()
            return _filesystems[self.access]

    @property
    def delta_options(self) -> dict[str, str]:
        return self.access.delta_options()

    def file(self, path: str) -> None:  # noqa: ARG002 - none of them is one
        return None

    # ------------------------------------------------------------ the warehouse

    def is_there(self) -> bool:
        return True  # which the catalog knows

    def make(self, directories: Iterable[str]) -> None:  # noqa: ARG002 - prefixes need not be made
        import pyarrow.fs as pafs

        bucket = self._top.partition("/")[0]
        if self._info(bucket).type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"NO_SUCH_BUCKET: there is no bucket {bucket}")

    # ------------------------------------------------------------ files

    def list(self, directory: str) -> list[Found]:
        import pyarrow.fs as pafs

        selector = pafs.FileSelector(self.path(directory), allow_not_found=True, recursive=True)
        found = [self._found(each) for each in self._info(selector) if each.is_file]
        return sorted(found, key=lambda each: each.path)

    def stat(self, path: str) -> Found:
        found = self._info(self.path(path))
        if not found.is_file:
            raise FileNotFoundError(f"{self.uri(path)} is not there")
        return self._found(found)

    def has(self, path: str) -> bool:
        return bool(self.having([path]))

    def having(self, paths: Sequence[str]) -> builtins.list[str]:
        import pyarrow.fs as pafs

        found = self._info([self.path(path) for path in paths])  # all of them at once
        return [path for path, each in zip(paths, found) if each.type != pafs.FileType.NotFound]

    def source(self, path: str) -> pa.NativeFile:
        return self.ask(lambda: self.filesystem.open_input_file(self.path(path)))

    @contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        sink = self.filesystem.open_output_stream(self.path(path))
        try:
            yield sink
        except BaseException:
            with suppress(OSError):  # Arrow cannot take back what it has begun to write, but by ending it
                sink.close()
                self.delete(path)
            raise
        sink.close()

    replacing = writing

    def make_durable(self, path: str) -> None:
        """It is."""

    def delete(self, path: str, *, parents: int = 0) -> None:
        self.ask(lambda: self._delete(path, parents))

    def delete_directory(self, directory: str) -> None:
        self.ask(lambda: self._delete_directory(directory))

    # ------------------------------------------------------------ inside

    def _delete(self, path: str, parents: int) -> None:
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(path))
        for directory in list(PurePosixPath(path).parents)[:parents]:
            if str(directory) == "." or self.list(str(directory)):
                return
            self.delete_directory(str(directory))

    def _delete_directory(self, directory: str) -> None:
        try:
            self.filesystem.delete_dir(self.path(directory.rstrip("/")))
        except FileNotFoundError:
            return
        except OSError:  # Google's says so of a directory that is not there
            if self.has(directory.rstrip("/")):
                raise

    def _info(self, of: Any) -> Any:
        return self.ask(lambda: self.filesystem.get_file_info(of))

    def _found(self, info: pafs.FileInfo) -> Found:
        modified = int(info.mtime.timestamp() * 1000) if info.mtime is not None else 0
        return Found(info.path.removeprefix(f"{self._top}/"), info.size, modified)
