"""Which store a warehouse's name means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.core.errors import StorageError
from cq_engine.core.limits import DEFAULT_LIMITS, Limits

__all__ = ["is_url", "open_store"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_S3 = ("s3", "s3a")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]+(/[A-Za-z0-9_=+~.-]+)*")


def is_url(warehouse: str) -> bool:
    """Whether a warehouse's name is the URL of something else than a directory."""
    found = _SCHEME.fullmatch(warehouse)
    return found is not None and found[1].lower() != "file"


def open_store(
    warehouse: str, options: Mapping[str, str] | None = None, limits: Limits = DEFAULT_LIMITS
) -> Store:
    """The store of the warehouse at a path or URL; nothing is made and nobody is asked.

    `options` are those of `storage.*`, without that in front. Raises AnalysisError where they are wrong, StorageError where
    there can be no warehouse at the URL.
    """
    if not is_url(warehouse):
        return LocalStore(str(Path(warehouse.removeprefix("file://")).expanduser().resolve()))
    scheme, _, rest = warehouse.partition("://")
    if scheme.lower() not in _S3:
        raise StorageError(
            f"there can be no warehouse on {scheme.lower()}://",
            detail="warehouses lie in directories and in buckets of S3, or of stores that speak its protocol",
            hint="write s3://bucket/prefix, or the path of a directory that all of Spark's processes see",
        )
    place = rest.rstrip("/")
    if not _PREFIX.fullmatch(place) or any(part in (".", "..") for part in place.split("/")):
        raise StorageError(
            "the warehouse's URL does not name a bucket and a prefix",
            detail="a prefix consists of letters, digits and - _ . = + ~ between single slashes, and keys do not stand in it",
            hint="write s3://bucket/prefix; keys go into storage.access_key_id and storage.secret_access_key, or the environment",
        )
    from cq_engine.catalog.storage.access import Access  # which a warehouse in a directory does without
    from cq_engine.catalog.storage.objects import ObjectStore

    return ObjectStore(f"s3://{place}", Access.of(options or {}, limits))
