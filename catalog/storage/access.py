"""How an object store is reached: one set of credentials for Arrow and Delta Lake, in this process and in executors.

What is not given by the options `storage.*` comes from the environment of this process, by the names that AWS's own tools
have; where neither has keys, the libraries ask for an instance's or container's role themselves, wherever they run. What
was given is kept in memory, and goes to executors with their tasks: it is stored nowhere and shown nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cq_engine.core.errors import AnalysisError, did_you_mean
from cq_engine.core.limits import Limits

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["OPTIONS", "Access"]

_ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
_KEYS = ("access_key_id", "secret_access_key", "session_token")
OPTIONS = tuple(_ENVIRONMENT)
"""What stands behind `storage.` in the options of a warehouse on an object store."""


@dataclass(frozen=True)
class Access:
    """The way to the buckets of S3, or of a store that speaks its protocol. Hashable, and can be pickled."""

    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    endpoint_url: str = ""
    tries: int = 1
    connect_seconds: float = 1.0
    request_seconds: float = 1.0
    threads: int = 1

    @classmethod
    def of(
        cls, options: Mapping[str, str], limits: Limits, environ: Mapping[str, str] = os.environ
    ) -> Access:
        """From options without `storage.` in front of their names, and from the environment.

        Raises AnalysisError for a name that is none, half a pair of keys, or an endpoint that is no URL.
        """
        for name in options:
            if name not in OPTIONS:
                listed = f"there are {', '.join(f'storage.{each}' for each in OPTIONS)}"
                raise AnalysisError(
                    f"there is no option storage.{name}", hint=did_you_mean(name, OPTIONS, listed)
                )
        given = dict(options)
        for name, variables in _ENVIRONMENT.items():
            if name in _KEYS and "access_key_id" in options:
                continue  # the environment's secret belongs to the environment's key
            found = next((environ[each] for each in variables if environ.get(each)), None)
            if found is not None:
                given.setdefault(name, found)
        if bool(given.get("access_key_id")) != bool(given.get("secret_access_key")):
            raise AnalysisError(
                "of the keys of the object store, one is not given",
                hint="give storage.access_key_id and storage.secret_access_key, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment, or neither for an instance's role",
            )
        _check_endpoint(given.get("endpoint_url", ""))
        return cls(
            **given,
            tries=limits.store_tries,
            connect_seconds=limits.store_connect_seconds,
            request_seconds=limits.store_request_seconds,
            threads=limits.store_threads,
        )

    def filesystem(self) -> pafs.FileSystem:
        """Arrow's file system, in which a path is `bucket/key`."""
        import pyarrow.fs as pafs

        endpoint = urlsplit(self.endpoint_url)
        return pafs.S3FileSystem(
            access_key=self.access_key_id or None,
            secret_key=self.secret_access_key or None,
            session_token=self.session_token or None,
            region=self.region or None,
            endpoint_override=(endpoint.netloc + endpoint.path.rstrip("/")) or None,
            scheme=endpoint.scheme or None,
            connect_timeout=self.connect_seconds,
            request_timeout=self.request_seconds,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=self.tries),
            allow_delayed_open=True,  # a small file is one request
        )

    def delta_options(self) -> dict[str, str]:
        """`storage_options` of Delta Lake's library. A commit is a conditional put: no lock beside the store is needed."""
        found = {
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "aws_region": self.region,
            "aws_endpoint_url": self.endpoint_url,
            "aws_allow_http": "true" if self.endpoint_url.startswith("http://") else "",
            "aws_conditional_put": "etag",
            "max_retries": str(self.tries),
            "connect_timeout": f"{self.connect_seconds:g}s",
            "timeout": f"{self.request_seconds:g}s",
        }
        return {name: value for name, value in found.items() if value}


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
