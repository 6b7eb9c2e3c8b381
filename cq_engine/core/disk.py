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
_STORES = {
    r"\baws error\b|\bgeneric s3 error\b": (
        "see that storage.access_key_id is a key of this store, that storage.secret_access_key belongs to it, and that this machine's clock is right",
        "storage.endpoint_url, storage.region",
    ),
    r"\bgoogle::cloud::|\bgeneric gcs error\b": (
        "see that storage.credentials_file, or who `gcloud` is logged in as, is an account that this bucket knows",
        "storage.endpoint_url",
    ),
    r"\bazure error\b|\bgeneric microsoftazure error\b": (
        "see that storage.account_key, storage.sas_token or storage.client_secret is this account's, and that this machine's clock is right",
        "storage.endpoint_url",
    ),
    r"\bno_such_bucket\b|\blacked the necessary privileges\b": ("", ""),
}
"""How the libraries that speak to a store begin their errors; what is to be seen to where it does not take the credentials, and
where it cannot be reached."""
_NAMES = re.compile(r"https?://\S+|'[^']*'|request.?id: ?\S+|location \S+|path \S+", re.IGNORECASE)
"""What a store's text has of names that are not its own words: files may be called like anything."""
_KEYS = "credentials"
_GONE = "gone"
_REFUSED = (
    (r"no.?such.?key|blob.?not.?found|no such object|specified (key|blob) does not exist", _GONE),
    (r"no.?such.?bucket|container.?not.?found|bucket does not exist|container does not exist", "create the bucket first"),
    ((r"invalid.?access.?key|signature|failed to authenticate|unauthenticated|too.?skewed|expired.?token|oauth2|invalid.?grant"
     r"|client.?secret|invalid.?client|\b401\b"), _KEYS),
    (r"access.?denied|forbidden|permission|necessary privileges|authorization.*mismatch|\b403\b",
     "let these credentials list, read, write and delete below the warehouse's prefix"),
    (r"slow.?down|server.?busy|resource.?exhausted|\b(429|503)\b", "the store throttles, or is down: repeat it later"),
)  # fmt: skip
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
    if number is None and (of_store := _store_hint(str(error))):
        return StorageError(f"cannot {doing}", detail=said, hint=of_store)
    if number is None:
        return StorageError(f"cannot {doing}", detail=damage or said, hint=hint)
    reason = os.strerror(number)
    return DiskError(f"cannot {doing}: {reason}", detail="" if said == reason else said, hint=_HINTS[number])


def _store_hint(text: str) -> str:
    """What to do about what an object store says; empty where no store speaks, or only says that a file is not there."""
    begun = ((re.search(begins, text, re.IGNORECASE), given) for begins, given in _STORES.items())
    found = next(((match.start(), given) for match, given in begun if match is not None), None)
    if found is None:
        return ""
    start, (credentials, options) = found
    said = _NAMES.sub(" ", text[start:])
    hint = next((hint for phrase, hint in _REFUSED if re.search(phrase, said, re.IGNORECASE)), None)
    if hint is None:
        return f"see that {options} and the network lead to the store, then repeat it"
    return {_KEYS: credentials, _GONE: ""}.get(hint, hint)


def _said(error: BaseException, warehouse: str) -> str:
    """The text of an error on one line, without the path of the warehouse."""
    if isinstance(error, CQError):
        return error.detail or error.message
    said = ""
    if isinstance(error, OSError) and error.strerror and not str(error.strerror).startswith("["):
        said = error.strerror + (f": {error.filename}" if error.filename else "")
    said = " ".join((said or str(error)).split()) or type(error).__name__
    return said.replace(f"{warehouse.rstrip('/')}/", "") if warehouse else said
