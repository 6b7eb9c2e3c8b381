"""What the operating system says where files cannot be read or written, as an error with a way out."""

from __future__ import annotations

import errno
import os
import re

from cq_engine.core.errors import CQError, DiskError, StorageError

__all__ = ["RESTORE", "disk_error", "system_reason"]

_NO_ROOM = "make room there, then repeat it"
_HINTS = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: "let this account read and write there, then repeat it",
    errno.EPERM: "let this account read and write there, then repeat it",
    errno.EROFS: "make the file system writable, then repeat it",
    errno.EIO: "the device fails: look into the system's log before you repeat it",
    errno.ESTALE: "the device fails: look into the system's log before you repeat it",
    errno.EMFILE: "allow this process more open files (ulimit -n), then repeat it",
    errno.ENFILE: "allow the system more open files, then repeat it",
    errno.ENAMETOOLONG: "give a shorter path",
}
_PHRASES = {os.strerror(number).lower(): number for number in _HINTS} | {
    "disk is full": errno.ENOSPC,  # SQLite's own words
    "readonly database": errno.EACCES,
    "unable to open database file": errno.EACCES,
    "disk i/o error": errno.EIO,
}
_STORE = re.compile(
    r"\baws error\b|\bgeneric (s3|gcs|microsoftazure) error\b|\bgoogle cloud\b|\bazure\b|\bblobs?\b|no_such_bucket",
    re.IGNORECASE,
)
_STORE_HINTS = {
    r"access.?denied|forbidden": "let these credentials list, read, write and delete below the warehouse's prefix",
    r"invalid.?access.?key": "see that storage.access_key_id is a key of this store",
    r"signature": "see that the secret key belongs to the access key, and that this machine's clock is right",
    r"no.?such.?bucket": "create the bucket first",
    r"slow.?down|503": "the store throttles, or is down: repeat it later",
    "": "see that storage.endpoint_url, storage.region and the network lead to the store, then repeat it",
}
"""By what an object store says, the first that fits."""
RESTORE = "put the file back from a copy of the warehouse; a query that has failed goes on with ALTER CONTINUOUS QUERY … RESUME"
"""What to do about a data file that is missing or damaged."""


def system_reason(error: BaseException) -> int | None:
    """The number of the system's error that `error` is, or that its text tells of; None where that is none of those
    that pass when somebody does something about them."""
    if isinstance(error, OSError) and error.errno in _HINTS:
        return error.errno
    text = str(error).lower()
    return next((number for phrase, number in _PHRASES.items() if phrase in text), None)


def disk_error(
    doing: str, error: BaseException, warehouse: str = "", *, damage: str = "", hint: str = ""
) -> StorageError:
    """The error for `doing` ("write tables/t/1.parquet"), which has failed with `error`.

    DiskError where the system has refused it, else StorageError: an object store has, a file is not there, or not what it
    should be. Paths
    in `warehouse` are shown relative to it. `damage` says what is wrong with which file, where that is known, and `hint`
    what to do where the system has not refused it.
    """
    number = system_reason(error)
    said = _said(error, warehouse)
    if number is None and _STORE.search(text := str(error)):
        found = next(hint for phrase, hint in _STORE_HINTS.items() if re.search(phrase, text, re.IGNORECASE))
        return StorageError(f"cannot {doing}", detail=said, hint=found)
    if number is None:
        return StorageError(f"cannot {doing}", detail=damage or said, hint=hint)
    reason = os.strerror(number)
    return DiskError(f"cannot {doing}: {reason}", detail="" if said == reason else said, hint=_HINTS[number])


def _said(error: BaseException, warehouse: str) -> str:
    """The text of an error on one line, without the path of the warehouse."""
    if isinstance(error, CQError):
        return error.detail or error.message
    said = ""
    if isinstance(error, OSError) and error.strerror and not str(error.strerror).startswith("["):
        said = error.strerror + (f": {error.filename}" if error.filename else "")
    said = " ".join((said or str(error)).split()) or type(error).__name__
    return said.replace(f"{warehouse.rstrip('/')}/", "") if warehouse else said
