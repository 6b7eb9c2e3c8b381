"""Buckets of S3, and of stores that speak its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from cq_engine.catalog.storage.access import Access
from cq_engine.core.errors import AnalysisError

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["S3Access"]


@dataclass(frozen=True, kw_only=True)
class S3Access(Access):
    """A pair of keys, or else the role of the instance or container."""

    ENVIRONMENT: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "access_key_id": ("AWS_ACCESS_KEY_ID",),
        "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    }
    TOGETHER: ClassVar[tuple[str, ...]] = ("access_key_id", "secret_access_key", "session_token")

    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""

    @classmethod
    def _check(cls, given: Mapping[str, str]) -> None:
        if bool(given.get("access_key_id")) != bool(given.get("secret_access_key")):
            raise AnalysisError(
                "of the keys of the object store, one is not given",
                hint="give storage.access_key_id and storage.secret_access_key, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment, or neither for an instance's role",
            )

    def filesystem(self) -> pafs.FileSystem:
        import pyarrow.fs as pafs

        scheme, server = self._server
        return pafs.S3FileSystem(
            access_key=self.access_key_id or None,
            secret_key=self.secret_access_key or None,
            session_token=self.session_token or None,
            region=self.region or None,
            endpoint_override=server or None,
            scheme=scheme or None,
            connect_timeout=self.connect_seconds,
            request_timeout=self.request_seconds,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=self.tries),
            allow_delayed_open=True,  # a small file is one request
        )

    def _delta_options(self) -> dict[str, str]:
        return {
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "aws_region": self.region,
            "aws_endpoint_url": self.endpoint_url,
            "aws_conditional_put": "etag",
        }
