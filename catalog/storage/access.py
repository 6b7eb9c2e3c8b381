"""How an object store is reached: one set of credentials for Arrow and Delta Lake, in this process and in executors.

    Access
    ├── S3Access       S3, and stores that speak its protocol (s3.py)
    ├── GoogleAccess   Google Cloud Storage (google.py)
    └── AzureAccess    Azure Blob Storage and Data Lake Storage (azure.py)

What is not given by the options `storage.*` comes from the environment of this process, by the names that the clouds' own tools
have; where neither has keys, the libraries ask for an instance's or container's role themselves, wherever they run. What
was given is kept in memory, and goes to executors with their tasks: it is stored nowhere and shown nowhere.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar
from urllib.parse import urlsplit

from cq_engine.core.errors import AnalysisError, did_you_mean
from cq_engine.core.limits import Limits

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["Access"]

_Access = TypeVar("_Access", bound="Access")


@dataclass(frozen=True, kw_only=True)
class Access(ABC):
    """The way to the buckets of one store. Hashable, and can be pickled."""

    ENVIRONMENT: ClassVar[Mapping[str, tuple[str, ...]]]
    """What stands behind `storage.` in the options of a warehouse there, with the variables that say the same, the first that is set."""
    TOGETHER: ClassVar[tuple[str, ...]]
    """Of these the environment's do not count where one of them is an option: a secret belongs to the name beside which it stands."""

    account: str = ""
    """Of Azure: the storage account, from the URL."""
    has_options: bool = False
    """Whether somebody has said how to get there (`storage.*`), and not the environment alone."""
    endpoint_url: str = ""
    tries: int = 1
    connect_seconds: float = 1.0
    request_seconds: float = 1.0
    threads: int = 1

    @classmethod
    def of(
        cls: type[_Access],
        options: Mapping[str, str],
        limits: Limits,
        environ: Mapping[str, str] = os.environ,
    ) -> _Access:
        """From options without `storage.` in front of their names, and from the environment.

        Raises AnalysisError for a name that is none, credentials that are incomplete, or an endpoint that is no URL.
        """
        for name in options:
            if name not in cls.ENVIRONMENT:
                listed = f"there are {', '.join(f'storage.{each}' for each in cls.ENVIRONMENT)}"
                raise AnalysisError(
                    f"there is no option storage.{name}", hint=did_you_mean(name, cls.ENVIRONMENT, listed)
                )
        given = dict(options)
        for name, variables in cls.ENVIRONMENT.items():
            if name in cls.TOGETHER and any(each in options for each in cls.TOGETHER):
                continue
            found = next((environ[each] for each in variables if environ.get(each)), None)
            if found is not None:
                given.setdefault(name, found)
        cls._check(given)
        _check_endpoint(given.get("endpoint_url", ""))
        return cls(
            **given,
            has_options=bool(options),
            tries=limits.store_tries,
            connect_seconds=limits.store_connect_seconds,
            request_seconds=limits.store_request_seconds,
            threads=limits.store_threads,
        )

    @classmethod
    @abstractmethod
    def _check(cls, given: Mapping[str, str]) -> None:
        """Raises AnalysisError where of what belongs together something is not given."""

    @property
    def _server(self) -> tuple[str, str]:
        """The scheme of the endpoint, and what comes after it; empty where none is given."""
        parts = urlsplit(self.endpoint_url)
        return parts.scheme, parts.netloc + parts.path.rstrip("/")

    @abstractmethod
    def filesystem(self) -> pafs.FileSystem:
        """Arrow's file system, in which a path is `bucket/key`."""

    def delta_options(self) -> dict[str, str]:
        """`storage_options` of Delta Lake's library. A commit is a conditional put: no lock beside the store is needed."""
        found = {
            **self._delta_options(),
            "allow_http": "true" if self.endpoint_url.startswith("http://") else "",
            "max_retries": str(self.tries),
            "connect_timeout": f"{self.connect_seconds:g}s",
            "timeout": f"{self.request_seconds:g}s",
        }
        return {name: value for name, value in found.items() if value}

    @abstractmethod
    def _delta_options(self) -> dict[str, str]:
        """Those of one kind of store; what is empty is not given."""


def _check_endpoint(text: str) -> None:
    if not text:
        return
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        usable = False
    if not usable:
        raise AnalysisError(
            "storage.endpoint_url is no URL of a server",
            hint="write it as http://host:port or https://host, without a user",
        )
