"""Which store a warehouse's name means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.core.errors import StorageError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from cq_engine.catalog.storage.access import Access

__all__ = ["directory_of", "is_url", "open_beside", "open_store"]

_Access = TypeVar("_Access", bound="Access")


class _Reach(Protocol):
    """Gives the credentials for one kind of store, of Azure's for an account."""

    def __call__(self, wanted: type[_Access], account: str) -> _Access: ...


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_FILE = re.compile(r"file:(?://([^/]*))?(.*)", re.DOTALL | re.IGNORECASE)
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+(/[A-Za-z0-9_=+~.-]+)*")
_AZURE = re.compile(r"([a-z0-9$][a-z0-9-]*)@([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")


def is_url(warehouse: str) -> bool:
    """Whether a warehouse's name is the URL of something else than a directory."""
    found = _SCHEME.fullmatch(warehouse)
    return found is not None and found[1].lower() != "file"


def directory_of(warehouse: str) -> Path | None:
    """The directory that a warehouse's name means: `file:///path` and `file:/path` as Spark takes them, letter by letter, or a path.
    None for other URLs. Raises StorageError for the URL of another machine's file."""
    if is_url(warehouse):
        return None
    found = _FILE.fullmatch(warehouse)
    if found is None:
        return Path(warehouse).expanduser()
    if (found[1] or "").lower() not in ("", "localhost") or not found[2].startswith("/"):
        raise StorageError(
            f"{warehouse} does not name a directory of this machine",
            hint="write file:///the/whole/path, or the path alone",
        )
    return Path(found[2])


def open_store(
    warehouse: str, options: Mapping[str, str] | None = None, limits: Limits = DEFAULT_LIMITS
) -> Store:
    """The store of the warehouse at a path or URL; nothing is made and nobody is asked.

    `options` are those of `storage.*`, without that in front. Raises AnalysisError where they are wrong, StorageError where
    there can be no warehouse at the URL.
    """
    directory = directory_of(warehouse)
    if directory is not None:
        return LocalStore(str(directory.resolve()))
    scheme, _, rest = warehouse.partition("://")
    kind = _KINDS.get(scheme.lower())
    if kind is None:
        raise StorageError(
            f"there can be no warehouse on {scheme.lower()}://",
            detail="warehouses lie in directories, in buckets of S3 (or of stores that speak its protocol) and of Google, and in containers of Azure",
            hint="write s3://bucket/prefix, gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix, or the path of a "
            "directory that all of Spark's processes see",
        )

    def access(wanted: type[_Access], account: str) -> _Access:
        return replace(wanted.of(options or {}, limits), account=account)

    return kind(rest.rstrip("/"), access)


def open_beside(url: str, known: Store, limits: Limits = DEFAULT_LIMITS) -> tuple[Store, str] | None:
    """The bucket or container of an object's URL, and the object's path in it; None where the URL is that of no object store.

    It is reached with the credentials of `known` where that is a store of the same kind (of Azure's, the same account), else with those of
    the environment. Raises AnalysisError where these are wrong, StorageError where there can be no such bucket.
    """
    scheme, _, rest = url.partition("://")
    kind = _KINDS.get(scheme.lower())
    if kind is None:
        return None
    from cq_engine.catalog.storage.objects import ObjectStore

    def access(wanted: type[_Access], account: str) -> _Access:
        given = known.access if isinstance(known, ObjectStore) else None
        if isinstance(given, wanted) and given.account == account:
            return given
        return replace(wanted.of({}, limits), account=account)

    bucket, _, path = rest.partition("/")
    return kind(bucket, access), path


def _s3(place: str, access: _Reach) -> Store:
    from cq_engine.catalog.storage.objects import ObjectStore  # which a warehouse in a directory does without
    from cq_engine.catalog.storage.s3 import S3Access

    _check(place, "s3://bucket/prefix", "storage.access_key_id and storage.secret_access_key")
    return ObjectStore(f"s3://{place}", place, access(S3Access, ""))


def _google(place: str, access: _Reach) -> Store:
    from cq_engine.catalog.storage.google import GoogleAccess
    from cq_engine.catalog.storage.objects import ObjectStore

    _check(place, "gs://bucket/prefix", "the file that storage.credentials_file names")
    return ObjectStore(f"gs://{place}", place, access(GoogleAccess, ""))


def _azure(place: str, access: _Reach) -> Store:
    from cq_engine.catalog.storage.azure import AzureAccess
    from cq_engine.catalog.storage.objects import ObjectStore

    host, slash, prefix = place.partition("/")
    found = _AZURE.fullmatch(host)
    container, account = found.groups() if found else ("", "")
    inside = f"{container}{slash}{prefix}"
    _check(inside, "abfss://container@account.dfs.core.windows.net/prefix", "storage.account_key")
    location = f"abfss://{container}@{account}.dfs.core.windows.net{slash}{prefix}"
    return ObjectStore(location, inside, access(AzureAccess, account))


_KINDS: Mapping[str, Callable[[str, _Reach], Store]] = {
    "s3": _s3,
    "s3a": _s3,
    "gs": _google,
    "abfss": _azure,
    "abfs": _azure,
}


def _check(place: str, form: str, keys: str) -> None:
    """Raises StorageError unless there is a bucket or container, perhaps with a prefix."""
    if not _PREFIX.fullmatch(place) or any(part in (".", "..") for part in place.split("/")):
        raise StorageError(
            "the URL does not name a bucket and a prefix",
            detail="a prefix consists of letters, digits and - _ . = + ~ between single slashes, and keys do not stand in it",
            hint=f"write {form}; keys go into {keys}, or the environment",
        )
