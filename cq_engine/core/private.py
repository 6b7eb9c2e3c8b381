"""Directories and files for the account that makes them, and no other."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_directory", "touch"]


def make_directory(path: Path) -> None:
    """Makes a directory, and those above it that are not there, with mode 0700; one that is there stays as it is.

    Raises OSError.
    """
    missing = [each for each in (path, *path.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def touch(path: Path) -> None:
    """Makes an empty file with mode 0600, unless there is a file."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
