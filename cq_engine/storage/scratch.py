"""Directories for what a process keeps beside the warehouse: gone with the process, whatever ends it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

__all__ = ["scratch_directory"]

_LOCK = ".lock"
_guard = threading.Lock()
_directories: dict[tuple[Path, str], Path] = {}


def scratch_directory(place: Path, prefix: str) -> Path:
    """The process's directory in `place` whose name begins with `prefix`, made at the first call.

    Then those of processes that were killed are removed. Raises OSError.
    """
    with _guard:
        found = _directories.get((place, prefix))
        if found is None or not found.is_dir():
            _remove_left(place, prefix)
            found = _directories[place, prefix] = _locked_directory(place, prefix)
        return found


def _locked_directory(place: Path, prefix: str) -> Path:
    """A directory for as long as this process lives, and beside it a file that is locked as long."""
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=_LOCK, dir=place)  # stays open
    lock = Path(name)
    with suppress(OSError):
        _lock(handle)
    directory = lock.with_suffix("")
    directory.mkdir(mode=0o700)
    atexit.register(lock.unlink, missing_ok=True)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _remove_left(place: Path, prefix: str) -> None:
    """Removes directories of processes that were killed."""
    for lock in place.glob(f"{prefix}*{_LOCK}"):
        with suppress(OSError), lock.open("r+b") as file:
            _lock(file.fileno())
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()


def _lock(handle: int) -> None:
    """Locks an open file until it is closed. Raises OSError where another process has it locked."""
    try:
        import fcntl
    except ImportError as error:  # not POSIX
        raise OSError("no locks here") from error
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
